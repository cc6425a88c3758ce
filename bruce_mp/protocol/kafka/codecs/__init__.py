"""The codecs of `protocol.compression`, one module for each codec.

Each has

    compress(data, level) -> bytes     `level` is valid for the codec; 0 if it has no levels
    decompress(data, limit) -> bytes   raises one of FAILURES
    FAILURES                           errors of `decompress` for damaged input and beyond its limit

The modules are separate so that a process loads only the libraries of its codecs.
"""
