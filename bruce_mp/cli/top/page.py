"""The part of `/overview` that `bruce top` shows, and the selection of its topics."""

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
"""Fields of a topic to sort by, in the order of the columns."""

assert set(SORT_KEYS) <= set(TopicLine.__struct_fields__)


class TopHealth(msgspec.Struct, frozen=True):
    """Sentences of `/healthz`."""

    problems: list[str]
    warnings: list[str]


class TopFlow(msgspec.Struct, frozen=True):
    """Rates of the last `seconds`: messages per second, and in `size` bytes per second."""

    seconds: float
    received: float
    delivered: float
    size: float


class TopBooks(msgspec.Struct, frozen=True):
    """The books; `held` is by stage. `balanced` is None without a consistent reading."""

    received: int
    delivered: int
    discarded: int
    held: dict[str, int]
    balanced: bool | None


class TopSlab(msgspec.Struct, frozen=True):
    """Bytes of the slab, and those of its unsettled messages."""

    size: int
    in_use: int


class TopLatency(msgspec.Struct, frozen=True):
    """Percentiles of the latency; None without an acknowledgement."""

    p50_ms: float | None
    p99_ms: float | None


class TopDiscards(msgspec.Struct, frozen=True):
    """Discards by reason."""

    reasons: list[ReasonLine]


class TopBroker(BrokerLine, frozen=True, kw_only=True):
    """A broker with its traffic of the last minute."""

    delivered: float
    p50_ms: float | None
    p99_ms: float | None
    errors_minute: int


class TopPage(Page, frozen=True, kw_only=True):
    """JSON of `/overview`, without the parts that do not fit into a terminal; `latency` is by window."""

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
    """Filter and order of the topics, and with `offset` the number of lines above the view.

    `text` is a part of the names, and `sort` one of `SORT_KEYS`.
    """

    text: str = ""
    sort: str = "delivered"
    is_ascending: bool = False
    offset: int = 0

    def query(self, rows: int) -> str:
        """Return the query for all topics to the last of `rows` visible ones, because `/overview` takes no offset."""
        order = "ascending" if self.is_ascending else "descending"
        limit = min(MAX_SHOWN, self.offset + rows)
        return urlencode({"topic": self.text, "sort": self.sort, "order": order, "limit": limit})

    def move_sort(self, step: int) -> "TopSelection":
        """Sort by the column `step` columns to the right, cyclically: names ascending, other columns descending."""
        sort = SORT_KEYS[(SORT_KEYS.index(self.sort) + step) % len(SORT_KEYS)]
        return msgspec.structs.replace(self, sort=sort, is_ascending=sort == "topic", offset=0)

    def reverse(self) -> "TopSelection":
        return msgspec.structs.replace(self, is_ascending=not self.is_ascending, offset=0)

    def filter(self, text: str) -> "TopSelection":
        return msgspec.structs.replace(self, text=text, offset=0)

    def scroll(self, lines: int, matching: int) -> "TopSelection":
        """Scroll down by `lines`, negative for up, within the number of `matching` topics."""
        last = max(0, min(matching, MAX_SHOWN) - 1)
        return msgspec.structs.replace(self, offset=max(0, min(last, self.offset + lines)))
