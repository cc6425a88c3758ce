"""Delta and Iceberg: their tables as input of the sink, in batches and streams, and as output of the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.spark.maven import cache_directory, ensure_jars
from support.daemon import Daemon
from support.doc_pages import ROOT
from support.spark_session import SMALL
from support.spark_versions import run_with

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.soak]

JOB: Final = ROOT / "tests" / "support" / "spark_tables_job.py"
ROWS: Final = 1_000
FORMATS: Final = {
    "delta": (
        "4.2",
        ["io.delta:delta-spark_4.2_2.13:4.4.0", "io.delta:delta-storage:4.4.0"],
        {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        },
        None,
    ),
    "iceberg": (
        "4.1",
        ["org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"],
        {
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": "{}/warehouse",
        },
        "lake.audit",
    ),
}
"""The newest Spark with which each works, its jars and settings, and the namespace of the tables."""


@pytest.mark.parametrize("table_format", FORMATS)
def test_tables_are_sent_and_audited(table_format: str, tmp_path: Path) -> None:
    release, coordinates, settings, namespace = FORMATS[table_format]
    name = "-".join(coordinates[0].split(":")[1:])
    jars = ensure_jars(cache_directory() / "spark" / name, coordinates, with_dependencies=False) / "jars"
    stream = tmp_path / "stream"
    inputs = {"input.unix_stream.enable": "true", "input.unix_stream.path": f'"{stream}"'}
    settings = {name: text.format(tmp_path) for name, text in settings.items()}
    settings = {**SMALL, **settings, "spark.jars": ",".join(map(str, jars.glob("*.jar")))}
    (tmp_path / "tables").mkdir()
    with DevBroker(topics={"batch": 2, "streamed": 2}) as broker, Daemon(tmp_path, broker.bootstrap, inputs):
        given: dict[str, object] = {
            "socket": str(stream),
            "bootstrap": broker.bootstrap,
            "directory": f"{tmp_path}/tables",
        }
        given |= {"format": table_format, "rows": ROWS, "settings": settings, "namespace": namespace}
        done = run_with(release, JOB, given)
    assert done["version"].startswith(release)
    both, one = done["verdicts"]
    good = "sent {0:,} = delivered {0:,} + discarded 0 + missing 0; doubled 0, out of order 0, from unknown writers 0"
    assert both == [good.format(2 * ROWS), [["batch", ROWS, ROWS], ["streamed", ROWS, ROWS]]]
    assert one == [good.format(ROWS), [["batch", ROWS, ROWS]]]
