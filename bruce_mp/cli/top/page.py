"""The parts of `/overview` that `bruce top` shows, and the selection of the topics to show."""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

from typing import Final
from urllib.parse import urlencode

import msgspec

from bruce_mp.status.pages.brokers import BrokerLine
from bruce_mp.status.pages.discards import ReasonLine
from bruce_mp.status.pages.header import Page
from bruce_mp.status.pages.topics import MAX_SHOWN, TopicLine, TopicsPart

__all__ = ["SORT_KEYS", "TopBroker", "TopPage", "TopSelection"]

SORT_KEYS: Final = (
    "topic", "delivered", "size", "p99_ms", "in_flight", "waiting", "oldest_ms", "paused", "errors", "discarded",
)  # fmt: skip
"""The fields of `TopicLine` by which topics can be sorted, in the order of the columns."""

assert set(SORT_KEYS) <= set(TopicLine.__struct_fields__)


class TopHealth(msgspec.Struct, frozen=True):
    """The sentences of `/healthz`."""

    problems: list[str]
    warnings: list[str]


class TopFlow(msgspec.Struct, frozen=True):
    """Rates in the last `seconds`: `received` and `delivered` messages, and `size` delivered bytes, per second."""

    seconds: float
    received: float
    delivered: float
    size: float


class TopBooks(msgspec.Struct, frozen=True):
    """The books; `held` counts messages by stage, and `balanced` is None if no consistent reading succeeded."""

    received: int
    delivered: int
    discarded: int
    held: dict[str, int]
    balanced: bool | None


class TopSlab(msgspec.Struct, frozen=True):
    """`size` is the size of the slab in bytes, and `in_use` the number of its bytes with unsettled messages."""

    size: int
    in_use: int


class TopLatency(msgspec.Struct, frozen=True):
    """Percentiles of the latency in a time window; None if Kafka acknowledged no message in the window."""

    p50_ms: float | None
    p99_ms: float | None


class TopDiscards(msgspec.Struct, frozen=True):
    """The discards, with a line for each reason."""

    reasons: list[ReasonLine]


class TopBroker(BrokerLine, frozen=True, kw_only=True):
    """A broker with its traffic in the last minute; `delivered` is in messages per second."""

    delivered: float
    p50_ms: float | None
    p99_ms: float | None
    errors_minute: int


class TopPage(Page, frozen=True, kw_only=True):
    """JSON of `/overview`, without the parts that do not fit into a terminal.

    `latency` has an entry for each time window, such as `minute`. `oldest_ms` is the age of the oldest held message;
    None if no message is held. `paused_count` is the number of paused scopes; None before the router's first report.
    """

    host: str
    health: TopHealth
    flow: TopFlow
    books: TopBooks
    oldest_ms: int | None
    slab: TopSlab
    latency: dict[str, TopLatency]
    brokers: list[TopBroker]
    paused_count: int | None
    topics: TopicsPart
    discards: TopDiscards


class TopSelection(msgspec.Struct, frozen=True):
    """The user's choice of topics: a filter, an order and a scroll position.

    The filter selects topics with `filter_text` in their name. `sort_key` is one of `SORT_KEYS`. `offset` is the number
    of topics above the first visible one.
    """

    filter_text: str = ""
    sort_key: str = "delivered"
    is_ascending: bool = False
    offset: int = 0

    def query(self, row_count: int) -> str:
        """Return the URL query for `row_count` visible topics and all topics above, as `/overview` takes no offset."""
        order = "ascending" if self.is_ascending else "descending"
        limit = min(MAX_SHOWN, self.offset + row_count)
        return urlencode({"topic": self.filter_text, "sort": self.sort_key, "order": order, "limit": limit})

    def move_sort(self, step: int) -> "TopSelection":
        """Sort by the column that is `step` columns to the right; the first column follows the last one.

        Names are sorted in ascending order, other columns in descending order.
        """
        sort_key = SORT_KEYS[(SORT_KEYS.index(self.sort_key) + step) % len(SORT_KEYS)]
        return msgspec.structs.replace(self, sort_key=sort_key, is_ascending=sort_key == "topic", offset=0)

    def reverse(self) -> "TopSelection":
        return msgspec.structs.replace(self, is_ascending=not self.is_ascending, offset=0)

    def filter(self, filter_text: str) -> "TopSelection":
        return msgspec.structs.replace(self, filter_text=filter_text, offset=0)

    def scroll(self, line_count: int, matching_count: int) -> "TopSelection":
        """Scroll down by `line_count`, or up if it is negative; `matching_count` topics pass the filter."""
        largest_offset = max(0, min(matching_count, MAX_SHOWN) - 1)
        return msgspec.structs.replace(self, offset=max(0, min(largest_offset, self.offset + line_count)))
