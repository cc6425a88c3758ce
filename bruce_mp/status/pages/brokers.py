"""The page `/brokers`: each broker with its connection and queued messages, and the paused scopes.

The messages of a dispatcher are counted in the slab. All other fields come from the reports that dispatchers and the
router send once a second, also the messages that wait in the router while their broker is paused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.status.pages.header import Page, header_lines, read_header
from bruce_mp.status.pages.text import stamp, topic_text
from bruce_mp.telemetry.broker_status import ALL_PARTITIONS, NO_LEADER
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bruce_mp.slab.file import Slab
    from bruce_mp.status.broker_status import ClusterReport
    from bruce_mp.status.slab_snapshot import HeldGroup
    from bruce_mp.telemetry.broker_status import BrokerStatus, PausedScope, RouterStatus
    from bruce_mp.telemetry.stalls import PartitionStall

__all__ = [
    "BrokerLine",
    "BrokersPage",
    "PartitionErrorLine",
    "PausedScopeLine",
    "brokers_plain",
    "dispatcher_slots",
    "read_brokers",
]

_WITH_DISPATCHERS: Final = frozenset(
    {
        RunState.ASSIGNED,
        RunState.ASSIGNED_SENT,
        RunState.QUEUED,
        RunState.RETURNED,
        RunState.RETURNED_SENT,
        RunState.IN_FLIGHT,
    }
)
_RETRIES: Final = (Counter.ConnectorGotResendAck, Counter.ConnectorGotPauseAck)
_DELIVERY: Final = {None: "not known yet", True: "exactly once", False: "at least once"}
UNKNOWN: Final = "unknown"
_NO_LEADER: Final = "the cluster reports none: check the brokers that have its replicas"


class PartitionErrorLine(msgspec.Struct, frozen=True):
    """The retriable error in the last response for a partition. `since` is in seconds since the epoch."""

    topic: str
    partition: int
    error: str
    since: int


class BrokerLine(msgspec.Struct, frozen=True):
    """A broker from the metadata, or one for which a dispatcher still holds messages.

    `troubles` lists the partitions whose last response was an error. `in_flight` messages are sent and await a
    response; `queued` messages wait for the broker, in its dispatcher or, while the broker or a partition is paused, in
    the router. `oldest_ms` is the age of the oldest message of both groups, or None. A broker that leads no partition
    has no dispatcher: `dispatcher` is None and `connection` is unknown.
    """

    node: int
    address: str
    dispatcher: str | None = None
    connection: str = UNKNOWN
    connection_since: int | None = None
    delivery: str = _DELIVERY[None]
    requests_in_flight: int = 0
    in_flight: int = 0
    queued: int = 0
    oldest_ms: int | None = None
    retries: int = 0
    last_error: str = ""
    last_error_at: int | None = None
    troubles: list[PartitionErrorLine] = []


class PausedScopeLine(msgspec.Struct, frozen=True):
    """A paused scope: its state, the start of the pause in seconds since the epoch, and the reason.

    `scope` is `broker NODE`, `partition TOPIC-NUMBER` or `topic TOPIC`.
    """

    scope: str
    state: str
    since: int
    reason: str


class BrokersPage(Page, frozen=True, kw_only=True):
    """JSON of `/brokers`.

    `metadata_failing_since` (s) is None while brokers answer metadata requests. `paused` is bounded; `paused_count`
    counts all paused scopes, and is None before the router's first report.
    """

    metadata_failing_since: int | None
    metadata_error: str
    brokers: list[BrokerLine]
    paused: list[PausedScopeLine]
    paused_count: int | None


class _WallClock(NamedTuple):
    """Conversion of times in ms on the steady clock to seconds since the epoch."""

    offset_ms: int

    def __call__(self, steady_ms: int) -> int:
        return (steady_ms + self.offset_ms) // 1000

    def optional(self, steady_ms: int | None) -> int | None:
        return None if steady_ms is None else self(steady_ms)


class _SlotCounts:
    """Message counts of one dispatcher slot."""

    __slots__ = ("in_flight", "oldest_ms", "queued")

    def __init__(self) -> None:
        self.in_flight = self.queued = 0
        self.oldest_ms: int | None = None

    def add(self, group: HeldGroup) -> None:
        if group.state is RunState.IN_FLIGHT:
            self.in_flight += group.messages
        else:
            self.queued += group.messages
        self.oldest_ms = group.arrived_ms if self.oldest_ms is None else min(self.oldest_ms, group.arrived_ms)


def read_brokers(
    slab: Slab, cluster: ClusterReport, groups: Iterable[HeldGroup], now_ms: int, steady_now_ms: int
) -> BrokersPage:
    """Build the page from a slab snapshot.

    `now_ms` is the wall clock; `steady_now_ms` is the monotonic clock of arrivals and reports.
    """
    wall_s = _WallClock(now_ms - steady_now_ms)
    held = _count_held(groups)
    slots = dict(dispatcher_slots(slab))
    known = dict(_known_addresses(cluster))
    lines = [BrokerLine(node, address) for node, address in known.items() if node not in slots]
    for node, slot in slots.items():
        line = _line(slab, node, known.get(node, ""), slot, held=held.get(slot, _SlotCounts()), now_ms=steady_now_ms)
        status = cluster.brokers.get(slot)
        lines.append(line if status is None or status.node != node else _with_status(line, status, wall_s))
    router = cluster.router
    return BrokersPage(
        **read_header(slab, now_ms),
        metadata_failing_since=wall_s.optional(router.failing_since_ms) if router else None,
        metadata_error=router.error if router else "",
        brokers=_with_router_messages(sorted(lines, key=lambda line: line.node), router, steady_now_ms),
        paused=[_paused_line(scope, cluster, slots, wall_s) for scope in router.paused] if router else [],
        paused_count=router.paused_count if router else None,
    )


def _known_addresses(cluster: ClusterReport) -> Iterator[tuple[int, str]]:
    """Yield (node, address) for each broker that a dispatcher or the router reported."""
    for status in cluster.brokers.values():
        yield status.node, f"{status.host}:{status.port}"
    if cluster.router is not None:
        for node, host, port in cluster.router.brokers:
            yield node, f"{host}:{port}"


def dispatcher_slots(slab: Slab) -> Iterator[tuple[int, int]]:
    """Yield (node, slot) for each broker that has a dispatcher slot."""
    for slot in range(lay.DISPATCHER_SLOTS):
        at = slab.row_at(lay.ROW_FIRST_DISPATCHER + slot) + lay.ROW_NODE
        if slab.words[at >> 2]:
            yield slab.words[at >> 2] - 1, slot


def _count_held(groups: Iterable[HeldGroup]) -> dict[int, _SlotCounts]:
    held: dict[int, _SlotCounts] = {}
    for group in groups:
        if group.state in _WITH_DISPATCHERS:
            held.setdefault(group.holder, _SlotCounts()).add(group)
    return held


def _line(slab: Slab, node: int, address: str, slot: int, *, held: _SlotCounts, now_ms: int) -> BrokerLine:
    return BrokerLine(
        node,
        address,
        dispatcher=f"dispatcher-{slot}",
        in_flight=held.in_flight,
        queued=held.queued,
        oldest_ms=None if held.oldest_ms is None else max(0, now_ms - held.oldest_ms),
        retries=_retries(slab, slot),
    )


def _with_router_messages(lines: list[BrokerLine], router: RouterStatus | None, now_ms: int) -> list[BrokerLine]:
    """Add the messages that wait in the router for each broker, as during its pause."""
    waiting: dict[int | None, list[PartitionStall]] = {}
    for stall in router.stalls if router else ():
        waiting.setdefault(stall.node, []).append(stall)
    return [_with_stalls(line, waiting[line.node], now_ms) if line.node in waiting else line for line in lines]


def _with_stalls(line: BrokerLine, stalls: list[PartitionStall], now_ms: int) -> BrokerLine:
    oldest_ms = max(0, now_ms - min(stall.since_ms for stall in stalls), line.oldest_ms or 0)
    queued = line.queued + sum(stall.messages for stall in stalls)
    return msgspec.structs.replace(line, queued=queued, oldest_ms=oldest_ms)


def _retries(slab: Slab, slot: int) -> int:
    start = (slab.row_at(lay.ROW_FIRST_DISPATCHER + slot) + lay.ROW_COUNTERS) >> 3
    return sum(slab.longs[start + counter] for counter in _RETRIES)


def _with_status(line: BrokerLine, status: BrokerStatus, wall_s: _WallClock) -> BrokerLine:
    return msgspec.structs.replace(
        line,
        connection=status.connection,
        connection_since=wall_s(status.since_ms),
        delivery=_DELIVERY[status.exactly_once],
        requests_in_flight=status.requests_in_flight,
        last_error=status.last_error,
        last_error_at=wall_s(status.last_error_ms) if status.last_error_ms else None,
        troubles=[
            PartitionErrorLine(topic_text(each.topic), each.partition, each.error, wall_s(each.since_ms))
            for each in status.partition_errors
        ],
    )


def _paused_line(
    scope: PausedScope, cluster: ClusterReport, slots: dict[int, int], wall_s: _WallClock
) -> PausedScopeLine:
    since = wall_s(scope.since_ms)
    if scope.topic and scope.state == NO_LEADER:
        return PausedScopeLine(_scope_text(scope), scope.state, since, _NO_LEADER)
    if scope.topic:
        reason = cluster.reasons.get((scope.topic, scope.partition), "its leader moved, or its broker is paused")
        return PausedScopeLine(_scope_text(scope), scope.state, since, reason)
    node = next((node for node, slot in slots.items() if slot == scope.slot), -1)
    status = cluster.brokers.get(scope.slot) if scope.slot is not None else None
    return PausedScopeLine(f"broker {node}", scope.state, since, (status and status.last_error) or UNKNOWN)


def _scope_text(scope: PausedScope) -> str:
    topic = topic_text(scope.topic)
    return f"topic {topic}" if scope.partition == ALL_PARTITIONS else f"partition {topic}-{scope.partition}"


# --- plain ------------------------------------------------------------------------------------------------------------


def brokers_plain(page: BrokersPage) -> str:
    """Render one block for each broker, then one line for each paused scope."""
    lines = header_lines(page)
    if page.metadata_failing_since is not None:
        lines += [f"metadata requests fail since: {stamp(page.metadata_failing_since)}: {page.metadata_error}", ""]
    for broker in page.brokers:
        lines += [*_broker_lines(broker), ""]
    lines.append(f"paused: {'not known yet' if page.paused_count is None else page.paused_count}")
    lines += [f"    {each.scope}: {each.state} since {stamp(each.since)}: {each.reason}" for each in page.paused]
    return "\n".join([*lines, ""])


def _broker_lines(line: BrokerLine) -> Iterable[str]:
    yield f"broker {line.node} at {line.address or 'an unknown address'}"
    yield f"    dispatcher: {line.dispatcher or 'none: it leads no partition'}"
    since = "" if line.connection_since is None else f" since {stamp(line.connection_since)}"
    yield f"    connection: {line.connection}{since}"
    yield f"    delivery: {line.delivery}"
    yield f"    requests in flight: {line.requests_in_flight}"
    yield f"    in flight: {line.in_flight}"
    yield f"    queued: {line.queued}"
    yield f"    oldest message ms: {'-' if line.oldest_ms is None else line.oldest_ms}"
    yield f"    retries: {line.retries}"
    if line.last_error_at is not None:
        yield f"    last error: {stamp(line.last_error_at)}: {line.last_error}"
    for each in line.troubles:
        yield f"    trouble: partition {each.topic}-{each.partition}: {each.error} since {stamp(each.since)}"
