"""The page `/brokers`: each broker with its connection and queued messages, and the paused scopes.

Each broker that leads partitions has a dispatcher. The messages of a dispatcher are counted in the slab. The number of
messages that wait for a broker in the router, and nearly all other fields, come from the reports that the dispatchers
and the router send once a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import Segment, arrived_ms, is_current
from bruce_mp.status.pages.header import Page, header_lines, read_header
from bruce_mp.status.pages.stalls import partition_text
from bruce_mp.status.pages.text import stamp, topic_text
from bruce_mp.telemetry.books import row_counters
from bruce_mp.telemetry.broker_status import ALL_PARTITIONS, NO_LEADER
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.held import HeldGroup, HeldSums, sum_held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bruce_mp.slab.file import Slab
    from bruce_mp.status.broker_status import ClusterReport
    from bruce_mp.telemetry.broker_status import BrokerStatus, PausedScope
    from bruce_mp.telemetry.stalls import PartitionStall

__all__ = [
    "BrokerLine",
    "BrokersPage",
    "PartitionErrorLine",
    "PausedScopeLine",
    "brokers_text",
    "dispatcher_slots",
    "read_brokers",
]

_STATES_WITH_SLOT: Final = frozenset(
    {
        RunState.ASSIGNED,
        RunState.ASSIGNED_SENT,
        RunState.QUEUED,
        RunState.RETURNED,
        RunState.RETURNED_SENT,
        RunState.IN_FLIGHT,
    }
)
"""States in which a state word holds the slot of a dispatcher."""
_RETRY_COUNTERS: Final = (Counter.ConnectorGotResendAck, Counter.ConnectorGotPauseAck)
_DELIVERY_TEXTS: Final = {None: "not known yet", True: "exactly once", False: "at least once"}
UNKNOWN: Final = "unknown"
_NO_LEADER_REASON: Final = "the cluster reports none: check the brokers that have its replicas"


class PartitionErrorLine(msgspec.Struct, frozen=True):
    """The retriable error in the last response for a partition. `since` is in seconds since the epoch."""

    topic: str
    partition: int
    error: str
    since: int


class BrokerLine(msgspec.Struct, frozen=True):
    """A broker from the metadata, or a broker that has left while its dispatcher still exists.

    `in_flight` messages are sent and await a response. `queued` messages wait in the dispatcher or, while the broker or
    a partition is paused, in the router. Messages in the router count only after the oldest message of their partition
    has waited for 500 ms. `oldest_ms` is the age of the oldest message in flight or queued, or None if there is none.
    `retries` counts the responses that caused messages to be sent again. `troubles` lists the partitions for which the
    last response had an error. For a broker that leads no partition, `dispatcher` is None and `connection` is unknown.
    Times are in seconds since the epoch; `last_error_at` is None if there was no error.
    """

    node: int
    address: str
    dispatcher: str | None = None
    connection: str = UNKNOWN
    connection_since: int | None = None
    delivery: str = _DELIVERY_TEXTS[None]
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

    `scope` is `broker NODE`, `partition TOPIC-NUMBER` or `topic TOPIC`, or `dispatcher-SLOT` after its broker has left.
    """

    scope: str
    state: str
    since: int
    reason: str


class BrokersPage(Page, frozen=True, kw_only=True):
    """JSON of `/brokers`.

    `metadata_failing_since` is in seconds since the epoch, or None if the last metadata fetch succeeded. `paused` lists
    at most 100 paused scopes; `paused_count` is the number of all paused scopes, or None without a recent report of the
    router.
    """

    metadata_failing_since: int | None
    metadata_error: str
    brokers: list[BrokerLine]
    paused: list[PausedScopeLine]
    paused_count: int | None


