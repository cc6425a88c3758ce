"""The transactions of a process row; the pure variant is the class of `slab/rows.py`."""

from bruce_mp.slab.rows import ProcessRow

__all__ = ["ProcessRow"]
