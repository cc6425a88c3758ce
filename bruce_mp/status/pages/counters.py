"""The page `/counters`: every counter of the daemon, summed over its processes.

The page also lists the counters that are 0, because monitors compare two readings name by name. It also lists further
names that monitors written for Dory and Bruce read: the values of `DERIVED` are sums of other counters, and the values
of `ALWAYS_ZERO` are always 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.errors import DiscardReason
from bruce_mp.protocol.kafka.error_actions import ERROR_TABLE
from bruce_mp.slab import layout as lay
from bruce_mp.status.pages.header import Page, header_lines, read_header
from bruce_mp.status.pages.processes import row_name
from bruce_mp.telemetry.books import row_counters
from bruce_mp.telemetry.counters import UNKNOWN_RESPONSES, Counter, discarded, response_counter
from bruce_mp.telemetry.latency_histogram import BUCKET_COUNT, bucket_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bruce_mp.slab.file import Slab

__all__ = ["ALWAYS_ZERO", "DERIVED", "CounterLine", "CountersPage", "counters_text", "read_counters"]

DERIVED: Final[Mapping[str, tuple[int, ...]]] = {
    "MsgCreate": (Counter.MsgReceived,),
    "MsgDestroy": (Counter.MsgDelivered, *map(discarded, DiscardReason)),
    "MsgUnprocessedDestroy": (discarded(DiscardReason.BUG),),
    "RouteSingleAnyPartitionMsg": (Counter.RouteAnyPartitionMsg,),
    "RouteSinglePartitionKeyMsg": (Counter.RoutePartitionKeyMsg,),
    "TopicHasNoAvailablePartitions": (Counter.DiscardNoAvailablePartition,),
    "RefreshMetadataSuccess": (Counter.MetadataChangedOnRefresh, Counter.MetadataUnchangedOnRefresh),
    "MetadataUpdated": (Counter.MetadataChangedOnRefresh,),
    "MetadataResponseRead1LostTcpConnection": (Counter.MetadataResponseReadLostTcpConnection,),
    "MetadataResponseRead1TimedOut": (Counter.MetadataResponseReadTimeout,),
}
"""Names that monitors for Dory and Bruce read, and the numbers of the counters that sum up to the value."""

_METADATA_FAULTS: Final = (
    *("NegativeBrokerCount", "NegativeBrokerNodeId", "BadBrokerHostLen", "BadBrokerPort", "NegativeTopicCount"),
    *("BadTopicNameLen", "NegativePartitionCount", "NegativePartitionId", "InvalidLeaderNodeId"),
    *("NegativePartitionReplicaCount", "NegativeReplicaNodeId", "NegativePartitionCaughtUpReplicaCount"),
    "NegativeCaughtUpReplicaNodeId",
)

ALWAYS_ZERO: Final = (
    *(f"MetadataResponse{fault}" for fault in _METADATA_FAULTS),
    *("ShortMetadataResponse", "BadMetadataResponseSize", "BadKafkaResponseSize", "BadProduceResponseSize"),
    *("BadMetadataContent", "MetadataResponseHasExtraJunk", "ReadMetadataResponse2Fail"),
    *("MetadataResponseRead2LostTcpConnection", "MetadataResponseRead2TimedOut", "MetadataResponseRead2UnexpectedEnd"),
    *("MetadataHasEmptyBrokerList", "MetadataSanityCheckFail", "CorrelationIdMismatch"),
    *("ProduceResponseBadPartitionCount", "ProduceResponseBadTopicNameLength", "ProduceResponseBadTopicCount"),
    *("ProduceResponseUnexpectedTopic", "ProduceResponseUnexpectedPartition"),
    *("ProduceResponseShortPartitionList", "ProduceResponseShortTopicList"),
    *("SendMetadataRequestFail", "SendMetadataRequestLostTcpConnection"),
    *("StreamClientWorkerStdException", "StreamClientWorkerUnknownException"),
    *("BugDispatchBatchOutOfRangeIndex", "BugDispatchMsgOutOfRangeIndex", "BugGetAckWaitQueueOutOfRangeIndex"),
    *("BugAllTopicsEmpty", "BugMsgListMultipleTopics", "BugMsgSetEmpty", "BugMultiPartitionGroupEmpty"),
    *("BugProduceRequestEmpty", "ConnectorTruncateLongTimeout"),
    *("MongooseUrlDecodeError", "MongooseUnknownException"),
)
"""Names that monitors for Dory and Bruce read, with values that are always 0.

