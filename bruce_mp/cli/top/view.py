"""The screen of `bruce top`: text and tables that fit into a terminal of any size.

The view shows topics, errors and host names as plain text without control characters, because they come from clients,
brokers and the network.
"""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from bruce_mp.cli.top.page import SORT_KEYS
from bruce_mp.slab.room import PAUSE_RATIO
from bruce_mp.status.pages.health import FULL_RATIO
from bruce_mp.telemetry.clock import utc_text
from bruce_mp.telemetry.logs import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import RenderableType

    from bruce_mp.cli.top.page import TopBroker, TopPage, TopSelection
    from bruce_mp.status.pages.topics import TopicLine

__all__ = ["TopScreen"]

MAX_SENTENCES: Final = 4
MAX_BROKERS: Final = 8
KEYS: Final = "q quit   < > sort by   r reverse   / filter   arrows scroll   space pause"
MIN_FULL_WIDTH: Final = 110
"""The width of a terminal from which the tables show the columns with `needs_width`."""
_UNKNOWN: Final = "-"
"""The text for an unknown number."""
_BAD, _WARN, _GOOD, _QUIET = "bold red", "yellow", "green", "dim"
_SHORTEST_MINUTE_S: Final = 49
"""The shortest time window that the view calls a minute.

A full window begins at the first sample after a multiple of 10 s that is 50 to 60 s ago. The sample may be 1 s late, so
a full window has at least 49 s.
"""
_SIZE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_SECOND_MS, _MINUTE_MS, _HOUR_MS, _DAY_MS = 1000, 60_000, 3_600_000, 86_400_000


class TopScreen(NamedTuple):
    """Content of a screen of `height` lines and `width` columns.

    `page` is None before the first response. `typed_filter` is the text of the filter while the user types it, else
    None. `failure` is the error of the last request, empty if it succeeded.
    """

    page: TopPage | None
    selection: TopSelection
    height: int
    width: int
    typed_filter: str | None = None
    failure: str = ""
    is_paused: bool = False

    def render(self) -> RenderableType:
        """Return the screen. It shows at least one topic, even if the screen then has more than `height` lines."""
        if self.page is None:
            return Group(_line(("bruce top: waiting for the first answer", "bold")), *self._foot)
        rows = self.topic_row_count
        unused_line_count = max(0, rows - len(self.page.topics.shown))
        parts = [
            *_head(self.page, is_paused=self.is_paused, width=self.width, unused_line_count=unused_line_count),
            _brokers(self.page, self.width),
            _topics(self.page, self.selection, rows, self.width),
        ]
        return Group(*parts, *self._foot)

    @property
    def topic_row_count(self) -> int:
        """The number of topics that fit between the other lines, at least 1; 0 without a page."""
        if self.page is None:
            return 0
        heading, broker_count = 1, len(self.page.brokers)
        broker_lines = heading + min(broker_count, MAX_BROKERS) + (broker_count > MAX_BROKERS)  # "and N more"
        lines_above = len(_head(self.page, is_paused=False)) + broker_lines + heading
        return max(1, self.height - lines_above - len(self._foot))

    @property
    def _foot(self) -> list[Text]:
        """The lines below the topics."""
        text = KEYS if self.typed_filter is None else f"Name contains: {self.typed_filter}_   enter applies"
        last_line = _line((text, _QUIET))
        return [_line((self.failure, _BAD)), last_line] if self.failure else [last_line]


# --- numbers ----------------------------------------------------------------------------------------------------------


def rate_text(rate: float) -> str:
    if 0 < rate < 0.1:
        return "<0.1"
    return f"{rate:.1f}" if 0 < rate < 10 else f"{rate:,.0f}"


