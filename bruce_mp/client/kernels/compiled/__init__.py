"""The kernels of the clients in Cython; the pure module of the same name specifies each.

They run from start to end while their thread holds the GIL, so they need no lock.
"""
