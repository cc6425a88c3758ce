"""Render the error table as the page docs/error-table.md; a test compares the two.

python -m bruce_mp.protocol.kafka.error_table_page > docs/error-table.md
"""

from __future__ import annotations

import sys
from textwrap import wrap
from typing import TYPE_CHECKING, Final

from bruce_mp.protocol.kafka.error_actions import CONNECTION_LOST, ERROR_TABLE, FOREIGN_CODES, UNDOCUMENTED, Action

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.protocol.kafka.error_actions import ErrorRow

__all__ = ["render"]

INTRODUCTION: Final = """\
# Kafka error codes

The daemon's action for each code. `bruce_kafka_answers_total` counts answers by code; the log has the errors.
`python -m bruce_mp.protocol.kafka.error_table_page` renders this page.

`delivery.max_failed_attempts` limits the retries of a message. By default there is no limit, except for codes with a
number of retries in brackets. *May duplicate*: the broker may have stored the batch, so a retry may store it twice. An
idempotent broker recognizes the repetition, except after BUMP_EPOCH.
"""

OTHER_CODES: Final = """\
These codes belong to other requests. In an answer to a produce request they lead to DISCARD, without a retry and
without a possible duplicate.
"""

WIDTH: Final = 119


def render() -> str:
    """Return the whole page as Markdown."""
    return "\n".join([INTRODUCTION, *_actions(), *_other_requests()]) + "\n"


def _actions() -> Iterator[str]:
    for action in Action:
        rows = [row for row in (*ERROR_TABLE.values(), UNDOCUMENTED, CONNECTION_LOST) if row.action is action]
        yield f"## {action.name}\n"
        retry = " Counts as a retry." if any(row.counts_as_retry for row in rows) else ""
        yield from wrap(f"{action.value[0].upper()}{action.value[1:]}.{retry}", WIDTH)
        yield ""
        yield from (_entry(row) for row in rows if action is not Action.DISCARD or row.reason not in FOREIGN_CODES)
        yield ""


def _code_text(row: ErrorRow) -> str:
    """Return the code as text, or words for the two rows without a code."""
    return {UNDOCUMENTED.name: "any other", CONNECTION_LOST.name: "none"}.get(row.name, str(row.code))


def _other_requests() -> Iterator[str]:
    yield f"## Codes of other requests\n\n{OTHER_CODES}"
    for reason, codes in FOREIGN_CODES.items():
        yield from wrap(f"* {reason}: {codes}.", WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _entry(row: ErrorRow) -> str:
    retry_notes = [f"{row.retry_limit} retries"] if row.retry_limit is not None else []
    notes = ", ".join(retry_notes + ["may duplicate"] * row.may_duplicate)
    return f"* {_code_text(row)} {row.name}{f' ({notes})' if notes else ''}: {row.reason}"


if __name__ == "__main__":
    sys.stdout.write(render())
