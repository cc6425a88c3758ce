"""Make columns of SQL texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["expressions"]


def expressions(*texts: str) -> list[Column]:
    """Return SQL expressions as columns."""
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    return [F.expr(text) for text in texts]