def read_brokers(
    slab: Slab, cluster: ClusterReport, groups: Iterable[HeldGroup], now_ms: int, steady_now_ms: int
) -> BrokersPage:
    """Build the page from the reports, the process rows of `slab`, and `groups`, the held messages.

    `now_ms` is the present time of the wall clock, `steady_now_ms` that of the steady clock.
    """

    def to_epoch_s(steady_ms: int) -> int:
        return (steady_ms + now_ms - steady_now_ms) // 1000

    router, slot_by_node = cluster.router, dict(dispatcher_slots(slab))
    held = _held_by_node(slab, groups, slot_by_node, router.stalls if router else ())
    addresses, brokers = dict(_known_addresses(cluster)), []
    for node in sorted({*addresses, *slot_by_node}):
        sums, slot = held.get(node, HeldSums()), slot_by_node.get(node)
        broker = BrokerLine(
            node,
            addresses.get(node, ""),
            in_flight=sums.in_flight,
            queued=sums.waiting,
            oldest_ms=sums.oldest_ms(steady_now_ms),
        )
        if slot is not None:
            counters = row_counters(slab, lay.ROW_FIRST_DISPATCHER + slot)
            retries = sum(counters[counter] for counter in _RETRY_COUNTERS)
            broker = msgspec.structs.replace(broker, dispatcher=f"dispatcher-{slot}", retries=retries)
            status = cluster.brokers.get(slot)
            if status is not None and status.node == node:  # the last report may be about the slot's previous broker
                broker = _with_status(broker, status, to_epoch_s)
        brokers.append(broker)
    failing_since_ms = router.failing_since_ms if router else None
    return BrokersPage(
        **read_header(slab, now_ms),
        metadata_failing_since=None if failing_since_ms is None else to_epoch_s(failing_since_ms),
        metadata_error=router.error if router else "",
        brokers=brokers,
        paused=[_paused_scope(scope, cluster, slot_by_node, to_epoch_s) for scope in router.paused] if router else [],
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
    for slot in slab.geometry.dispatcher_slots:
        at = slab.row_at(lay.ROW_FIRST_DISPATCHER + slot) + lay.ROW_NODE
        if node_plus_1 := slab.words[at >> 2]:  # 0 marks a free slot
            yield node_plus_1 - 1, slot


def _held_by_node(
    slab: Slab, groups: Iterable[HeldGroup], slot_by_node: dict[int, int], router_stalls: Iterable[PartitionStall]
) -> dict[int | None, HeldSums]:
    """Sum, for each broker, the messages in its dispatcher, and the messages in the router that wait for the broker."""
    node_by_slot = {slot: node for node, slot in slot_by_node.items()}
    with_slot = (group for group in groups if group.state in _STATES_WITH_SLOT)
    held: dict[int | None, HeldSums] = sum_held(with_slot, lambda group: node_by_slot.get(group.holder))
    for stall in router_stalls:
        in_router = HeldGroup(stall.topic, RunState.ROUTED, 0, stall.message_count, _arrived_ms(slab, stall))
        held.setdefault(stall.node, HeldSums()).add(in_router)
    return held


def _arrived_ms(slab: Slab, stall: PartitionStall) -> int:
    """Return the arrival of the oldest message. If it has left the slab, return the time at which a sample found it."""
    segment = Segment(*stall.oldest_message, records=1, payload=0)  # the arrival does not depend on the payload
    return arrived_ms(slab, segment) if is_current(slab, segment) else stall.since_ms


def _with_status(broker: BrokerLine, status: BrokerStatus, to_epoch_s: Callable[[int], int]) -> BrokerLine:
    return msgspec.structs.replace(
        broker,
        connection=status.connection,
        connection_since=to_epoch_s(status.since_ms),
        delivery=_DELIVERY_TEXTS[status.exactly_once],
        requests_in_flight=status.requests_in_flight,
        last_error=status.last_error,
        last_error_at=to_epoch_s(status.last_error_ms) if status.last_error_ms else None,
        troubles=[
            PartitionErrorLine(topic_text(each.topic), each.partition, each.error, to_epoch_s(each.since_ms))
            for each in status.partition_errors
        ],
    )


def _paused_scope(
    scope: PausedScope, cluster: ClusterReport, slot_by_node: dict[int, int], to_epoch_s: Callable[[int], int]
) -> PausedScopeLine:
    since = to_epoch_s(scope.since_ms)
    if scope.topic:
        kind = "topic" if scope.partition == ALL_PARTITIONS else "partition"
        reason = cluster.last_errors.get((scope.topic, scope.partition), "its leader moved, or its broker is paused")
        reason = _NO_LEADER_REASON if scope.state == NO_LEADER else reason
        name = f"{kind} {partition_text(scope.topic, scope.partition)}"
        return PausedScopeLine(name, scope.state, since, reason)
    nodes = (node for node, slot in slot_by_node.items() if slot == scope.slot)
    name = next((f"broker {node}" for node in nodes), f"dispatcher-{scope.slot}")
    status = cluster.brokers.get(scope.slot) if scope.slot is not None else None
    return PausedScopeLine(name, scope.state, since, (status and status.last_error) or UNKNOWN)


# --- text form --------------------------------------------------------------------------------------------------------


def brokers_text(page: BrokersPage) -> str:
    """Render one block for each broker, then one line for each paused scope."""
    lines = header_lines(page)
    if page.metadata_failing_since is not None:
        lines += [f"metadata requests fail since: {stamp(page.metadata_failing_since)}: {page.metadata_error}", ""]
    for broker in page.brokers:
        lines += [*_broker_lines(broker), ""]
    lines.append(f"paused: {'not known yet' if page.paused_count is None else page.paused_count}")
    lines += [f"    {each.scope}: {each.state} since {stamp(each.since)}: {each.reason}" for each in page.paused]
    return "\n".join([*lines, ""])


def _broker_lines(broker: BrokerLine) -> Iterator[str]:
    yield f"broker {broker.node} at {broker.address or 'an unknown address'}"
    yield f"    dispatcher: {broker.dispatcher or 'none: it leads no partition'}"
    since = "" if broker.connection_since is None else f" since {stamp(broker.connection_since)}"
    yield f"    connection: {broker.connection}{since}"
    yield f"    delivery: {broker.delivery}"
    yield f"    requests in flight: {broker.requests_in_flight}"
    yield f"    in flight: {broker.in_flight}"
    yield f"    queued: {broker.queued}"
    yield f"    oldest message ms: {'-' if broker.oldest_ms is None else broker.oldest_ms}"
    yield f"    retries: {broker.retries}"
    if broker.last_error_at is not None:
        yield f"    last error: {stamp(broker.last_error_at)}: {broker.last_error}"
    for each in broker.troubles:
        yield f"    trouble: partition {each.topic}-{each.partition}: {each.error} since {stamp(each.since)}"
