"""The codecs of `protocol.kafka.compression`, one module for each codec, so that a process loads only those it uses.

Each has `compress(data, level)`; `level` is valid for the codec, and 0 if the codec has no levels.
"""