The event that such a counter would count cannot occur, or BadMetadataResponse or BadProduceResponse counts it.
"""

_LEGACY_ACK_NAMES: Final = {
    -1: "AckErrorUnknown",
    0: "AckOk",
    6: "AckErrorNotLeaderForPartition",
    14: "AckErrorGroupLoadInProgress",
    15: "AckErrorGroupCoordinatorNotAvailable",
    16: "AckErrorNotCoordinatorForGroup",
}
"""Dory's counter names for the error codes that have other names in Kafka."""

_LOCATIONS: Final = (
    (0, "[books]"),
    (64, "[input]"),
    (96, "[router]"),
    (124, "[input]"),
    (131, "[router]"),
    (140, "[input]"),
    (160, "[dispatcher]"),
    (352, "[supervisor, status]"),
    (368, "[dispatcher]"),
)
"""(first number, location) of each range of counters; the location is the part of the daemon that counts."""
_LEGACY_LOCATION: Final = "[old names]"
_UNLISTED: Final = frozenset({Counter.AckErrorFirst, Counter.AckDelayFirst, Counter.StreamConnections})
"""Members of `Counter` that are not on the page under their names.

AckErrorFirst and AckDelayFirst each begin a range; the page gives the counters of the range other names.
StreamConnections may fall, but monitors report each fall of a counter as an error.
"""


class CounterLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A counter. If the request asks for it, `processes` maps names of processes to their parts of `value`."""

    location: str
    name: str
    value: int
    processes: dict[str, int] = {}


class CountersPage(Page, frozen=True, kw_only=True):
    """JSON of `/counters`."""

    counters: list[CounterLine]


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _named_counters() -> Iterator[tuple[int, str]]:
    """Yield (number, name) for each counter on the page."""
    for counter in Counter:
        if counter not in _UNLISTED:
            yield counter, counter.name
    for index in range(BUCKET_COUNT):
        yield Counter.AckDelayFirst + index, bucket_name(index)
    for reason in DiscardReason:
        yield discarded(reason), "MsgDiscarded" + _camel(reason.name)
    for code, row in ERROR_TABLE.items():
        yield response_counter(code), _LEGACY_ACK_NAMES.get(code) or "AckError" + _camel(row.name)
    yield UNKNOWN_RESPONSES, "AckErrorUndocumented"


_COUNTERS: Final = tuple(sorted(_named_counters()))


def read_counters(slab: Slab, now_ms: int, *, by_process: bool = False) -> CountersPage:
    """Build the page. If `by_process` is True, fill `CounterLine.processes`."""
    # The rows of inputs are read last, so that no message seems settled but not yet received.
    others = [row for row in range(slab.geometry.rows) if row not in lay.INPUT_ROWS]
    rows = {row: row_counters(slab, row) for row in (*others, *lay.INPUT_ROWS)}

    def line(location: str, name: str, numbers: tuple[int, ...]) -> CounterLine:
        """Return the line of the sum of the counters with these numbers."""
        by_row = {row: sum(counters[number] for number in numbers) for row, counters in rows.items()}
        processes = {row_name(row): value for row, value in by_row.items() if value} if by_process else {}
        return CounterLine(location, name, sum(by_row.values()), processes)

    lines = [line(_location(number), name, (number,)) for number, name in _COUNTERS]
    lines += [line(_LEGACY_LOCATION, name, numbers) for name, numbers in DERIVED.items()]
    lines += [CounterLine(_LEGACY_LOCATION, name, 0) for name in ALWAYS_ZERO]
    return CountersPage(**read_header(slab, now_ms), counters=lines)


def _location(number: int) -> str:
    return [location for first_number, location in _LOCATIONS if number >= first_number][-1]


def counters_text(page: CountersPage) -> str:
    lines = [f"{line.location}.{line.name}={line.value}" for line in page.counters]
    return "\n".join([*header_lines(page), *lines, ""])
