"""The chunk pool of an input; the pure variant is the class of `slab/chunks.py`."""

from bruce_mp.slab.chunks import ChunkPool

__all__ = ["ChunkPool"]
