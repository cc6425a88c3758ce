"""The kernels in Python: batch-shaped, and the oracle for any other implementation."""
