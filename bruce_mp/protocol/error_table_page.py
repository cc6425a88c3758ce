"""Renders the error table as the page docs/error-table.md; a test holds the page against it.

python -m bruce_mp.protocol.error_table_page > docs/error-table.md
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from bruce_mp.protocol.error_actions import CONNECTION_LOST, ERROR_TABLE, UNDOCUMENTED, Action

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.protocol.error_actions import ErrorRow

__all__ = ["render"]

INTRODUCTION: Final = """\
# What the daemon does with each Kafka error code

Made from the table in `bruce_mp/protocol/error_actions.py` by `python -m bruce_mp.protocol.error_table_page`.

*Duplicate?* tells whether the broker may have kept what it answered with an error. An idempotent broker recognises what
comes again, except after BUMP_EPOCH. *Attempts* tells how many failed attempts a message is allowed: "config" means
`max_failed_attempts`, without end by default; "-" means that the answer is no failed attempt.
"""


def render() -> str:
    """The whole page as Markdown."""
    return "\n".join([INTRODUCTION, *_actions(), "", *_errors()]) + "\n"


def _actions() -> Iterator[str]:
    yield "| Action | What it does |"
    yield "|---|---|"
    for action in Action:
        yield f"| {action.name} | {action.value} |"


def _errors() -> Iterator[str]:
    yield "| Code | Name | Action | Duplicate? | Attempts | Reason |"
    yield "|---:|---|---|---|---|---|"
    for row in ERROR_TABLE.values():
        yield _line(str(row.code), row)
    yield _line("any other", UNDOCUMENTED)
    yield _line("none", CONNECTION_LOST)


def _line(code: str, row: ErrorRow) -> str:
    duplicate = "yes" if row.may_duplicate else "no"
    return f"| {code} | {row.name} | {row.action.name} | {duplicate} | {_attempts(row)} | {row.reason} |"


def _attempts(row: ErrorRow) -> str:
    if not row.counts_as_attempt:
        return "-"
    return "config" if row.attempt_limit is None else str(row.attempt_limit)


if __name__ == "__main__":
    sys.stdout.write(render())
