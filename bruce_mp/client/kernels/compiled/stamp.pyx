"""The digest of the sources from which the kernels were compiled: see `kernel_choice.py`."""

cdef extern from *:
    const char *BRUCE_SOURCES

SOURCES = BRUCE_SOURCES.decode()
