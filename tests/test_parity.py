"""docs/parity.md: each feature of the ancestors has a row, and each test that a row names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "parity.md"
DESIGNS: Final = frozenset("DBOKP")


class Row(NamedTuple):
    feature: str
    designs: str
    ours: str
    shown_by: str


def rows() -> list[Row]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert {len(row) for row in cells} == {len(Row._fields)}
    return [row for row in map(Row._make, cells) if row.feature != "feature"]


@cache
def functions_of(path: Path) -> frozenset[str]:
    return frozenset(node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef))


def exists(name: str) -> bool:
    file, _, test = name.partition("::")
    return (ROOT / file).is_file() and test in functions_of(ROOT / file)


def test_every_test_that_is_named_exists() -> None:
    named = {name for row in rows() for name in re.findall(r"`([^`]+)`", row.shown_by)}
    assert len(named) > 100
    assert sorted(name for name in named if not exists(name)) == []


def test_every_row_has_a_test() -> None:
    shown = re.compile(r"`[^`]+::test_\w+`(<br>`[^`]+::test_\w+`)*")
    assert [row for row in rows() if not shown.fullmatch(row.shown_by)] == []


def test_each_row_names_its_designs_and_our_form() -> None:
    for row in rows():
        assert set(row.designs) <= DESIGNS, row
        assert row.designs, row
        assert row.ours, row
    assert {design for row in rows() for design in row.designs} == DESIGNS


def test_feature_names_are_unique() -> None:
    features = [row.feature for row in rows()]
    assert sorted(set(features)) == sorted(features)
