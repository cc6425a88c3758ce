"""Parts of the test files, for runs of pytest beside each other (`--part`)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["files_of_part"]

TESTS: Final = Path(__file__).parents[1]


@cache
def files_of_part(part: str) -> frozenset[Path]:
    """Return the test files of a part such as "2/3"; all parts have about as much text.

    Raises ValueError for a part that does not exist.
    """
    number, count = map(int, part.split("/"))
    if not 1 <= number <= count:
        raise ValueError(f"There is no part {part}: the parts are 1/{count} to {count}/{count}.")
    by_size = sorted(TESTS.rglob("test_*.py"), key=lambda path: (path.stat().st_size, path))
    return frozenset(by_size[number - 1 :: count])
