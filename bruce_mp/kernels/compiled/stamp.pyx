"""Which sources the kernels were compiled from: see `kernels/choice.py`."""

cdef extern from *:
    const char *BRUCE_SOURCES

SOURCES = BRUCE_SOURCES.decode()
