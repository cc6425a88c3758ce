"""The kernels in Cython.  What each must do is said in the pure module of the same name; the tests hold both to it.

* Offsets are those of `slab/layout.py`: a test compares `layout.pxd` with it.
* Nothing is walked before it was checked: chunk, magic, generation, bounds; and every header is read once, so that
  what was checked is what is used.  A bad place is refused as the pure kernels refuse it, in the same words.
* Stores to the slab are made one by one in the order of the source, by `store32` and `store64` of `memory.pxd`.
"""
