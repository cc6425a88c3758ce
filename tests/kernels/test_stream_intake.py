"""The intake of streams: it appends and counts the messages of plain connections, and leaves all else to its caller."""

from __future__ import annotations

import resource
import select
import socket
import time
from contextlib import ExitStack
from dataclasses import replace
from threading import Timer
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.input.flush_groups import FlushGroup
from bruce_mp.input.stream_connections import STREAM_COUNTERS
from bruce_mp.kernels import ChunkPool, Coalescing, Lanes, ProcessRow, StreamIntake, StreamSource
from bruce_mp.kernels.pure.arrival_rate import NO_COALESCING
from bruce_mp.kernels.pure.stream_intake import StreamIntake as PureStreamIntake
from bruce_mp.protocol.client.barrier import Level, encode_barrier
from bruce_mp.slab.tables import TopicTable
from bruce_mp.telemetry.clock import steady_ms
from bruce_mp.telemetry.counters import Counter
from support.processes import time_limit
from support.slabs import CAPACITY, INPUT_ROW, SMALL, Content, contents, datagram, new_slab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.kernels import StreamIntakeResult
    from bruce_mp.slab.file import Slab

BARRIER: Final = encode_barrier(b"01234567", Level.RECEIVED, 1000)
UNIX, TCP = 0, 1
GEOMETRY: Final = replace(SMALL, chunks=160)
CHUNKFUL: Final = bytes(CAPACITY - 60)


class Rig:
    """An intake with connections, whose clients are sockets of the test."""

    def __init__(self, slab: Slab, stack: ExitStack) -> None:
        self.slab = slab
        TopicTable(slab).add(b"t1", 3)
        self.row = ProcessRow(slab, INPUT_ROW)
        self.pool = ChunkPool(slab, INPUT_ROW)
        self.lanes = Lanes(slab, self.pool, TopicTable(slab), lambda _: 60_000)
        self.buffer = memoryview(bytearray(256 << 10))
        self.intake = StreamIntake(self.lanes, self.pool, self.row, self.buffer, counters=STREAM_COUNTERS)
        self.epoll = stack.enter_context(select.epoll())
        self._stack = stack
        self.apply()

    def apply(self, *, max_size: int = 100_000, blocks: bool = False, coalescing: Coalescing = NO_COALESCING) -> None:
        self.intake.apply_config(coalescing, max_size, clients_wait=blocks)

    def new_lanes(self) -> Lanes:
        return Lanes(self.slab, self.pool, TopicTable(self.slab), lambda _: 60_000)

    def connect(
        self,
        number: int = 1,
        kind: int = UNIX,
        *,
        start: bytes = b"",
        lanes: Lanes | None = None,
        is_plain: bool = True,
    ) -> tuple[socket.socket, StreamSource]:
        client, server = (self._stack.enter_context(each) for each in socket.socketpair())
        server.setblocking(False)
        self.epoll.register(server, select.EPOLLIN)
        source = StreamSource(server, FlushGroup(number), kind, start, lanes)
        if is_plain:
            self.intake.add(source)
        return client, source

    def run(self, wait_ms: int = 0) -> StreamIntakeResult:
        now_ms = steady_ms()
        return self.intake.run(self.epoll, now_ms, now_ms + wait_ms)

    def appended(self) -> list[Content]:
        self.lanes.close_all()
        self.lanes.drain_closed()
        return contents(self.slab)

    def values(self) -> list[bytes]:
        return [each.value for each in self.appended()]


@pytest.fixture
def rig() -> Iterator[Rig]:
    with new_slab(GEOMETRY) as slab, ExitStack() as stack:
        yield Rig(slab, stack)


def test_messages_of_all_plain_connections_are_appended_and_counted(rig: Rig) -> None:
    (one, first), (two, second) = rig.connect(7), rig.connect(9, TCP)
    one.sendall(datagram(value=b"a") + datagram(value=b"b", partition_key=5))
    two.sendall(datagram(value=b"c"))
    before = rig.row.version
    assert rig.run() == ([], None, [])
    assert sorted(rig.values()) == [b"a", b"b", b"c"]
    assert (rig.row.counted, rig.row.version % 2, rig.row.version > before) == (3, 0, True)
    assert [rig.row.counters[each] for each in STREAM_COUNTERS[:3]] == [3, 2, 1]
    assert [[rig.row.counters[each] for each in pair] for pair in STREAM_COUNTERS[3:]] == [[2, 1], [1, 1], [1, 1]]
    assert (first.flush_group.received, second.flush_group.received) == (2, 1)


