"""Convert SQL texts to Spark's columns."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

__all__ = ["expressions"]


def expressions(*texts: str) -> list[Column]:
    return [F.expr(text) for text in texts]
