"""Give tables names for the audit's queries in SQL, and drop the names afterwards.

Spark analyzes an SQL text once, but a DataFrame after each of its operations. For small tables this analysis takes
longer than the query itself. So does the planning of a query over cached tables: the plan has the steps of every
reference to a cached table, and each of these has those of its own inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self
from uuid import uuid4

from bruce_mp.spark.session import temporary_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["AuditTables", "empty_table"]

_CHECKPOINT_SETTINGS: Final = {"spark.sql.constraintPropagation.enabled": "false"}
"""Without it, `localCheckpoint` of a union of such tables fails in Spark 4.3 ("key not found")."""


@dataclass
class AuditTables:
    """Named tables, each a temporary view. The end of the `with` block drops the views."""

    spark: SparkSession
    _prefix: str = field(default_factory=lambda: f"bruce_{uuid4().hex}")
    _tables: dict[str, DataFrame] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._tables:
            self.spark.catalog.dropTempView(self._view(name))
        self._tables.clear()  # Spark removes the rows of a computed table that nothing refers to

    def __getitem__(self, name: str) -> DataFrame:
        return self._tables[name]

    def register(self, name: str, table: DataFrame) -> DataFrame:
        """Name a table for later queries, and return it."""
        table.createOrReplaceTempView(self._view(name))
        self._tables[name] = table
        return table

    def register_computed(self, name: str, table: DataFrame) -> DataFrame:
        """Compute a table, keep its rows in the executors, name it for later queries, and return it without its plan.

        A later query fails if an executor with some of the rows has ended.
        """
        with temporary_settings(self.spark, _CHECKPOINT_SETTINGS):
            return self.register(name, table.localCheckpoint())

    def query(self, steps: Mapping[str, str]) -> DataFrame:
        """Return the result of the last step; `steps` are SQL texts by name.

        In a text, {name} stands for the earlier step of this name (then it becomes a subquery) or, if there is none,
        for the table of this name. Spark 4.1 cannot plan common table expressions in views, so they are not used.
        """
        references, text = {name: self._view(name) for name in self._tables}, ""
        for name, template in steps.items():
            text = template.format_map(references)
            references[name] = f"({text})"
        return self.spark.sql(text)

    def _view(self, name: str) -> str:
        return f"{self._prefix}_{name}"


def empty_table(spark: SparkSession, columns: str) -> DataFrame:
    """Return an empty table of `columns` ("name type, ..."), which Spark recognizes as empty and optimizes away."""
    fields = (part.split(" ", 1) for part in columns.split(", "))
    return spark.sql(f"select {', '.join(f'cast(null as {kind}) as {name}' for name, kind in fields)} where false")
