"""The codecs of `protocol.compression`, a module for each, named as the codec.

Each has

    compress(data, level) -> bytes     `level` is one that the codec has; 0 where it has none
    decompress(data, limit) -> bytes   raises one of FAILURES
    FAILURES                           what `decompress` raises on damaged input and beyond its limit

They are apart so that a process has those libraries in memory whose codecs it uses.
"""
