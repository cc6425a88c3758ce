"""The kernels of the clients in Python: the reference for the compiled ones."""
