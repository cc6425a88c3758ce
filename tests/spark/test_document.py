"""The page about Spark: its tables of options and columns are those of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from bruce_mp.spark.columns import _TYPES
from bruce_mp.spark.options import _OPTIONS, SinkOptions

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "spark.md"


def rows_of(heading: str) -> list[list[str]]:
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [re.split(r" *\| *", line.strip("| ")) for line in section.splitlines() if line.startswith("| `")]


def shown(value: Any) -> str:
    if value is None:
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(getattr(value, "value", value))
    return f"`{text}`"


def test_every_option_is_there_with_its_default() -> None:
    defaults = SinkOptions("")
    expected = {f"`{name}`": shown(getattr(defaults, field) or None) for name, (field, _) in _OPTIONS.items()}
    assert {name: default for name, default, *_ in rows_of("Options")} == expected


def test_every_column_is_there_with_its_types() -> None:
    found = {name.strip("`"): set(re.split(" or ", kinds)) for name, kinds, *_ in rows_of("Columns")}
    assert found == {name: set(kinds) for name, kinds in _TYPES.items()}
