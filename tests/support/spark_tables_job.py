"""A program that audits topics into tables of a format, with the jars that this format needs.

Its input is JSON: `format`, `settings` of Spark, `directory` with ledger and output, `bootstrap`, `topic`.
"""

from __future__ import annotations

import io
import json
import sys

from bruce_mp.spark.audit.run import Audit, audit, read_samples
from bruce_mp.spark.pipelines.progress import Progress
from bruce_mp.spark.session import kafka_jars, start_session


def main() -> None:
    """Audit twice, so that the tables are replaced, and read them back."""
    given = json.load(sys.stdin)
    place = given["directory"]
    jars = ",".join([kafka_jars(), *given["jars"]])
    settings = {"spark.driver.memory": "512m", "spark.log.level": "ERROR", "spark.jars": jars, **given["settings"]}
    spark = start_session("tables", master="local[2]", settings=settings)
    plan = Audit(
        given["bootstrap"], [given["topic"]], [f"{place}/ledger"], f"{place}/audit", table_format=given["format"],
        samples=2,
    )  # fmt: skip
    verdicts = [str(audit(spark, plan, Progress("audit", io.StringIO()))) for _ in range(2)]
    tables = {
        name: spark.read.format(given["format"]).load(f"{place}/audit/{name}") for name in ("balance", "problems")
    }
    tables["samples"] = read_samples(spark, plan)
    counts = {name: table.count() for name, table in tables.items()}
    spark.stop()
    print(json.dumps({"verdicts": verdicts, "counts": counts}))


main()
