"""The session that all Spark tests share; a test that uses it is marked `spark`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.spark.session import temporary_settings
from support.spark_session import SPARK_DEFAULTS, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.hookimpl(tryfirst=True)  # before pytest's own hook looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture
def spark_defaults(spark: SparkSession) -> Iterator[None]:
    """Compile and adapt queries as in a user's session."""
    with temporary_settings(spark, SPARK_DEFAULTS):
        yield
