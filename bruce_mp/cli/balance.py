"""The books as one line for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bruce_mp.telemetry.books import Books

__all__ = ["balance_line"]


def balance_line(books: Books) -> str:
    """`received 9 = delivered 5 + discarded 3 (BAD_TOPIC 2, NO_MEM 1) + held 1 (queued 1)`; `!=` if it is not so."""
    relation = "=" if books.balanced else "!="
    parts = [f"delivered {books.delivered}", _sum("discarded", books.discarded), _sum("held", books.held)]
    return f"received {books.received} {relation} {' + '.join(parts)}"


def _sum(name: str, parts: Mapping[str, int]) -> str:
    listed = ", ".join(f"{part} {count}" for part, count in sorted(parts.items()) if count)
    return f"{name} {sum(parts.values())}" + (f" ({listed})" if listed else "")
