"""The kernels in Cython.  The pure module of the same name specifies each; the tests run on both.

* Offsets are those of `slab/layout.py`: a test compares `layout.pxd` with it.
* Chunk, magic, generation and bounds are checked before any walk.  Every header is read once, so the checked value is
  the used value.  A bad location raises the same error as in the pure kernels.
* Stores to the slab happen one by one in the order of the source, through `store32` and `store64` of `memory.pxd`.
"""
