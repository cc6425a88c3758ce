"""The kernels in Python: batch-oriented, and the reference for other implementations."""
