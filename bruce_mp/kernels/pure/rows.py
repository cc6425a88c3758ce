"""The transactions of a process row: those of `slab/rows.py` are the reference."""

from bruce_mp.slab.rows import ProcessRow

__all__ = ["ProcessRow"]
