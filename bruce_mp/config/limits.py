"""Limits of values that several sections share."""

from typing import Final

__all__ = ["DAY_MS", "INT32_MAX"]

INT32_MAX: Final = 2**31 - 1
DAY_MS: Final = 24 * 60 * 60 * 1000
