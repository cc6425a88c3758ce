"""Notations of sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.config.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("written", "size"),
    [(0, 0), (1, 1), ("0", 0), ("17", 17), ("1k", 1024), ("1K", 1024), ("2m", 2 << 20), ("3g", 3 << 30)],
)
def test_parse_size_accepts_integers_and_units(written: object, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize(
    "written", ["", "k", "1 k", " 1k", "1kb", "-1", "1.5m", "0x10", "1t", "\u0661k", True, 1.0, None, []]
)
def test_parse_size_rejects_an_invalid_size(written: object) -> None:
    with pytest.raises(ValueError, match="a size is an integer or"):
        parse_size(written)


@given(st.integers(0, 1 << 40))
def test_a_formatted_size_parses_back(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("size", "written"), [(0, "0"), (1000000, "1000000"), (65536, "64k"), (8 << 20, "8m"), (1 << 30, "1g")]
)
def test_format_size_writes_the_shortest_form(size: int, written: str) -> None:
    assert format_size(size) == written
