"""The chunk pool of an input: that of `slab/chunks.py` is the reference."""

from bruce_mp.slab.chunks import ChunkPool

__all__ = ["ChunkPool"]
