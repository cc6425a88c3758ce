"""A stream worker with thresholds of topics: the waiting connections, their order and their counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.config.accounts import QuotaLimits
from bruce_mp.input.sender_quotas import SenderRules
from bruce_mp.kernels import ChunkPool, TimestampWindow
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.protocol.client.barrier import Level, encode_barrier
from bruce_mp.protocol.client.fence import encode_begin, encode_end
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.holdings import MAX_SEARCH_PAUSE_MS
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.recovery import sweep
from bruce_mp.slab.sender_usage import SenderSums, read_senders
from bruce_mp.telemetry.counters import Counter
from support.slabs import contents, datagram, new_slab, set_state
from support.streams import NO_RULES, WORKER_ROW, StreamInput

if TYPE_CHECKING:
    from bruce_mp.input.stream_client import StreamClientState
    from bruce_mp.slab.file import Slab

GEOMETRY: Final = Geometry(chunks=256, topics=16, partitions=16, landing_slots=8, landing_slot_size=4096)
LARGE: Final = bytes(5000)
"""Two such messages do not fit in a chunk."""
TOPICS: Final = [(b"stuck", 1), (b"other", 1)]
BARRIER: Final = encode_barrier(b"01234567", Level.DELIVERED, 1000)
ALICE: Final = 1001


def stuck_worker(
    slab: Slab, *, senders_wait: bool = True, rules: SenderRules = NO_RULES
) -> tuple[StreamInput, StreamClientState]:
    """Create a worker with one topic at its threshold, and the client of the waiting messages."""
    worker = StreamInput(slab, topics=TOPICS, senders_wait=senders_wait, alpha=16, rules=rules)
    client = worker.connect(user=ALICE)
    for _ in range(GEOMETRY.chunks):
        worker.feed((client, datagram(b"stuck", LARGE)))
        if client.is_paused:
            break
    return worker, client


def deliver(worker: StreamInput) -> None:
    """Settle all held messages."""
    worker.close_runs()
    set_state(worker.slab, [found.segment for found in sweep(worker.slab, {RunState.FILLED})], RunState.DELIVERED)
    worker.now_ms += MAX_SEARCH_PAUSE_MS


def values(slab: Slab) -> list[bytes]:
    """Return the short messages in the slab, by arrival."""
    found = sorted(contents(slab), key=lambda each: each.arrival)
    return [each.value for each in found if len(each.value) < 100]


def test_only_the_connection_that_sends_to_the_stuck_topic_waits() -> None:
    with new_slab(GEOMETRY) as slab:
        worker, client = stuck_worker(slab)
        assert (client.is_paused, client.stuck_topic) == (True, b"stuck")
        other = worker.connect()
        for number in range(50):
            worker.feed((other, datagram(b"other", b"%d" % number)))
        assert not other.is_paused
        assert values(slab) == [b"%d" % number for number in range(50)]
        assert not worker.admission.may_resume(client, worker.now_ms)
        assert count_books(slab).discarded == {}
        assert worker.row.counters[Counter.StreamInputTopicOverShare] == 1


def test_waiting_messages_are_admitted_in_order_after_delivery() -> None:
    with new_slab(GEOMETRY) as slab:
        worker, client = stuck_worker(slab)
        deliver(worker)
        assert worker.admission.may_resume(client, worker.now_ms)
        worker.feed((client, b"".join(datagram(b"stuck", b"%d" % number) for number in range(3)) + BARRIER))
        assert (client.is_paused, bytes(client.unprocessed), bytes(client.postponed)) == (False, b"", b"")
        assert values(slab) == [b"0", b"1", b"2"]
        assert worker.barriers == [(client, BARRIER)]


def test_messages_of_other_topics_overtake_waiting_ones_but_barriers_do_not() -> None:
    with new_slab(GEOMETRY) as slab:
        worker, _ = stuck_worker(slab)
        mixed, other = worker.connect(), worker.connect()
        first = datagram(b"stuck", LARGE) + datagram(b"other", b"past") + datagram(b"stuck", b"small")
        worker.feed((mixed, first + BARRIER + datagram(b"other", b"behind")), (other, datagram(b"other", b"theirs")))
        assert (mixed.is_paused, other.is_paused) == (True, False)
        assert values(slab) == [b"past", b"theirs"]
        assert worker.barriers == []
        assert mixed.flush_group.received == 1
        books = count_books(slab)
        assert (books.balanced, books.discarded) == (True, {})
        deliver(worker)
        worker.feed((mixed, b""))
        assert (mixed.is_paused, worker.barriers) == (False, [(mixed, BARRIER)])
        assert [value for value in values(slab) if value in {b"small", b"behind"}] == [b"small", b"behind"]
        assert count_books(slab).discarded == {}


def test_waiting_messages_count_once_in_the_quota() -> None:
    with new_slab(GEOMETRY) as slab:
        rules = SenderRules("input.unix_stream", None, QuotaLimits(10**9, 10**6, None, {}))
        worker, client = stuck_worker(slab, rules=rules)
        for _ in range(3):
            worker.feed((client, b""))
        deliver(worker)
        worker.feed((client, datagram(b"stuck", b"last")))
        assert not client.is_paused
        assert read_senders(slab)[ALICE] == SenderSums(received=worker.row.counters[Counter.MsgReceived])


def test_discard_mode_discards_messages_over_the_topics_share() -> None:
    with new_slab(GEOMETRY) as slab:
        worker, client = stuck_worker(slab, senders_wait=False)
        assert not client.is_paused
        books = count_books(slab)
        assert books.balanced
        assert books.discarded.keys() == {"TOPIC_OVER_SHARE"}
        assert {(event.reason.name, event.topic) for event in worker.reported()} == {("TOPIC_OVER_SHARE", b"stuck")}
        assert client.flush_group.discards.total() == books.discarded["TOPIC_OVER_SHARE"]


def test_a_successor_continues_numbering_after_waiting_messages() -> None:
    """The numbers of returned messages are not reused, so no message is counted twice."""
    with new_slab(GEOMETRY) as slab:
        worker, client = stuck_worker(slab)
        received = worker.row.counters[Counter.MsgReceived]
        again = StreamInput(slab, alpha=16, row=WORKER_ROW)
        assert again.row.counters[Counter.MsgReceived] == received
        late = again.connect()
        again.feed((late, datagram(b"stuck", LARGE)))
        assert late.is_paused
        assert client.is_paused


ATTEMPT: Final = encode_begin("job") + datagram(b"stuck", LARGE) * 10 + encode_end()


@pytest.mark.parametrize("max_spill", [0, 1 << 20, 64 << 20])
def test_completed_attempts_of_a_stuck_topic_leave_room_for_others(max_spill: int) -> None:
    with new_slab(GEOMETRY) as slab:
        worker = StreamInput(slab, topics=TOPICS, alpha=16, max_spill=max_spill)
        sent = 0
        for _ in range(60):
            client = worker.connect()
            worker.feed((client, ATTEMPT))
            worker.spill_feed.feed(worker.now_ms)
            worker.now_ms += 10
            assert not client.must_close
            sent += 0 if client.is_paused else 10
        assert worker.pool.free_count > GEOMETRY.chunks // 8
        other = worker.connect()
        worker.feed((other, datagram(b"other", b"x")))
        assert (other.is_paused, values(slab)) == (False, [b"x"])
        books = count_books(slab)
        assert (books.balanced, books.discarded) == (True, {})
        assert books.received >= sent + 1
        assert worker.spills.reserved_bytes <= max_spill


def test_an_attempt_that_waits_for_its_topic_is_whole_after_delivery() -> None:
    with new_slab(GEOMETRY) as slab:
        worker, _ = stuck_worker(slab)
        client = worker.connect()
        frame = b"".join(datagram(b"stuck", b"%d" % number) for number in range(3))
        worker.feed((client, encode_begin("job") + datagram(b"stuck", LARGE) + frame + encode_end()))
        assert (client.is_paused, client.stuck_topic) == (True, b"stuck")
        deliver(worker)
        assert worker.admission.may_resume(client, worker.now_ms)
        worker.feed((client, b""))
        assert (client.is_paused, client.attempt, values(slab)) == (False, None, [b"0", b"1", b"2"])


@pytest.mark.parametrize("max_spill", [0, 64 << 20])
def test_a_small_message_of_an_attempt_does_not_pass_a_large_one_over_the_share(max_spill: int) -> None:
    with new_slab(GEOMETRY) as slab:
        worker = StreamInput(slab, topics=TOPICS, alpha=16, max_spill=max_spill)
        first, client = worker.connect(), worker.connect()
        worker.feed((first, datagram(b"stuck", LARGE) * 209))  # 210 is the threshold
        assert not first.is_paused
        frame = encode_begin("job") + datagram(b"stuck", bytes(20_000)) + datagram(b"stuck", b"after")
        worker.feed((client, frame))
        assert client.attempt is not None
        assert (client.is_paused, client.attempt.spill is not None) == (not max_spill, bool(max_spill))
        assert values(slab) == []
        worker.now_ms += MAX_SEARCH_PAUSE_MS
        worker.feed((worker.connect(), datagram(b"stuck", b"after")))
        assert values(slab) == [b"after"]


def test_chunks_of_an_attempt_count_for_its_topic_after_completion() -> None:
    with new_slab(GEOMETRY) as slab:
        worker = StreamInput(slab, topics=TOPICS, alpha=16)
        client = worker.connect()
        worker.feed((client, ATTEMPT[: -len(encode_end())]))
        stuck = worker.pool.holdings.holding_of(1)
        assert (stuck.chunk_count, ChunkPool(slab, WORKER_ROW).holdings.by_topic) == (0, {})
        worker.feed((client, encode_end()))
        assert worker.pool.holdings.holding_of(1).chunk_count == 10
        assert ChunkPool(slab, WORKER_ROW).holdings.holding_of(1).chunk_count == 10
        deliver(worker)
        worker.pool.reclaim_idle()
        assert worker.pool.holdings.by_topic == {}


@pytest.mark.parametrize(("alpha", "part"), [(1, 0.46), (4, 0.75), (16, 0.85)])
def test_a_large_message_finds_room_in_a_slab_without_a_backlog(alpha: int, part: float) -> None:
    with new_slab(GEOMETRY) as slab:
        worker = StreamInput(slab, topics=TOPICS, alpha=alpha)
        client = worker.connect()
        data = datagram(b"other", bytes(int(GEOMETRY.chunks * 8192 * part)))
        for _ in range(3):
            worker.feed((client, datagram(b"other", b"small") + data))
            deliver(worker)
            worker.feed((client, b""))
            assert not client.is_paused
            deliver(worker)
        assert count_books(slab).discarded == {}


def test_a_reload_to_discard_ends_the_wait_for_a_stuck_topic() -> None:
    with new_slab(GEOMETRY) as slab:
        worker, client = stuck_worker(slab)
        assert not worker.admission.may_resume(client, worker.now_ms)
        worker.admission.apply_limits(2_000_000, senders_wait=False)
        assert worker.admission.may_resume(client, worker.now_ms)
        worker.feed((client, b""))
        assert (client.is_paused, count_books(slab).discarded) == (False, {"TOPIC_OVER_SHARE": 1})


def test_replaced_timestamps_of_messages_that_wait_count_once() -> None:
    window = TimestampWindow(1000, 1000, is_clamp=True)
    with new_slab(GEOMETRY) as slab:
        worker = StreamInput(slab, topics=TOPICS, alpha=16, windows=lambda _: window)
        client, sent = worker.connect(), 0
        worker.now_ms = 10**12
        while not client.is_paused:
            worker.feed((client, datagram(b"stuck", LARGE, timestamp=5)))
            sent += 1
        for _ in range(20):
            worker.feed((client, b""))
        assert worker.row.counters[Counter.InputAgentReplaceTimestamp] == sent - 1
        deliver(worker)
        worker.feed((client, b""))
        assert worker.row.counters[Counter.InputAgentReplaceTimestamp] == sent
