from bruce_mp.slab.chunks import ChunkPool as ChunkPool