def test_arrivals_bear_the_number_of_their_flush_group(rig: Rig) -> None:
    client, _ = rig.connect(7)
    for value in (b"a", b"b"):
        client.sendall(datagram(value=value))
        rig.run()
    mask = (1 << 20) - 1
    assert [each.arrival & mask for each in rig.appended()] == [7, 7]
    assert rig.row.counted == 2


@pytest.mark.parametrize("rest", [b"\0\0", datagram(value=b"half")[:-1], BARRIER, BARRIER + datagram(), b"\0\0\0\1..."])
def test_bytes_behind_the_last_whole_message_are_left_to_the_caller(rig: Rig, rest: bytes) -> None:
    client, source = rig.connect()
    client.sendall(datagram(value=b"a") + rest)
    assert rig.run() == ([(source, rest)], None, [])
    assert rig.values() == [b"a"]
    client.sendall(datagram(value=b"later"))
    assert rig.run().unhandled_events == [(source.socket.fileno(), select.EPOLLIN)], (
        "the connection is not plain any more"
    )
    assert rig.row.counted == 1


def test_the_beginning_of_a_message_stays_until_its_rest_has_come(rig: Rig) -> None:
    message = datagram(value=b"whole")
    client, source = rig.connect()
    client.sendall(datagram(value=b"a") + message[:9])
    rest = Timer(0.05, client.sendall, [message[9:]])
    rest.start()
    served = rig.run(wait_ms=1000)
    rest.join()
    if served.leftovers == [(source, message[:9])] and type(rig.intake) is PureStreamIntake:  # it serves one round
        source = StreamSource(source.socket, source.flush_group, UNIX, message[:9])
        rig.intake.add(source)
        served = rig.run()
    assert served.leftovers == [(source, b"")]
    assert rig.values() == [b"a", b"whole"]
    assert (rig.row.counted, source.flush_group.received) == (2, 2)


def test_the_beginning_of_a_long_message_is_returned_at_once(rig: Rig) -> None:
    beginning = datagram(value=bytes(90_000))[:1000]
    client, source = rig.connect()
    client.sendall(datagram(value=b"a") + beginning)
    began = time.monotonic()
    assert rig.run(wait_ms=30_000).leftovers == [(source, beginning)]
    assert time.monotonic() - began < 10


def test_the_beginnings_of_many_messages_are_returned_at_once(rig: Rig) -> None:
    beginning = datagram(value=bytes(63_000))[:62_000]
    sources = []
    for _ in range(20):
        client, source = rig.connect()
        client.sendall(datagram(value=b"a") + beginning)
        sources.append(source)
    returned: list[StreamSource] = []
    began = time.monotonic()
    while len(returned) < len(sources):
        leftovers = rig.run(wait_ms=0 if returned else 30_000).leftovers
        assert {data for _, data in leftovers} == {beginning}
        returned += [source for source, _ in leftovers]
    assert time.monotonic() - began < 10
    assert set(returned) == set(sources)


@pytest.mark.parametrize("rest", [b"", b"\0\0"])
def test_the_start_of_a_message_is_completed_and_the_source_returned(rig: Rig, rest: bytes) -> None:
    message = datagram(value=b"a")
    client, source = rig.connect(start=message[:9])
    client.sendall(message[9:] + rest)
    assert rig.run() == ([(source, rest)], None, [])
    assert rig.values() == [b"a"]
    client.sendall(b"x")
    assert rig.run().unhandled_events, "the start is used up"


def test_a_start_without_further_data_stays_with_the_caller(rig: Rig) -> None:
    client, source = rig.connect(start=datagram()[:9])
    client.close()
    served = rig.run()
    assert (served.leftovers, len(served.unhandled_events)) == ([], 1)
    assert served.unhandled_events[0][0] == source.socket.fileno()
    assert rig.row.counted == 0


def test_messages_go_to_the_lanes_of_their_attempt(rig: Rig) -> None:
    attempts = [Lanes(rig.slab, rig.pool, TopicTable(rig.slab), lambda _: 60_000) for _ in range(2)]
    clients = [rig.connect(number, lanes=lanes)[0] for number, lanes in enumerate([None, *attempts], 1)]
    for value, client in zip((b"a", b"b", b"c"), clients, strict=True):
        client.sendall(datagram(value=value))
    while rig.row.counted < len(clients):
        assert rig.run() == ([], None, [])
    chunks = {}
    for number, lanes in enumerate([rig.lanes, *attempts], 1):
        lanes.close_all()
        (run,) = lanes.drain_closed()
        chunks[run.chunk] = number
    mask = (1 << 20) - 1
    by_address = [chunks[chunk] for chunk in sorted(chunks)]
    assert [each.arrival & mask for each in contents(rig.slab)] == by_address


