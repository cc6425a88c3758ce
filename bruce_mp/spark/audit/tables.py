"""Tables with names, and SQL over them, for as long as they are needed.

A query that is one text is analysed once.  One that is put together operation by operation is analysed at each of them,
which for small tables takes longer than the query itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Tables", "empty"]


@dataclass
class Tables:
    """Temporary views whose names nobody else has; they are dropped, and what is kept in memory let go, on exit."""

    spark: SparkSession
    _prefix: str = field(default_factory=lambda: f"bruce_{uuid4().hex}")
    _tables: dict[str, DataFrame] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name, table in self._tables.items():
            self.spark.catalog.dropTempView(self._view(name))
            table.unpersist()

    def __getitem__(self, name: str) -> DataFrame:
        return self._tables[name]

    def put(self, name: str, table: DataFrame) -> DataFrame:
        """The table, which queries may name from now on."""
        table.createOrReplaceTempView(self._view(name))
        self._tables[name] = table
        return table

    def keep(self, name: str, table: DataFrame) -> DataFrame:
        """The same, and the table is in memory once it was computed."""
        return self.put(name, table.cache())

    def query(self, text: str) -> DataFrame:
        """SQL in which {name} stands for the table of that name."""
        return self.spark.sql(text.format_map({name: self._view(name) for name in self._tables}))

    def _view(self, name: str) -> str:
        return f"{self._prefix}_{name}"


def empty(spark: SparkSession, columns: str) -> DataFrame:
    """No rows of `columns` ("name type, ...").  Spark sees that there are none, and leaves out what depends on them."""
    fields = (part.split(" ") for part in columns.split(", "))
    return spark.sql(f"select {', '.join(f'cast(null as {kind}) as {name}' for name, kind in fields)} where false")
