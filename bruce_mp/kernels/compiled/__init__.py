"""The kernels in Cython.  The pure module of the same name specifies each kernel; the tests run on both.

* `layout.pxd` repeats the offsets of `slab/layout.py`; a test compares the two.
* A kernel checks chunk, magic, generation and bounds before it reads records.  It loads each header field once, so that
  it uses the value that it checked.  A bad location raises the same error as in the pure kernel.
* Stores to the slab occur one by one in the order of the source, through `store32` and `store64` of `memory.pxd`.
"""