def test_a_rejected_message_of_an_attempt_is_left_uncounted(rig: Rig) -> None:
    attempt = Lanes(rig.slab, rig.pool, TopicTable(rig.slab), lambda _: 60_000)
    client, source = rig.connect(lanes=attempt)
    client.sendall(datagram(value=b"a") + b"\0\0\0\x08\1\1\0\7")
    served = rig.run()
    assert served.uncounted is not None
    assert [found for found, _ in served.uncounted.parts] == [source]
    assert [each.slot for each in served.uncounted.ingested.rejections] == [1]


def test_a_message_above_the_limit_is_left_to_the_caller(rig: Rig) -> None:
    rig.apply(max_size=50)
    client, source = rig.connect()
    rig.intake.add(source)
    large = datagram(value=bytes(60))
    client.sendall(large)
    assert rig.run() == ([(source, large)], None, [])


def test_events_of_other_descriptors_are_left_to_the_caller(rig: Rig) -> None:
    (plain, _), (other, unread) = rig.connect(), rig.connect(is_plain=False)
    plain.sendall(datagram(value=b"a"))
    other.sendall(datagram(value=b"b"))
    assert rig.run() == ([], None, [(unread.socket.fileno(), select.EPOLLIN)])
    assert rig.values() == [b"a"]
    assert unread.socket.recv(100) == datagram(value=b"b")


def test_the_end_of_a_connection_is_left_to_the_caller(rig: Rig) -> None:
    client, source = rig.connect()
    client.sendall(datagram(value=b"a"))
    client.close()
    served = rig.run()
    assert served.unhandled_events
    assert not served.leftovers
    rest = source.socket.recv(100)
    assert rig.values() == ([] if rest else [b"a"]), "its last data is appended, or left unread"


def test_a_discarded_connection_is_not_read(rig: Rig) -> None:
    client, source = rig.connect()
    rig.intake.discard(source.socket.fileno())
    client.sendall(datagram())
    assert rig.run() == ([], None, [(source.socket.fileno(), select.EPOLLIN)])
    rig.intake.add(source)
    rig.apply()
    assert rig.run().unhandled_events, "a changed configuration leaves all connections to the caller"


def test_a_batch_with_a_rejected_message_is_left_uncounted(rig: Rig) -> None:
    client, source = rig.connect()
    messages = [datagram(value=b"a"), b"\0\0\0\x08\1\1\0\7", datagram(value=b"b")]
    client.sendall(b"".join(messages))
    served = rig.run()
    assert served.uncounted is not None
    ((found, extents),) = served.uncounted.parts
    assert found is source
    assert [bytes(rig.buffer[at : at + size]) for at, size in extents] == messages
    assert [each.slot for each in served.uncounted.ingested.rejections] == [1]
    assert (rig.row.counted, source.flush_group.received, rig.row.counters[Counter.MsgReceived]) == (0, 0, 0)
    assert rig.row.version % 2 == 1, "the books are open until the caller counts the batch"
    assert rig.values() == [b"a", b"b"]


def test_a_batch_without_room_is_left_uncounted(rig: Rig) -> None:
    client, _ = rig.connect()
    uncounted = fill(rig, client).uncounted
    assert uncounted is not None
    assert len(uncounted.ingested.no_room) == 1


def test_nothing_is_appended_without_certain_room_when_clients_wait(rig: Rig) -> None:
    rig.apply(blocks=True)
    client, source = rig.connect()
    rig.intake.add(source)
    assert fill(rig, client) == ([(source, datagram(value=CHUNKFUL))], None, [])
    assert len(rig.values()) == rig.row.counted > 5


def fill(rig: Rig, client: socket.socket) -> StreamIntakeResult:
    """Send messages that fill a chunk each, until a call leaves something to its caller."""
    for _ in range(GEOMETRY.chunks + 1):
        client.sendall(datagram(value=CHUNKFUL))
        if (served := rig.run()) != ([], None, []):
            return served
    raise AssertionError("the slab is not full")


