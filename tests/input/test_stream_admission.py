"""Stream messages on their way into lanes: rows of the specification, crashes, and a slab without room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.config.accounts import TCP_USER, QuotaLimits
from bruce_mp.discards.reports import DiscardReport
from bruce_mp.errors import DiscardReason
from bruce_mp.input.sender_quotas import SenderRules
from bruce_mp.input.stream_client import TCP, UNIX, StreamClientState, StreamKind
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.protocol.client.barrier import Level, encode_barrier
from bruce_mp.protocol.client.fence import encode_begin
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry, Slab
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.recovery import sweep
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.sender_usage import SenderSums, read_senders
from bruce_mp.telemetry.counters import Counter
from support.crash_images import crash_images
from support.examples import examples
from support.slabs import SMALL, contents, datagram, new_slab, set_state
from support.streams import WORKER_ROW, StreamInput, assert_books, balanced_books
from support.variants import kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

GEOMETRY: Final = Geometry(chunks=64, topics=16, partitions=16, landing_slots=8, landing_slot_size=16384)
BARRIER: Final = encode_barrier(b"01234567", Level.DELIVERED, 1000)


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab(GEOMETRY) as found:
        yield found


def values(slab: Slab) -> list[bytes]:
    return [content.value for content in sorted(contents(slab), key=lambda content: content.arrival)]


def is_paused(client: StreamClientState) -> bool:
    return client.is_paused


def filled(slab: Slab) -> list[bytes]:
    """Return the messages that the router would find, in order."""
    found = [content for content in contents(slab) if content.state is RunState.FILLED]
    return [content.value for content in sorted(found, key=lambda content: content.arrival)]


def counter(slab: Slab, number: Counter) -> int:
    return ProcessRow(slab, WORKER_ROW).counters[number]


@examples(25)
@given(steps=st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, 3, 50, 200])), max_size=60))
def test_a_stream_may_be_split_anywhere(steps: list[tuple[int, int]]) -> None:
    count = 6
    with new_slab(GEOMETRY) as slab:
        worker = StreamInput(slab, topics=[(b"t1", 2)])
        clients = [worker.connect() for _ in range(3)]
        left = [b"".join(datagram(value=b"%d:%d" % (who, i)) for i in range(count)) for who in range(3)]
        for who, size in [*steps, *((who, 10_000) for who in range(3))]:
            worker.feed((clients[who], left[who][:size]))
            left[who] = left[who][size:]
        found = values(slab)
        for who in range(3):
            mine = [value for value in found if value.startswith(b"%d:" % who)]
            assert mine == [b"%d:%d" % (who, i) for i in range(count)]
        assert len(found) == 3 * count
        assert_books(slab, 3 * count)
        assert [client.flush_group.received for client in clients] == [count] * 3
        assert not any(client.unprocessed for client in clients)


@pytest.mark.parametrize("kind", [UNIX, TCP], ids=["unix", "tcp"])
@pytest.mark.parametrize("size", [3, 0, -1])
def test_an_invalid_size_is_one_malformed_message_and_ends_the_connection(
    slab: Slab, kind: StreamKind, size: int
) -> None:
    worker = StreamInput(slab)
    client = worker.connect(kind)
    worker.feed((client, datagram(value=b"good") + size.to_bytes(4, "big", signed=True) + datagram(value=b"lost")))
    assert client.must_close
    assert values(slab) == [b"good"]
    assert_books(slab, 2, MALFORMED=1)
    assert counter(slab, kind.invalid_size) == 1
    assert counter(slab, Counter.InputAgentDiscardMsgMalformed) == 0
    assert client.flush_group.discards == {DiscardReason.MALFORMED: 1}


@pytest.mark.parametrize("kind", [UNIX, TCP], ids=["unix", "tcp"])
def test_a_report_separates_malformed_bytes_from_disconnects(slab: Slab, kind: StreamKind) -> None:
    worker = StreamInput(slab)
    refused, gone = worker.connect(kind), worker.connect(kind)
    worker.feed((refused, b"GET / HTTP/1.1"), (gone, datagram()[:20]))
    worker.admission.on_disconnect(gone)
    report = DiscardReport(1, 0)
    for event in worker.reported():
        report.add(event)
    assert report.counts[DiscardReason.MALFORMED] == 1
    assert report.recent[DiscardReason.MALFORMED].newest_first == (b"GET / HTTP/1.1",)
    assert report.tcp_disconnects == (kind is TCP)
    assert report.counts[DiscardReason.UNCLEAN_DISCONNECT] == (kind is UNIX)


def test_an_oversized_message_is_refused_by_its_size_field(slab: Slab) -> None:
    worker = StreamInput(slab, max_size=100)
    client, other = worker.connect(), worker.connect()
    fits = datagram(value=bytes(100 - 30))
    assert len(fits) == 100
    worker.feed((client, fits + (101).to_bytes(4, "big")), (other, fits))
    assert (client.must_close, other.must_close) == (True, False)
    assert len(values(slab)) == 2
    assert_books(slab, 3, MALFORMED=1)
    assert counter(slab, UNIX.too_large) == 1


BAD: Final = {
    "a size of 4": (bytes.fromhex("00000004"), "MALFORMED"),
    "a size of 7": (bytes.fromhex("00000007010000"), "MALFORMED"),
    "flags": (bytes.fromhex("00000023010000000001000274310000018bcfe56800000000000000000568656c6c6f"), "MALFORMED"),
    "key 259": (datagram()[:4] + b"\x01\x03" + datagram()[6:], "UNSUPPORTED_API_KEY"),
    "version 3": (datagram()[:7] + b"\x03" + datagram()[8:], "UNSUPPORTED_VERSION"),
    "value size": (datagram(value=b"v")[:-5] + b"\0\0\0\x02v", "MALFORMED"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_message_affects_no_other(slab: Slab, name: str) -> None:
    bad, reason = BAD[name]
    worker = StreamInput(slab)
    client, other = worker.connect(), worker.connect()
    worker.feed((client, datagram(value=b"1") + bad + datagram(value=b"2")), (other, datagram(value=b"3")))
    assert values(slab) == [b"1", b"2", b"3"]
    assert not client.must_close
    assert_books(slab, 4, **{reason: 1})
    assert client.flush_group.discards == {DiscardReason[reason]: 1}
    assert (client.flush_group.received, other.flush_group.received, other.flush_group.outstanding_count) == (3, 1, 1)
    assert counter(slab, Counter.UnixStreamInputForwardMsg) == 3


@pytest.mark.parametrize("kind", [UNIX, TCP], ids=["unix", "tcp"])
@pytest.mark.parametrize("kept", [0, 2, 20])
def test_a_disconnect_within_a_message_is_unclean(slab: Slab, kind: StreamKind, kept: int) -> None:
    worker = StreamInput(slab)
    client = worker.connect(kind)
    worker.feed((client, datagram(value=b"whole") + datagram(value=b"cut")[:kept]))
    worker.admission.on_disconnect(client)
    assert values(slab) == [b"whole"]
    assert_books(slab, 1 + (kept > 0), **({"UNCLEAN_DISCONNECT": 1} if kept else {}))
    assert counter(slab, kind.unclean_disconnect) == (kept > 0)
    assert counter(slab, kind.clean_disconnect) == (kept == 0)
    samples = [sample for event in worker.reported() for sample in event.samples]
    assert samples == ([datagram(value=b"cut")[:kept]] if kept else [])


def test_a_barrier_separates_earlier_from_later_messages(slab: Slab) -> None:
    worker = StreamInput(slab)
    client = worker.connect()
    before = client.flush_group
    worker.feed((client, datagram() * 2 + BARRIER + datagram() * 3 + BARRIER + BARRIER[:5]))
    assert worker.barriers == [(client, BARRIER)] * 2
    assert before.received == 2
    assert (client.flush_group.received, bytes(client.unprocessed)) == (0, BARRIER[:5])
    sources = [content.arrival & (lay.ARRIVAL_SOURCES - 1) for content in contents(slab)]
    assert sorted(sources) == [before.number] * 2 + [before.number + 1] * 3


def test_messages_without_room_wait_in_order_when_clients_are_blocked(slab: Slab) -> None:
    worker = StreamInput(slab, topics=[(b"t1", 1)], linger_ms=0)
    client = worker.connect()
    sent = [datagram(value=b"%06d" % number + bytes(3000)) for number in range(400)]
    for message in sent:
        worker.feed((client, message))
    assert is_paused(client)
    read: list[bytes] = []
    for _ in range(100):
        segments = [found.segment for found in sweep(slab, {RunState.FILLED})]
        read += filled(slab)
        set_state(slab, segments, RunState.DELIVERED)
        worker.now_ms += 10
        worker.feed((client, b""))
        worker.close_runs()
        if not is_paused(client) and not client.unprocessed:
            break
    read += filled(slab)
    assert [int(value[:6]) for value in read] == list(range(400))
    assert count_books(slab).discarded == {}


def test_messages_without_room_are_discarded_when_configured(slab: Slab) -> None:
    worker = StreamInput(slab, senders_wait=False, topics=[(b"t1", 1)])
    client = worker.connect()
    worker.feed((client, datagram(value=bytes(3000)) * 400))
    assert not client.unprocessed
    books = count_books(slab)
    assert books.balanced
    assert books.received == 400
    assert books.discarded["NO_MEM"] == client.flush_group.discards[DiscardReason.NO_MEM] > 200


def test_the_closed_runs_of_a_worker_are_published_when_an_attempt_finds_no_room(slab: Slab) -> None:
    """They hold memory that the router could free."""
    worker = StreamInput(slab, senders_wait=False, topics=[(b"t1", 1)], max_attempt=2)
    ordinary, fenced = worker.connect(), worker.connect()
    worker.admit((ordinary, datagram(value=bytes(3000))))
    worker.admit((ordinary, datagram(value=bytes(3000)) * 2))
    assert 0 < worker.lanes.publish_ms <= 1000
    worker.admit((fenced, encode_begin("attempt") + datagram(value=bytes(3000)) * 20))
    assert worker.lanes.publish_ms == 0


def test_a_message_larger_than_the_slab_is_discarded(slab: Slab) -> None:
    worker = StreamInput(slab)
    client, other = worker.connect(), worker.connect()
    huge = datagram(value=bytes(64 * lay.CHUNK_BYTES))
    worker.feed((client, datagram(value=b"1") + huge + datagram(value=b"2")), (other, datagram(value=b"3")))
    assert values(slab) == [b"1", b"2", b"3"]
    assert_books(slab, 4, NO_MEM=1)
    assert client.flush_group.discards == {DiscardReason.NO_MEM: 1}


@pytest.mark.exhaustive
def test_a_crash_at_any_store_counts_exactly_the_messages_in_lanes() -> None:
    with kernels("pure"), new_slab(SMALL) as slab:
        worker = StreamInput(slab, topics=[(b"t1", 2)])
        worker.feed((worker.connect(), datagram(value=b"early") * 2))
        client = worker.connect()
        stream = (
            datagram(value=b"a") + datagram(b"t2", b"b") + BARRIER + datagram(value=b"c", partition_key=1) + b"\0" * 4
        )
        everything = range(slab.geometry.file_size)
        images = crash_images(slab, [everything], lambda: worker.feed((client, stream)))
        assert len(images) > 20
        seen = set()
        for _ in images:
            StreamInput(slab)
            books = balanced_books(slab)
            seen.add((books.received, len(contents(slab))))
        assert (2, 2) in seen
        assert (6, 5) in seen


# --- quotas ----------------------------------------------------------------------------------------------------------

ALICE, BOB = 1, 2


def quota(most: int, interval_ms: int = 100, tcp: int | None = None) -> SenderRules:
    return SenderRules("input.unix_stream", None, QuotaLimits(interval_ms, most, tcp, {BOB: None}))


def three(who: int) -> bytes:
    return b"".join(datagram(value=b"%d:%d" % (who, number)) for number in range(3))


def test_messages_over_a_quota_wait_in_order_for_the_next_interval(slab: Slab) -> None:
    worker = StreamInput(slab, rules=quota(4))
    clients = [worker.connect(user=user) for user in (ALICE, ALICE, BOB)]
    worker.feed(*((client, three(who) + BARRIER) for who, client in enumerate(clients)))
    assert [client.paused_until_ms for client in clients] == [0, 100, 0]
    assert [client.is_paused for client in clients] == [False, True, False]
    assert [client for client, _ in worker.barriers] == [clients[0], clients[2]]
    assert values(slab) == [b"0:0", b"0:1", b"0:2", b"1:0", b"2:0", b"2:1", b"2:2"]
    worker.feed((clients[1], b""))
    assert is_paused(clients[1])
    worker.now_ms = 100
    worker.feed((clients[1], b""))
    assert not is_paused(clients[1])
    assert (clients[1].paused_until_ms, bytes(clients[1].unprocessed)) == (0, b"")
    assert values(slab)[-2:] == [b"1:1", b"1:2"]
    assert len(worker.barriers) == 3
    assert_books(slab, 9)
    assert read_senders(slab) == {ALICE: SenderSums(received=6, waited=2), BOB: SenderSums(received=3)}
    assert counter(slab, Counter.StreamInputOverQuota) == 2


@pytest.mark.parametrize("tcp", [None, 2])
def test_tcp_has_a_quota_of_its_own_or_none(slab: Slab, tcp: int | None) -> None:
    worker = StreamInput(slab, rules=quota(1, tcp=tcp))
    client = worker.connect(TCP, user=TCP_USER)
    worker.feed((client, three(0)))
    assert len(values(slab)) == tcp or 3
    assert client.is_paused == (tcp is not None)


def test_workers_share_a_quota(slab: Slab) -> None:
    peers = [WORKER_ROW, WORKER_ROW + 1]
    workers = [StreamInput(slab, row=row, rules=quota(5), peers=peers) for row in peers]
    clients = [worker.connect(user=ALICE) for worker in workers]
    for worker, client in zip(workers, clients, strict=True):
        worker.feed((client, three(0)))
    assert [client.is_paused for client in clients] == [False, True]
    assert len(values(slab)) == 5


def test_messages_within_the_quota_wait_only_for_room(slab: Slab) -> None:
    """The message does not wait for the next interval, which may be a day."""
    worker = StreamInput(slab, rules=quota(150))
    client = worker.connect(user=ALICE)
    worker.feed((client, datagram(value=bytes(4000)) * 200))
    assert 0 < len(values(slab)) < 150
    assert client.is_paused
    assert client.paused_until_ms == 0
    assert read_senders(slab)[ALICE].waited == 0
    assert counter(slab, Counter.StreamInputOverQuota) == 0


def test_a_quota_applies_in_a_slab_without_room(slab: Slab) -> None:
    """Messages without room wait for room; messages within the quota that find room are admitted."""
    worker = StreamInput(slab, rules=quota(10_000))
    client = worker.connect(user=ALICE)
    worker.feed((client, datagram(value=bytes(4000)) * 200))
    assert client.is_paused
    assert client.paused_until_ms == 0
    taken = len(values(slab))
    assert read_senders(slab)[ALICE].received == taken < 200


def test_the_intake_serves_clients_whose_messages_need_no_state(slab: Slab) -> None:
    worker = StreamInput(slab, topics=[(b"t1", 2)])
    long = datagram(b"t1", bytes(100_000))
    sent = {
        "an attempt": encode_begin("a"),
        "the start of a message": datagram(b"t1", b"a")[:-1],
        "the start of a long message": long[:100],
        "kept timestamps": encode_begin("a", keeps_timestamps=True),
        "malformed": b"\0\0\0\1",
    }
    is_plain = {}
    for state, data in sent.items():
        client = worker.connect()
        assert worker.admission.is_plain(client)
        worker.feed((client, data))
        is_plain[state] = worker.admission.is_plain(client)
    assert [state for state, plain in is_plain.items() if plain] == ["an attempt", "the start of a message"]
