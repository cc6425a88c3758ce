"""Each test file is in one part."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.parts import TESTS, files_of_part


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_the_parts_together_have_each_file_once(count: int) -> None:
    files = [path for number in range(1, count + 1) for path in files_of_part(f"{number}/{count}")]
    assert sorted(files) == sorted(TESTS.rglob("test_*.py"))
    assert Path(__file__) in files


@pytest.mark.parametrize("part", ["0/3", "4/3"])
def test_a_part_that_does_not_exist_is_an_error(part: str) -> None:
    with pytest.raises(ValueError, match="There is no part"):
        files_of_part(part)
