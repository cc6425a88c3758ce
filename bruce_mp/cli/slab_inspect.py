"""`bruce slab inspect`: summarize a slab as text or JSON.

A running daemon changes its slab during the inspection, so the figures may be inconsistent.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.cli.slab_export import compare_with_books
from bruce_mp.config.sizes import format_size
from bruce_mp.errors import ExitCode
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import lock_shared
from bruce_mp.slab.salvage import Salvage
from bruce_mp.status.pages.processes import row_name
from bruce_mp.status.pages.text import topic_text
from bruce_mp.telemetry.books import Books, balance_line
from bruce_mp.telemetry.clock import utc_text, wall_ms
from bruce_mp.telemetry.logs import plural
from bruce_mp.telemetry.stages import STAGE_OF_STATE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.salvage import SalvagedRecord

__all__ = ["Inspection", "inspect"]

IDEMPOTENCE: Final = {
    0: "not known yet",
    1: "supported by the brokers",
    2: "not supported by the brokers",
    3: "not known yet for the new cluster",
}
"""The text for each value of SUPER_IDEMPOTENCE; the value is 3 while the daemon moves to another Kafka cluster."""


class TopicHeld(msgspec.Struct):
    """The held messages of a topic.

    `held` is their number by stage, `messages` their number in all stages, and `bytes` the length of their keys, values
    and headers. `sent` is the number of messages in batches that were built: Kafka may have these messages. `retries`
    (`attempts` in the JSON) is the largest number of retries of a message. `oldest_ms` and `newest_ms` are timestamps
    of the clients, in ms since the epoch; None before the first message.
    """

    topic: str
    held: dict[str, int]
    messages: int = 0
    bytes: int = 0
    sent: int = 0
    retries: int = msgspec.field(default=0, name="attempts")
    oldest_ms: int | None = None
    newest_ms: int | None = None


class LastProcess(msgspec.Struct, frozen=True):
    """The last process that used a process row; `pid` is 0 after an orderly end. Times are in ms since the epoch."""

    name: str
    pid: int
    incarnation: int
    started_ms: int
    heartbeat_ms: int


class LandingUsage(msgspec.Struct, frozen=True):
    """The number of datagrams in the landing zone.

    `pending` is the number of datagrams without a record, and `bytes` the total length of these pending datagrams.
    """

    datagrams: int
    pending: int
    bytes: int


class ChunkUsage(msgspec.Struct, frozen=True):
    """The numbers of free, used and damaged chunks; `bytes_each` is the size of a chunk."""

    bytes_each: int
    free: int
    used: int
    damaged: int


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """JSON of `bruce slab inspect`.

    `in_use` is True for the slab of a running daemon, which changes the figures during the inspection. `topic_table`,
    `partition_table` and `broker_table` are the numbers of entries for which these tables have room. `damage` has a
    sentence for each damaged part.
    """

    file: str
    bytes: int
    in_use: bool
    layout_version: int
    created_ms: int
    age_ms: int
    topic_table: int
    partition_table: int
    broker_table: int
    landing_slots: int
    landing_slot_bytes: int
    producer_id: int
    idempotence: str
    processes: list[LastProcess]
    books: Books
    chunks: ChunkUsage
    topics: list[TopicHeld]
    landing: LandingUsage
    damage: list[str]


def inspect(path: Path, *, as_json: bool) -> int:
    """Print a summary of the slab at `path`. Return the exit status: 0, or 1 if a part is damaged."""
    was_in_use = _is_in_use(path)
    with closing(Salvage(path, is_live=was_in_use)) as salvage:
        inspection = _read(salvage, was_in_use=was_in_use)
    print(msgspec.json.format(msgspec.json.encode(inspection)).decode() if as_json else "\n".join(_report(inspection)))
    return ExitCode.SETUP if inspection.damage else ExitCode.OK  # SETUP also stands for damage


def _is_in_use(path: Path) -> bool:
    """Return True if a daemon holds the lock of the slab. Release our own lock, so that a daemon can start."""
    descriptor = lock_shared(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


# --- reading ---------------------------------------------------------------------------------------------------------


def _read(salvage: Salvage, *, was_in_use: bool) -> Inspection:
    slab = salvage.slab
    created_ms = slab.read_signed(lay.SUPER_CREATED_MS)
    books, topics, landing = count_books(slab), _summarize_topics(salvage), _summarize_landing_zone(salvage)
    chunks = ChunkUsage(lay.CHUNK_BYTES, *salvage.count_chunks())
    # A daemon may have started during the reading; it changes the slab as well.
    in_use = was_in_use or _is_in_use(slab.path)
    differences = [] if in_use else compare_with_books(salvage, sum(topic.messages for topic in topics))
    return Inspection(
        file=os.fsencode(slab.path).decode("utf-8", "backslashreplace"),
        bytes=slab.path.stat().st_size,
        in_use=in_use,
        layout_version=slab.layout_version,
        created_ms=created_ms,
        age_ms=max(0, wall_ms() - created_ms),
        topic_table=slab.geometry.topics,
        partition_table=slab.geometry.partitions,
        broker_table=len(slab.geometry.dispatcher_slots),
        landing_slots=slab.geometry.landing_slots,
        landing_slot_bytes=slab.geometry.landing_slot_size,
        producer_id=slab.read_signed(lay.SUPER_PRODUCER_ID),
        idempotence=IDEMPOTENCE.get(slab.words[lay.SUPER_IDEMPOTENCE >> 2], "damaged"),  # `words` has 4-byte items
        processes=list(_processes(slab)),
        books=books,
        chunks=chunks,
        topics=topics,
        landing=landing,
        damage=[*salvage.damage, *differences],  # the readings above add to `salvage.damage`
    )


def _processes(slab: Slab) -> Iterator[LastProcess]:
    for row in range(slab.geometry.rows):
        at = slab.row_at(row)
        incarnation = slab.words[(at + lay.ROW_INCARNATION) >> 2]
        if incarnation:
            yield LastProcess(
                row_name(row),
                pid=slab.words[(at + lay.ROW_PID) >> 2],
                incarnation=incarnation,
                started_ms=slab.read_signed(at + lay.ROW_STARTED_MS),
                heartbeat_ms=slab.read_signed(at + lay.ROW_HEARTBEAT_MS),
            )


def _summarize_topics(salvage: Salvage) -> list[TopicHeld]:
    topics: dict[bytes, TopicHeld] = {}
    for record in salvage.records():
        if record.topic not in topics:
            topics[record.topic] = TopicHeld(topic_text(record.topic), dict.fromkeys(STAGE_OF_STATE.values(), 0))
        _add_record(topics[record.topic], record)
    return [topic for _, topic in sorted(topics.items())]


def _add_record(topic: TopicHeld, record: SalvagedRecord) -> None:
    topic.held[STAGE_OF_STATE[record.state]] += 1
    topic.messages += 1
    topic.bytes += record.end - record.key_at
    topic.sent += record.was_built
    topic.retries = max(topic.retries, record.retries)
    topic.oldest_ms = record.timestamp if topic.oldest_ms is None else min(topic.oldest_ms, record.timestamp)
    topic.newest_ms = record.timestamp if topic.newest_ms is None else max(topic.newest_ms, record.timestamp)


def _summarize_landing_zone(salvage: Salvage) -> LandingUsage:
    zone = salvage.read_landing_zone()
    return LandingUsage(zone.landed_count, len(zone.pending), sum(datagram.length for datagram in zone.pending))


# --- the report ------------------------------------------------------------------------------------------------------


def _report(inspection: Inspection) -> Iterator[str]:
    yield f"{inspection.file}: slab of {format_size(inspection.bytes)}, layout version {inspection.layout_version}"
    yield f"created {_format_time(inspection.created_ms)}, {inspection.age_ms // 1000:,} s ago"
    yield "A running daemon uses it: the figures change." if inspection.in_use else "No daemon uses it."
    chunks, landing = inspection.chunks, inspection.landing
    chunk_size = format_size(chunks.bytes_each)
    yield f"chunks of {chunk_size}: {chunks.used:,} in use, {chunks.free:,} free, {chunks.damaged:,} damaged"
    tables = f"{inspection.topic_table:,} topics, {inspection.partition_table:,} partitions"
    yield f"tables for {tables} and {inspection.broker_table} brokers"
    slots = f"{inspection.landing_slots} slots of {format_size(inspection.landing_slot_bytes)}"
    pending = f"{landing.pending} of them ({landing.bytes:,} bytes) without a record yet"
    yield f"landing zone of {slots}: {landing.datagrams} datagrams, {pending}"
    yield f"producer id {inspection.producer_id}; idempotence: {inspection.idempotence}"
    yield balance_line(inspection.books)
    yield from _section_lines("Processes", map(_process_line, inspection.processes))
    yield from _section_lines("Held", map(_topic_line, inspection.topics))
    yield from _section_lines("Damage", inspection.damage)


def _section_lines(title: str, lines: Iterator[str] | list[str]) -> Iterator[str]:
    listed = list(lines)
    if listed:
        yield f"\n{title}:"
        yield from (f"  {line}" for line in listed)


def _process_line(process: LastProcess) -> str:
    times = f"since {_format_time(process.started_ms)}, last heartbeat {_format_time(process.heartbeat_ms)}"
    return f"{process.name}: pid {process.pid or '-'}, incarnation {process.incarnation}, {times}"


def _topic_line(topic: TopicHeld) -> str:
    stages = ", ".join(f"{stage} {count:,}" for stage, count in topic.held.items() if count)
    sent = f", {topic.sent:,} sent, up to {topic.retries} retries" if topic.sent or topic.retries else ""
    times = f"of {_format_time(topic.oldest_ms or 0)} to {_format_time(topic.newest_ms or 0)}"
    name, count = topic.topic or "(name lost)", plural(topic.messages, "message")
    return f"{name}: {count} ({stages}{sent}), {topic.bytes:,} bytes, {times}"


def _format_time(ms: int) -> str:
    """Return a time in ms since the epoch as UTC, or as the number if it is out of range."""
    try:
        return utc_text(ms / 1000)
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
