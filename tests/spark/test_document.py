"""The page about Spark: its tables agree with the code, and its example writes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.spark.columns import _TYPES_BY_COLUMN
from bruce_mp.spark.options import _OPTIONS, SinkOptions
from support.daemon import Daemon
from support.doc_pages import ROOT, blocks_of, name_of
from support.stream_sink import StreamSink

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

PAGE: Final = ROOT / "docs" / "spark.md"


def rows_of(heading: str) -> list[list[str]]:
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [re.split(r" *\| *", line.strip("| ")) for line in section.splitlines() if line.startswith("| `")]


def shown(value: Any) -> str:
    if value is None:
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(getattr(value, "value", value))
    return f"`{text}`"


def test_every_option_is_documented_with_its_default() -> None:
    defaults = SinkOptions("")
    expected = {f"`{name}`": shown(getattr(defaults, field) or None) for name, (field, _) in _OPTIONS.items()}
    assert {name: default for name, default, *_ in rows_of("Options")} == expected


def test_every_column_is_documented_with_its_types() -> None:
    found = {name.strip("`"): set(re.split(" or ", kinds)) for name, kinds, *_ in rows_of("Columns")}
    assert found == {name: set(kinds) for name, kinds in _TYPES_BY_COLUMN.items()}


@pytest.mark.process
@pytest.mark.parametrize("page", [ROOT / "README.md", PAGE], ids=name_of)
def test_the_documented_python_writes(page: Path, spark: SparkSession, tmp_path: Path) -> None:
    stream = tmp_path / "stream"
    settings = {"input.unix_stream.enable": "true", "input.unix_stream.path": f'"{stream}"'}
    shown = [block.text for block in blocks_of(page) if "df." in block.text]
    with DevBroker(topics={"clicks": 3}) as broker, Daemon(tmp_path, broker.bootstrap, settings) as daemon:
        for block in shown:
            exec(block.replace("/run/bruce/in.stream", str(stream)), {"df": spark.range(100).toDF("user")})
        daemon.wait_settled(100 * len(shown))
        values = [json.loads(record.value or b"") for records in broker.fetch("clicks") for record in records]
    assert sorted(value["user"] for value in values) == sorted([*range(100)] * len(shown))


@pytest.mark.process
def test_the_documented_stream_writes(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "clicks").mkdir()
    (tmp_path / "clicks" / "a.txt").write_text("one\ntwo\n")
    (block,) = (block.text for block in blocks_of(PAGE) if "readStream" in block.text)
    ending = block.replace(".start(", ".trigger(availableNow=True).start(")  # the page's stream never ends
    with StreamSink(tmp_path / "s") as sink:
        for path, place in {"/data": tmp_path, "/var/lib": tmp_path / "var", "/run/bruce/in.stream": sink.path}.items():
            ending = ending.replace(path, str(place))
        exec(ending, {"spark": spark})
    assert sorted(sink.values) == [b"one", b"two"]
