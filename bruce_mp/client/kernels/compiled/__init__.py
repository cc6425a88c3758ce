"""The kernels of the clients in Cython; the pure module of the same name specifies each.

A method holds the GIL from its start to its end, so it needs no lock.
"""
