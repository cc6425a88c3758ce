"""Computed tables hide their origin from the planner, so that plans stay short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.spark.audit.tables import AuditTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_query_over_computed_tables_has_a_short_plan(spark: SparkSession) -> None:
    with AuditTables(spark) as tables:
        # Two steps to `table0`, because only then Spark misunderstands the constraint that `topic` is equal to 't'.
        tables.register_computed("source", spark.sql("select 't' as topic, id as absent from range(2)"))
        tables.register_computed("table0", tables.query({"ids": "select topic, absent as id from {source}"}))
        for step in range(5):
            last = f"{{table{step}}}"
            text = f"select topic, id + 1 as id from {last} union all select * from {last}"
            tables.register_computed(f"table{step + 1}", tables.query({"union": text}))
        table = tables["table5"]
        assert sorted(row.id for row in table.collect()) == sorted(
            start + bits.bit_count() for start in range(2) for bits in range(32)
        )
        plan = table._jdf.queryExecution().optimizedPlan().toString()
        assert len(plan.splitlines()) == 1
    assert spark.catalog.listTables() == []