def test_messages_larger_than_a_chunk_are_appended_while_they_certainly_find_room(rig: Rig) -> None:
    rig.apply(blocks=True)
    client, source = rig.connect()
    rig.intake.add(source)
    large, free = datagram(value=bytes(CAPACITY + 1)), rig.pool.free_count
    while (served := send_and_run(rig, client, large)) == ([], None, []):
        free = rig.pool.free_count
    assert served == ([(source, large)], None, [])
    assert len(rig.values()) == rig.row.counted > 5
    assert free < 4 * 2, "each message counts as two spans of two chunks"


def send_and_run(rig: Rig, client: socket.socket, data: bytes) -> StreamIntakeResult:
    client.sendall(data)
    return rig.run()


def test_connections_beyond_the_buffer_are_read_in_the_next_round(rig: Rig) -> None:
    clients = [rig.connect(number)[0] for number in range(1, 7)]
    for client in clients:
        client.sendall(datagram(value=bytes(1000)) * 54)
    for _ in range(len(clients)):
        assert rig.run() == ([], None, [])
    assert rig.row.counted == 54 * len(clients)


def test_a_call_waits_for_data_only_while_a_run_is_open(rig: Rig) -> None:
    client, _ = rig.connect()
    began = time.monotonic()
    rig.run(wait_ms=5000)
    assert time.monotonic() - began < 2
    client.sendall(datagram(value=b"a"))
    timer = Timer(0.05, client.sendall, [datagram(value=b"b") + BARRIER])
    timer.start()
    leftovers = rig.run(wait_ms=20_000).leftovers or rig.run(wait_ms=20_000).leftovers
    timer.join()
    leftovers = leftovers or rig.run().leftovers  # the pure kernel does not wait
    assert [data for _, data in leftovers] == [BARRIER]
    assert rig.values() == [b"a", b"b"]


def test_attempts_are_served_in_turn_also_beyond_the_events_of_a_round() -> None:
    """A round serves one attempt only, and epoll reports 512 of these 600 connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with new_slab(replace(SMALL, chunks=1400)) as slab, ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        rig = Rig(slab, stack)
        pairs = [rig.connect(number, lanes=rig.new_lanes()) for number in range(1, 601)]
        for client, _ in pairs:
            client.sendall(datagram(value=b"a") * 2)
        for _ in range(1000):
            before = [source.flush_group.received for _, source in pairs]
            assert rig.run() == ([], None, [])
            for (client, source), count in zip(pairs, before, strict=True):
                if source.flush_group.received > count:
                    client.sendall(datagram(value=b"a") * 2)
        counts = [source.flush_group.received for _, source in pairs]
        assert sum(counts) >= 2000
        assert 0 < min(counts) <= max(counts) <= 8


def test_an_outdated_event_is_not_reported(rig: Rig) -> None:
    """A connection that is paused while its event waits for the next round must not be read."""
    (one, _), (two, second) = (rig.connect(number, lanes=rig.new_lanes()) for number in (1, 2))
    for client in (one, two):
        client.sendall(datagram())
    assert rig.run() == ([], None, [])
    rig.intake.discard(second.socket.fileno())
    rig.epoll.unregister(second.socket)
    assert rig.run() == ([], None, [])
    assert rig.row.counted == 1


def test_a_round_that_left_data_is_followed_without_a_nap(rig: Rig) -> None:
    rig.apply(coalescing=Coalescing(20_000, 1_000_000, 1 << 40))
    pairs = [rig.connect(number, lanes=rig.new_lanes()) for number in range(1, 9)]
    began = time.monotonic()
    for _ in range(20):
        for client, _ in pairs:
            client.sendall(datagram(value=b"a") * 50)
        for _ in pairs:
            assert rig.run(wait_ms=1000) == ([], None, [])
    assert rig.row.counted == 20 * 8 * 50
    assert time.monotonic() - began < time_limit(1.5)  # with at most 20 naps, not 160


def test_busy_connections_do_not_starve_the_others(rig: Rig) -> None:
    """The buffer takes the data of four connections a round, and all of them always have data."""
    clients, sources = zip(*(rig.connect(number) for number in range(1, 9)), strict=True)
    for client in clients:
        client.sendall(datagram(value=bytes(1000)) * 54)
    for _ in range(3):
        received = [source.flush_group.received for source in sources]
        assert rig.run() == ([], None, [])
        for client, source, before in zip(clients, sources, received, strict=True):
            if source.flush_group.received > before:
                client.sendall(datagram(value=bytes(1000)) * 54)
    assert all(source.flush_group.received for source in sources)