def size_text(size: float) -> str:
    power = min(len(_SIZE_UNITS) - 1, int(math.log2(size)) // 10) if size >= 1 else 0
    value = size / 1024**power
    return f"{value:.1f} {_SIZE_UNITS[power]}" if power and value < 10 else f"{value:.0f} {_SIZE_UNITS[power]}"


def duration_text(ms: float | None) -> str:
    if ms is None:
        return _UNKNOWN
    if _SECOND_MS <= ms < 10 * _SECOND_MS:
        return f"{ms / _SECOND_MS:.1f} s"
    # Minutes, hours and days begin at two: 119 s, then 2 min.
    if ms < _SECOND_MS:
        return f"{ms:.0f} ms"
    if ms < 2 * _MINUTE_MS:
        return f"{ms / _SECOND_MS:.0f} s"
    if ms < 2 * _HOUR_MS:
        return f"{ms / _MINUTE_MS:.0f} min"
    return f"{ms / _HOUR_MS:.0f} h" if ms < 2 * _DAY_MS else f"{ms / _DAY_MS:.0f} d"


# --- lines ------------------------------------------------------------------------------------------------------------


def _line(*parts: str | tuple[str, str]) -> Text:
    """Return one line that consists of the parts; a part is a text, or a pair of text and style."""
    pairs = (part if isinstance(part, tuple) else (part, "") for part in parts)
    styled = ((printable(text), style) for text, style in pairs)
    return Text.assemble(*styled, no_wrap=True, overflow="ellipsis", end="\n")


def _head(page: TopPage, *, is_paused: bool, width: int = 0, unused_line_count: int = 0) -> list[RenderableType]:
    """Return the lines above the tables.

    `unused_line_count` is the number of lines that the tables leave free: long sentences wrap at `width` into them.
    """
    health = _health(page, width, unused_line_count)
    return [_title(page, is_paused=is_paused), _rates(page), _books(page), *health, *_discards(page)]


def _title(page: TopPage, *, is_paused: bool) -> Text:
    problem_count, warning_count = len(page.health.problems), len(page.health.warnings)
    if problem_count:
        state = (f"{problem_count} problem{'s' if problem_count > 1 else ''}", _BAD)
    elif warning_count:
        state = (f"{warning_count} warning{'s' if warning_count > 1 else ''}", _WARN)
    else:
        state = ("healthy", _GOOD)
    paused = (("  paused", _WARN),) if is_paused else ()
    return _line((f"bruce {page.version} on {page.host}  ", "bold"), state, f"  {utc_text(page.now)}", *paused)


def _rates(page: TopPage) -> Text:
    flow, latency = page.flow, page.latency["minute"]
    median, p99 = duration_text(latency.p50_ms), duration_text(latency.p99_ms)
    window = "last minute" if flow.seconds >= _SHORTEST_MINUTE_S else f"last {flow.seconds:.0f} s"
    used = page.slab.in_use / page.slab.size
    style = _BAD if used >= FULL_RATIO else _WARN if used >= PAUSE_RATIO else ""
    return _line(
        (f"{window}: ", _QUIET),
        f"in {rate_text(flow.received)}/s  delivered {rate_text(flow.delivered)}/s  ",
        (f"slab {100 * used:.1f} % of {size_text(page.slab.size)}", style),
        f"  50 % within {median}, 99 % {p99}  {size_text(flow.size)}/s",
    )


def _books(page: TopPage) -> Text:
    books, held_count = page.books, sum(page.books.held.values())
    verdict = {True: ("balanced", _GOOD), False: ("NOT balanced", _BAD), None: ("changed during the reading", _QUIET)}
    oldest = f" (oldest {duration_text(page.oldest_ms)})" if page.oldest_ms is not None else ""
    return _line(
        f"received {books.received:,} = delivered {books.delivered:,} + discarded {books.discarded:,} + held "
        f"{held_count:,}{oldest}  ",
        verdict[books.balanced],
    )


def _health(page: TopPage, width: int, unused_line_count: int) -> list[Text]:
    """Return the lines of problems and warnings. A sentence wraps only if `unused_line_count` lines are enough."""
    sentences = [
        *((f"Problem: {text}", _BAD) for text in page.health.problems),
        *((f"Warning: {text}", _WARN) for text in page.health.warnings),
    ]
    lines = []
    for text, style in sentences[:MAX_SENTENCES]:
        wrapped = textwrap.wrap(printable(text), width) if unused_line_count else [text]
        if len(wrapped) - 1 > unused_line_count:
            wrapped = [text]
        unused_line_count -= len(wrapped) - 1
        lines += [_line((each, style)) for each in wrapped]
    if len(sentences) > MAX_SENTENCES:
        lines.append(_line((f"and {len(sentences) - MAX_SENTENCES} more: see /healthz", _QUIET)))
    return lines


def _discards(page: TopPage) -> list[Text]:
    recent = [each for each in page.discards.reasons if each.minute]
    if not recent:
        return []
    text = ", ".join(f"{each.reason} {each.minute:,}" for each in recent)
    style = _BAD if any(each.is_fault for each in recent) else _WARN
    return [_line((f"discarded in the last minute: {text}", style))]


# --- tables -----------------------------------------------------------------------------------------------------------


class _Column(NamedTuple):
    """A column: its heading, and functions that return the text and the style of a row's cell.

    `sort_key` is the field of `TopicLine` by which the column sorts. If `needs_width` is True, the column is shown only
    in a wide terminal.
    """

    heading: str
    text: Callable[..., str]
    style: Callable[..., str] = lambda _: ""
    sort_key: str = ""
    needs_width: bool = False


def _count_cells(field: str, style: str = "") -> tuple[Callable[..., str], Callable[..., str]]:
    """Return the functions `text` and `style` of a column of counts; the parameter `style` is for counts above 0."""
    return (lambda row: _count_text(getattr(row, field))), (lambda row: style if getattr(row, field) else _QUIET)


def _count_text(count: int | None) -> str:
    return _UNKNOWN if count is None else f"{count:,}"


def _latency(row: TopBroker | TopicLine) -> str:
    return _UNKNOWN if row.p99_ms is None else f"{duration_text(row.p50_ms)} / {duration_text(row.p99_ms)}"


_CONNECTION_STYLES: Final = {"connected": _GOOD, "failed": _BAD}
_BROKER_COLUMNS: Final = (
    _Column("BROKER", lambda row: f"{row.node} at {row.address or 'an unknown address'}"),
    _Column("CONNECTION", lambda row: str(row.connection), lambda row: _CONNECTION_STYLES.get(row.connection, "")),
    _Column("DELIVERED/S", lambda row: rate_text(row.delivered)),
    _Column("50 / 99 % WITHIN", _latency),
    _Column("IN FLIGHT", *_count_cells("in_flight"), needs_width=True),
    _Column("WAITING", *_count_cells("queued")),
    _Column("OLDEST", lambda row: duration_text(row.oldest_ms)),
    _Column("ERRORS/MIN", *_count_cells("errors_minute", _BAD), needs_width=True),
)
_TOPIC_COLUMNS: Final = (
    _Column("TOPIC", lambda row: row.topic or "(all others)", sort_key="topic"),
    _Column("DELIVERED/S", lambda row: rate_text(row.delivered), sort_key="delivered"),
    _Column("BYTES/S", lambda row: size_text(row.size), sort_key="size", needs_width=True),
    _Column("50 / 99 % WITHIN", _latency, sort_key="p99_ms"),
    _Column("IN FLIGHT", *_count_cells("in_flight"), sort_key="in_flight", needs_width=True),
    _Column("WAITING", *_count_cells("waiting"), sort_key="waiting"),
    _Column("OLDEST", lambda row: duration_text(row.oldest_ms), sort_key="oldest_ms"),
    _Column("PAUSED", *_count_cells("paused", _WARN), sort_key="paused", needs_width=True),
    _Column("ERRORS/MIN", *_count_cells("errors", _BAD), sort_key="errors", needs_width=True),
    _Column("DISCARDED", *_count_cells("discarded", _BAD), sort_key="discarded"),
)
assert tuple(column.sort_key for column in _TOPIC_COLUMNS) == SORT_KEYS


def _brokers(page: TopPage, width: int) -> RenderableType:
    if not page.brokers:
        return _line(("No broker is known yet.", _QUIET))
    table = _table(_BROKER_COLUMNS, page.brokers[:MAX_BROKERS], width)
    hidden_count = len(page.brokers) - MAX_BROKERS
    if hidden_count <= 0:
        return table
    return Group(table, _line((f"and {hidden_count} more brokers: see /brokers", _QUIET)))


def _topics(page: TopPage, selection: TopSelection, rows: int, width: int) -> RenderableType:
    shown = page.topics.shown[selection.offset : selection.offset + rows]
    if not shown:
        text = "No topic has the filter in its name." if page.topics.total else "No topic yet."
        return _line((text, _QUIET))
    return _table(_TOPIC_COLUMNS, shown, width, selection)


def _table(
    columns: Iterable[_Column], rows: Iterable[TopBroker | TopicLine], width: int, selection: TopSelection | None = None
) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), expand=True, header_style="bold reverse")
    fitting = [column for column in columns if width >= MIN_FULL_WIDTH or not column.needs_width]
    first, *further = fitting
    table.add_column(_heading(first, selection), no_wrap=True, overflow="ellipsis", ratio=1, min_width=16)
    for column in further:
        table.add_column(_heading(column, selection), no_wrap=True, overflow="ellipsis", justify="right")
    for row in rows:
        table.add_row(*(Text(printable(column.text(row)), column.style(row)) for column in fitting))
    return table


def _heading(column: _Column, selection: TopSelection | None) -> str:
    """Return the heading of a column, with a triangle if the selection sorts the topics by this column."""
    if selection is None or column.sort_key != selection.sort_key:
        return column.heading
    mark = "\N{BLACK UP-POINTING TRIANGLE}" if selection.is_ascending else "\N{BLACK DOWN-POINTING TRIANGLE}"
    return column.heading + mark
