"""Batches and answers of one dispatcher: limits, numbers, retries, refused records."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.config.sections import Batching, Delivery
from bruce_mp.dispatcher.queues import MAX_IN_FLIGHT
from bruce_mp.dispatcher.record_batches import LAST_EPOCH
from bruce_mp.errors import DiscardReason
from bruce_mp.ipc.frames import Parcel, ParcelKind
from bruce_mp.pipeline.pending_batch import SIZE_OVERHEAD
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.runs import segment_records
from bruce_mp.slab.tables import PartitionTable, TopicTable
from bruce_mp.telemetry.counters import Counter
from support.examples import examples
from support.flow import World
from support.flow_parts import quick_config
from support.slabs import datagram, new_slab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.config.model import Config
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment
    from support.fake_broker import RequestBatch

GEOMETRY: Final = Geometry(chunks=320, topics=16, partitions=32, landing_slots=64, landing_slot_size=4096)
SLOT: Final = 0
TOPIC: Final = 1

MakeWorld = Callable[..., World]


@pytest.fixture
def make() -> Iterator[MakeWorld]:
    """Makes worlds with one topic of one partition, booted, and takes them down again."""
    contexts = []

    def make_world(config: Config | None = None) -> World:
        context = new_slab(GEOMETRY)
        world = World(context.__enter__(), {b"t": [1]}, config or quick_config(action="none"))
        contexts.append((context, world))
        start(world)
        return world

    yield make_world
    for context, world in contexts:
        world.close()
        context.__exit__(None, None, None)


def start(world: World) -> None:
    """Boot, and get a first message through, so that the dispatcher may pipeline."""
    world.step_until_synced()
    world.send_one(b"t")
    world.step_until_settled()


def hand_over(world: World, *batches: int, size: int = 5) -> list[list[RequestBatch]]:
    """Queue `count` messages at a time, and return the requests that the dispatcher sends."""
    for count in batches:
        world.send([(b"t", datagram(b"t", b"v" * size), None)] * count)
        world.ring()
        world.deliver_to_dispatcher(SLOT)
        world.send_request(SLOT)
    return in_flight(world)


def in_flight(world: World) -> list[list[RequestBatch]]:
    connection = world.peers[SLOT].connection
    return [request.content for request in connection or []]


def settle(world: World) -> None:
    world.step_until_settled()
    world.check()


def step_until_discarded(world: World, count: int) -> None:
    for _ in range(2000):
        if sum(world.reporter.discarded.values()) >= count:
            return
        world.step_all()
    raise AssertionError(f"{dict(world.reporter.discarded)} instead of {count} discards")


def log_of(world: World) -> list[int]:
    return [record.arrival for record in world.cluster.log(b"t", 0)]


# --- limits -----------------------------------------------------------------------------------------------------------
@examples(25)
@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=60),
    request=st.integers(0, 2000),
    most=st.integers(450, 2000),
)
def test_batches_and_requests_stay_within_their_limits(sizes: list[int], request: int, most: int) -> None:
    with new_slab(GEOMETRY) as slab:
        batching = Batching(produce_request_data_limit=request, message_max_bytes=most)
        world = World(slab, {b"t": [1], b"u": [1]}, quick_config(batching=batching))
        payload = {}
        for size in sizes:
            payload[world.send_one((b"t", b"u")[size % 2], b"v" * size)] = size
        for _ in range(1000):
            world.step_all()
            for written in in_flight(world) if SLOT in world.peers else []:
                total = sum(payload[record.arrival] for batch in written for record in batch.records)
                assert total <= request or sum(len(batch.records) for batch in written) == 1
                for batch in written:
                    assert sum(payload[record.arrival] + SIZE_OVERHEAD for record in batch.records) <= most
            if world.is_settled():
                break
        world.check()
        world.close()


def test_a_partition_with_a_long_queue_leaves_the_others_their_turn() -> None:
    with new_slab(GEOMETRY) as slab:
        config = quick_config(action="none", batching=Batching(produce_request_data_limit=100))
        world = World(slab, {b"t": [1], b"u": [1]}, config)
        start(world)
        for topic in [b"t"] * 40 + [b"u"]:
            world.send_one(topic, b"v" * 80)
            world.ring()
        while any(world.to_peer[SLOT]):
            world.deliver_to_dispatcher(SLOT)
        before = len(world.requests)
        settle(world)
        sent = [batch.topic for request in world.requests[before:] for batch in request]
        assert (len(sent), sent.index(b"u")) == (41, 1)
        world.close()


@pytest.mark.parametrize("size", [0, 5])
def test_a_request_limit_of_0_gives_each_message_its_own_request(make: MakeWorld, size: int) -> None:
    """Also messages without bytes."""
    world = make(quick_config(action="none", batching=Batching(produce_request_data_limit=0)))
    before = len(world.requests)
    hand_over(world, 10, size=size)
    settle(world)
    assert [[batch.records for batch in request] for request in world.requests[before:]] == [
        [(record,)] for record in world.cluster.log(b"t", 0)[1:]
    ]


def test_five_batches_of_a_partition_are_in_flight_and_no_more(make: MakeWorld) -> None:
    world = make()
    assert len(hand_over(world, *[1] * 8)) == MAX_IN_FLIGHT
    settle(world)


def test_the_first_batch_of_a_partition_is_sent_alone(make: MakeWorld) -> None:
    """A broker that does not know us takes the second batch although it refused the first."""
    world = make()
    world.kill_peer(SLOT)
    world.step_until_synced()
    assert len(hand_over(world, 1, 1, 1)) == 1
    world.errors.append((19, False))
    world.answer(SLOT)
    settle(world)


def test_requests_in_flight_are_limited_per_broker(make: MakeWorld) -> None:
    world = make(quick_config(action="none", delivery=Delivery(max_in_flight=2)))
    assert len(hand_over(world, 1, 1, 1, 1)) == 2
    settle(world)


# --- numbers ----------------------------------------------------------------------------------------------------------
def test_sequence_numbers_wrap_to_zero(make: MakeWorld) -> None:
    world = make()
    PartitionTable(world.slab).store_next_sequence(TOPIC, 0, 2**31 - 4, 0)
    world.cluster.partitions[b"t", 0].recent.append((0, 2**31 - 5))
    written = hand_over(world, 3, 3, 3)
    assert [batch.base for (batch,) in written] == [2**31 - 4, 2**31 - 1, 2]
    world.break_connection(SLOT, executed=2)
    settle(world)
    world.kill_all()
    settle(world)


def test_batches_across_the_sequence_wrap_survive_a_restart(make: MakeWorld) -> None:
    world = make()
    PartitionTable(world.slab).store_next_sequence(TOPIC, 0, 2**31 - 4, 0)
    world.cluster.partitions[b"t", 0].recent.append((0, 2**31 - 5))
    hand_over(world, 3, 3, 3)
    world.kill_peer(SLOT)
    world.execute_stray()
    settle(world)


def test_a_resent_batch_is_unchanged(make: MakeWorld) -> None:
    world = make()
    first, second = hand_over(world, 2, 3)
    world.break_connection(SLOT)
    settle(world)
    assert world.requests[-2:] == [first, second]


def test_a_partition_without_epochs_left_sends_without_sequence_numbers(make: MakeWorld) -> None:
    world = make()
    PartitionTable(world.slab).store_next_sequence(TOPIC, 0, 0, LAST_EPOCH - 1)
    hand_over(world, 1)
    world.errors.append((47, False))
    world.answer(SLOT)
    settle(world)
    ((batch,),) = hand_over(world, 2)
    assert (batch.epoch, batch.base) == (-1, -1)
    world.break_connection(SLOT)
    settle(world)
    assert world.reporter.duplicates >= 2


# --- errors -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("code", [7, 13, 19, 20, 2, -1, 56, 6, 3, 5])
def test_retriable_errors_deliver_each_message_once_and_in_order(
    make: MakeWorld, code: int, *, is_written: bool
) -> None:
    world = make()
    hand_over(world, 2, 2, 2, 2, 2)
    world.answer(SLOT)
    world.errors.append((code, is_written))
    settle(world)
    assert len(log_of(world)) == 11
    assert world.reporter.duplicates == 0


@pytest.mark.parametrize("code", [7, 20, -1])
@pytest.mark.parametrize("is_poison", [True, False])
def test_a_refusal_behind_a_repeated_batch_loses_no_message(make: MakeWorld, code: int, *, is_poison: bool) -> None:
    """The repeated batch is written before the second one, so the broker expects the third and not the second."""
    world = make()
    hand_over(world, 1, 1)
    world.errors.append((code, True))
    world.step_until_settled()
    world.cluster.poison = {3} if is_poison else set()
    world.errors += [] if is_poison else [(42, False)]
    hand_over(world, 1)
    world.step_until_settled()
    hand_over(world, 1)
    settle(world)
    assert log_of(world) == [0, 1, 2, 4]


@pytest.mark.parametrize("code", [19, 20])
def test_a_repeated_batch_is_in_flight_alone(make: MakeWorld, code: int) -> None:
    """With new batches behind it, the broker would forget it, and write another repetition of it."""
    world = make()
    hand_over(world, *[1] * MAX_IN_FLIGHT)
    world.errors.append((20, True))
    for _ in range(MAX_IN_FLIGHT):
        world.answer(SLOT)
    world.advance_clock(2000)
    assert len(hand_over(world, 1, 1, 1, 1)) == 1
    answers = world.cluster.slow if code == 20 else world.cluster.refused
    answers[b"t", 0] = code
    world.answer(SLOT)
    answers.clear()
    settle(world)
    assert log_of(world) == list(range(10))


@pytest.mark.parametrize("code", [45, 47, 59, 49])
def test_a_sequence_error_raises_the_epoch_and_is_reported(make: MakeWorld, code: int) -> None:
    world = make()
    hand_over(world, 2, 2)
    world.errors.append((code, False))
    settle(world)
    assert PartitionTable(world.slab).epoch_and_sequence(TOPIC, 0)[0] == 1
    assert len(log_of(world)) == 5
    assert world.reporter.duplicates >= 2


def test_a_discarded_batch_leaves_no_sequence_gap(make: MakeWorld) -> None:
    world = make()
    hand_over(world, 1, 2, 3, 4)
    world.answer(SLOT)
    world.errors.append((42, False))
    settle(world)
    assert len(log_of(world)) == 1 + 1 + 3 + 4
    assert PartitionTable(world.slab).epoch_and_sequence(TOPIC, 0) == (0, 9), "no epoch was needed"
    assert world.reporter.discarded == {DiscardReason.KAFKA_ERROR_ACK: 2}
    assert world.peers[SLOT].core._row.counters[Counter.ConnectorGotDiscardAck] == 1


def test_an_uncertain_batch_before_a_discarded_one_is_not_duplicated(make: MakeWorld) -> None:
    """The first batch timed out, but is written; the second is given up; the others must not be numbered around it."""
    world = make()
    hand_over(world, 1, 2, 3, 4)
    world.errors += [(7, True), (42, False)]
    settle(world)
    assert len(log_of(world)) == 1 + 1 + 3 + 4


def test_numbers_are_not_used_twice_while_an_old_request_may_arrive(make: MakeWorld) -> None:
    world = make()
    hand_over(world, 1, 2, 3, 4)
    world.break_connection(SLOT)
    before = len(world.requests)
    stray, world.stray = world.stray, []
    world.errors.append((42, False))
    while len(world.requests) == before:
        world.step_all()
    world.stray = stray
    while world.stray:
        world.execute_stray()
        world.step_all()
    world.step_until_settled()
    log = log_of(world)
    assert len(log) == len(set(log))


def test_numbers_of_a_discarded_batch_are_not_used_again_while_its_request_may_arrive(make: MakeWorld) -> None:
    world = make(limited(1))
    hand_over(world, 1, 1)
    world.break_connection(SLOT)
    node, requests = world.stray.pop()
    for batch in requests.popleft().content:
        world.cluster.produce(node, batch)
    while sum(world.held().values()) > 1:
        world.step_all()
    world.cluster.refused[b"t", 0] = 19
    step_until_discarded(world, 1)
    world.cluster.refused.clear()
    hand_over(world, 1)
    world.answer(SLOT)
    world.stray.append((node, requests))
    world.execute_stray()
    settle(world)
    assert log_of(world) == [0, 1, 2, 3]


def test_a_refusal_does_not_resolve_earlier_uncertain_batches(make: MakeWorld) -> None:
    """All is written, the answers are lost, and then the permission is gone for a moment."""
    world = make()
    hand_over(world, 2, 2, 2)
    world.break_connection(SLOT, executed=3)
    world.cluster.refused[b"t", 0] = 42
    while not world.reporter.discarded:
        world.step_all()
    world.cluster.refused.clear()
    world.step_until_settled()
    assert len(log_of(world)) == 7


def test_a_sequence_gap_of_the_daemon_is_no_possible_duplicate(make: MakeWorld) -> None:
    world = make()
    hand_over(world, 2, 2, 2)
    world.cluster.poison = {1, 2}
    world.break_connection(SLOT)
    world.stray.clear()
    settle(world)
    assert PartitionTable(world.slab).epoch_and_sequence(TOPIC, 0)[0] == 1
    assert world.reporter.duplicates == 0


def test_a_gap_behind_the_rest_of_a_refused_batch_is_no_possible_duplicate(make: MakeWorld) -> None:
    """Another leader finds it, and only after the rest is accepted."""
    world = make(limited(1))
    world.names_refused, world.cluster.poison = True, {1}
    hand_over(world, 2)
    world.cluster.leaders[b"t", 0] = 2
    world.step_until_settled()
    world.cluster.leaders[b"t", 0] = 1
    world.send_one(b"t")
    settle(world)
    assert log_of(world) == [0, 2, 3]
    assert world.reporter.duplicates == 0


def test_sequence_numbers_are_not_reused_when_the_connection_breaks(make: MakeWorld) -> None:
    """The first batch is given up and its numbers would be free, but the others of the pipeline may yet arrive."""
    world = make()
    hand_over(world, 2, 2, 2, 2)
    world.errors.append((42, False))
    world.answer(SLOT)
    world.break_connection(SLOT)
    before = len(log_of(world))
    while len(log_of(world)) == before:
        world.step_all()
    while world.stray:
        world.execute_stray()
    settle(world)
    assert PartitionTable(world.slab).epoch_and_sequence(TOPIC, 0)[0] == 1


def test_an_unknown_error_is_retried_five_times(make: MakeWorld) -> None:
    world = make()
    hand_over(world, 2)
    for _ in range(5):
        world.errors.append((-1, False))
    settle(world)
    assert not world.reporter.discarded
    hand_over(world, 2)
    for _ in range(200):
        world.errors.append((-1, False))
        world.step_all()
    settle(world)
    assert world.reporter.discarded == {DiscardReason.POSSIBLY_DELIVERED: 2}


def limited(attempts: int) -> Config:
    delivery = Delivery(
        max_failed_attempts=attempts,
        min_pause_delay_ms=10,
        pause_rate_limit_initial_ms=10,
        pause_rate_limit_max_double=2,
    )
    return quick_config(action="none", delivery=delivery)


def test_max_failed_attempts_applies_to_cluster_errors(make: MakeWorld) -> None:
    world = make(limited(2))
    hand_over(world, 3)
    for _ in range(300):
        world.errors.append((19, False))
        world.step_all()
    settle(world)
    assert world.reporter.discarded == {DiscardReason.DELIVERY_ATTEMPT_LIMIT: 3}
    assert world.peers[SLOT].core._row.counters[Counter.DiscardOnFailedDeliveryAttemptLimit] == 3


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("code", [6, 7, 13, 20, 56, -1])
def test_batches_given_up_after_an_ambiguous_error_are_discarded_in_doubt(
    make: MakeWorld, code: int, *, is_written: bool
) -> None:
    """Batches of one message each: the first fails twice, and the following ones are no possible duplicates."""
    world = make(limited(1))
    hand_over(world, *[1] * MAX_IN_FLIGHT)
    answers = world.cluster.slow if is_written else world.cluster.refused
    answers[b"t", 0] = code
    step_until_discarded(world, 1)
    answers.clear()
    settle(world)
    hand_over(world, *[1] * MAX_IN_FLIGHT)
    settle(world)
    in_doubt = world.reporter.discarded.pop(DiscardReason.POSSIBLY_DELIVERED)
    assert not world.reporter.discarded
    expected = len(world.received) - (0 if is_written else in_doubt)
    assert len(log_of(world)) == expected
    assert world.reporter.duplicates == 0


def test_a_batch_in_doubt_stays_so_when_another_dispatcher_discards_it(make: MakeWorld) -> None:
    world = make()
    hand_over(world, 2, 3)
    world.break_connection(SLOT, executed=1)
    world.kill_all()
    world.cluster.refused[b"t", 0] = 42
    step_until_discarded(world, 5)
    world.cluster.refused.clear()
    settle(world)
    assert world.reporter.discarded == {DiscardReason.POSSIBLY_DELIVERED: 5}


def test_a_batch_refused_before_any_doubt_is_not_in_doubt(make: MakeWorld) -> None:
    world = make(limited(1))
    hand_over(world, 2)
    world.errors += [(19, False)] * 2
    for _ in range(300):
        world.step_all()
    settle(world)
    assert world.reporter.discarded == {DiscardReason.DELIVERY_ATTEMPT_LIMIT: 2}


def test_retries_back_off(make: MakeWorld) -> None:
    world = make()
    world.cluster.refused[b"t", 0] = 19
    hand_over(world, 1)
    before = len(world.requests)
    for _ in range(1000):  # ten seconds
        world.step_all()
    assert 4 <= len(world.requests) - before <= 9
    world.cluster.refused.clear()
    settle(world)


def test_a_partition_in_backoff_does_not_delay_another() -> None:
    with new_slab(GEOMETRY) as slab:
        world = World(slab, {b"t": [1, 1]}, quick_config(action="none"))
        world.step_until_synced()
        world.cluster.refused[b"t", 0] = 19
        for _ in range(100):
            world.send([(b"t", datagram(b"t", b"v", partition_key=key), key) for key in (0, 1)])
            world.step_all()
        for _ in range(10):
            world.step_all()
        assert [len(world.cluster.log(b"t", partition)) for partition in (0, 1)] == [0, 100]
        world.cluster.refused.clear()
        settle(world)
        world.close()


# --- refused properties -----------------------------------------------------------------------------------------------
def test_a_topic_without_sequence_number_support_is_sent_without_them(make: MakeWorld) -> None:
    world = make()
    hand_over(world, 2, 2, 2)
    world.errors += [(43, False)] * 3
    settle(world)
    ((batch,),) = hand_over(world, 2)
    assert (batch.epoch, batch.base) == (-1, -1)
    settle(world)
    assert not world.reporter.discarded
    assert world.reporter.duplicates == 0
    world.kill_all()
    world.step_until_synced()
    assert [len(request) for request in hand_over(world, 2, 2)] == [1], "one at a time"
    world.break_connection(SLOT)
    settle(world)
    assert world.reporter.duplicates == 2


def test_batches_that_lose_their_sequence_numbers_stay_in_order(make: MakeWorld) -> None:
    """The broker would accept an unnumbered batch behind a refused one."""
    world = make()
    hand_over(world, 1, 1)
    world.errors += [(43, False)] * 2
    world.answer(SLOT)
    world.answer(SLOT)
    world.send_request(SLOT)
    world.send_request(SLOT)
    world.errors.append((19, False))
    settle(world)
    assert log_of(world) == [0, 1, 2]


def test_error_43_discards_a_batch_without_sequence_numbers(make: MakeWorld) -> None:
    world = make()
    PartitionTable(world.slab).store_next_sequence(TOPIC, 0, 0, LAST_EPOCH)
    hand_over(world, 2)
    world.errors.append((43, False))
    settle(world)
    assert world.reporter.discarded == {DiscardReason.KAFKA_ERROR_ACK: 2}


def test_a_batch_refused_for_its_codec_is_resent_uncompressed(make: MakeWorld) -> None:
    world = make()
    hand_over(world, 2, 2, 2)
    assert (b"t", 0) not in world.peers[SLOT].core.uncompressed_partitions
    world.errors += [(76, False)] * 3
    settle(world)
    assert {(b"t", 0)} == world.peers[SLOT].core.uncompressed_partitions
    assert not world.reporter.discarded
    hand_over(world, 2)
    world.errors.append((76, False))
    settle(world)
    assert world.reporter.discarded == {DiscardReason.KAFKA_ERROR_ACK: 2}


def test_a_fatal_error_is_listed_until_the_topic_accepts_a_batch(make: MakeWorld) -> None:
    world = make()
    table = TopicTable(world.slab)
    hand_over(world, 2)
    world.errors.append((42, False))
    settle(world)
    assert table.refusals() == {b"t": 42}
    hand_over(world, 2)
    settle(world)
    assert not table.refusals()


@pytest.mark.parametrize("code", [29, 31])
def test_an_authorization_error_holds_messages_and_is_listed_until_resolved(make: MakeWorld, code: int) -> None:
    world = make()
    table = TopicTable(world.slab)
    hand_over(world, 2, 3)
    world.cluster.refused[b"t", 0] = code
    for _ in range(50):
        world.step_all()
    assert table.refusals() == {b"t": code}
    assert not world.reporter.discarded
    world.cluster.refused.clear()
    settle(world)
    assert not table.refusals()
    assert not world.reporter.discarded
    assert len(log_of(world)) == 1 + 2 + 3
    assert world.reporter.duplicates == 0


def test_a_throttled_broker_gets_no_request_until_the_throttle_ends(make: MakeWorld) -> None:
    world = make()
    core = world.peers[SLOT].core
    now = world.now_ms / 1000
    core.throttle_until(now + 5)
    core.throttle_until(now + 1)
    assert not hand_over(world, 2)
    assert core.retry_at == now + 5
    world.advance_clock(5000)
    world.send_request(SLOT)
    assert len(in_flight(world)) == 1
    settle(world)


# --- handing back -----------------------------------------------------------------------------------------------------
def test_a_hand_back_waits_for_responses_up_to_its_deadline(make: MakeWorld) -> None:
    world = make()
    core = world.peers[SLOT].core
    hand_over(world, 2, 2)
    world.cluster.leaders[b"t", 0] = 2
    asked = world.now_ms
    world.router.request_fetch_now(asked)
    for _ in range(100):
        world.advance_clock(10)
        world.answer_fetch()
        world.deliver_to_dispatcher(SLOT)
        if core.update_hand_back_deadline() is not None:
            break
    ends = core.update_hand_back_deadline() or 0
    assert asked + 5000 <= ends <= asked + 6000
    world.break_connection(SLOT)
    settle(world)
    assert log_of(world) == list(range(5))


def test_a_hand_back_with_all_responses_stops_waiting(make: MakeWorld) -> None:
    world = make()
    core = world.peers[SLOT].core
    hand_over(world, 2)
    core.on_parcels(
        [Parcel(ParcelKind.SENDER, 0, core._router_incarnation), Parcel(ParcelKind.HAND_BACK, TOPIC, 0)], world.now_ms
    )
    ends = core.update_hand_back_deadline()
    world.answer(SLOT)
    assert (ends, core.update_hand_back_deadline()) == (world.now_ms + 5000, None)


def test_handing_back_all_partitions_resends_everything_in_order(make: MakeWorld) -> None:
    world = make()
    hand_over(world, 2, 2, 2)
    world.router.hand_back_all(world.now_ms)
    settle(world)
    assert len(log_of(world)) == 7


# --- refused records ------------------------------------------------------------------------------------------------
def test_only_the_rejected_record_is_discarded_and_named(make: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    world = make()
    world.cluster.poison = {12}
    with caplog.at_level(logging.ERROR, logger="bruce_mp.dispatcher"):
        hand_over(world, 30, 5)
        settle(world)
    assert world.reporter.discarded == {DiscardReason.KAFKA_ERROR_ACK: 1}
    (line,) = [record.message for record in caplog.records]
    assert line == "Topic t, partition 0: discarded a message of 5 bytes, key b''."
    assert PartitionTable(world.slab).epoch_and_sequence(TOPIC, 0)[0] == 0, "no epoch was needed"


def test_records_named_by_the_response_are_discarded_immediately(make: MakeWorld) -> None:
    world = make()
    world.names_refused = True
    world.cluster.poison = {3, 4, 5, 20}
    requests = len(hand_over(world, 30))
    world.answer(SLOT)
    world.send_request(SLOT)
    assert requests == len(in_flight(world)) == 1
    assert len(in_flight(world)[0][0].records) == 26
    settle(world)
    assert world.reporter.discarded == {DiscardReason.KAFKA_ERROR_ACK: 4}


@pytest.mark.parametrize("kill_at", range(8))
def test_a_death_before_the_discard_of_a_record_loses_no_other(make: MakeWorld, kill_at: int) -> None:
    """The broker accepts the record when it is sent again, under other numbers than the rest of its batch has."""
    world = make()
    world.names_refused, world.cluster.poison = True, {1}
    hand_over(world, 2)
    world.answer(SLOT, kill_at=kill_at)
    world.cluster.poison = set()
    world.step_until_settled()
    assert len(set(log_of(world))) == 3 - sum(count_books(world.slab).discarded.values())


@pytest.mark.parametrize("names", [False, True])
def test_the_rest_of_a_written_batch_counts_as_possible_duplicates(make: MakeWorld, names: bool) -> None:
    """The broker refuses a record only after it has written the batch, and does not recognize the rest."""
    world = make()
    start(world)
    world.names_refused = names
    world.send([(b"t", datagram(b"t"), None)] * 4)
    world.ring()
    world.deliver_to_dispatcher(SLOT)
    world.send_request(SLOT)
    world.break_connection(SLOT, executed=1)
    world.cluster.poison = {2}
    world.step_until_settled()
    log = log_of(world)
    repeated_count = len(log) - len(set(log))
    assert 0 < repeated_count <= world.reporter.duplicates
    assert world.reporter.discarded == {DiscardReason.POSSIBLY_DELIVERED: 1}


def test_remaining_records_of_a_batch_are_settled_in_bounded_transactions(
    make: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refused record cuts a segment in two, and a transaction has room for a limited number."""
    for module in ("slab.rows", "dispatcher.record_batches", "dispatcher.produce_responses"):
        monkeypatch.setattr(f"bruce_mp.{module}.MAX_SETTLED_SEGMENTS", 3)
    world = make()
    world.names_refused = True
    for _ in range(3):
        world.send([(b"t", datagram(b"t"), None)] * 3)
        world.ring()
    for _ in range(3):
        world.deliver_to_dispatcher(SLOT)
    world.cluster.poison = {2, 5, 8}
    settle(world)
    assert world.reporter.discarded == {DiscardReason.KAFKA_ERROR_ACK: 3}


@examples(30)
@given(
    batches=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    poison=st.sets(st.integers(1, 60), max_size=12),
    losses=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), max_size=3),
    death=st.none() | st.integers(0, 40),
    names=st.booleans(),
)
def test_accepted_records_are_delivered_once_and_in_order(
    batches: list[int], poison: set[int], losses: list[tuple[int, int]], death: int | None, *, names: bool
) -> None:
    with new_slab(GEOMETRY) as slab:
        world = World(slab, {b"t": [1]}, quick_config(action="none"))
        start(world)
        world.cluster.poison = {arrival for arrival in poison if arrival <= sum(batches)}
        world.names_refused = names
        hand_over(world, *batches)
        for step in range(41):
            for at, executed in losses:
                if at == step:
                    world.break_connection(SLOT, executed=executed)
            if death == step:
                world.kill_peer(SLOT)
            world.step_all()
        settle(world)
        assert sum(world.reporter.discarded.values()) == len(world.cluster.poison)
        world.close()


# --- timestamps -------------------------------------------------------------------------------------------------------
AHEAD_MS: Final = 10**15


def send_stamped(world: World, *timestamps: int) -> None:
    """One batch of messages with these timestamps is in flight."""
    world.send([(b"t", datagram(b"t", b"v", timestamp=each), None) for each in timestamps])
    world.ring()
    world.deliver_to_dispatcher(SLOT)
    world.send_request(SLOT)


def timestamps_of(world: World) -> list[int]:
    return [record.timestamp for record in world.cluster.log(b"t", 0)]


@pytest.mark.parametrize("names", [True, False])
def test_a_rejected_timestamp_is_replaced_by_the_arrival_time(
    make: MakeWorld, caplog: pytest.LogCaptureFixture, *, names: bool
) -> None:
    world = make()
    world.cluster.latest_ms, world.names_refused = 10**14, names
    arrived_ms = world.input.now_ms
    with caplog.at_level(logging.WARNING, logger="bruce_mp.dispatcher.produce_responses"):
        send_stamped(world, 11, AHEAD_MS, 12, AHEAD_MS + 1, 13)
        hand_over(world, 4)
        settle(world)
    found = timestamps_of(world)
    assert log_of(world) == list(range(10))
    assert [found[1], found[3], found[5]] == [11, 12, 13]
    assert [found[2], found[4]] == pytest.approx([arrived_ms] * 2, abs=100)
    assert not world.reporter.discarded
    assert world.peers[SLOT].core._row.counters[Counter.ConnectorReplaceTimestamp] == 2
    assert any(f"{AHEAD_MS}" in record.message for record in caplog.records)
    assert PartitionTable(world.slab).epoch_and_sequence(TOPIC, 0)[0] == 0, "no epoch was needed"


def test_a_record_rejected_with_its_arrival_time_is_discarded(make: MakeWorld) -> None:
    world = make()
    world.cluster.latest_ms, world.names_refused = -1, True
    send_stamped(world, -5, AHEAD_MS, -6)
    settle(world)
    assert timestamps_of(world)[1:] == [-5, -6]
    assert world.reporter.discarded == {DiscardReason.KAFKA_ERROR_ACK: 1}
    assert world.peers[SLOT].core._row.counters[Counter.ConnectorReplaceTimestamp] == 1


def test_a_rejected_explicit_timestamp_is_discarded_and_not_replaced(make: MakeWorld) -> None:
    world = make()
    world.cluster.latest_ms, world.names_refused = 10**14, True
    world.send([(b"t", datagram(b"t", b"v", timestamp=each), None) for each in (11, AHEAD_MS)])
    (segment,) = world.doorbells[-1]
    for offset, _ in segment_records(world.slab, segment):
        world.slab.view[world.slab.chunk_at(segment.chunk) + offset + lay.RECORD_OPTIONS] = lay.OPTION_KEEPS_TIMESTAMP
    settle(world)
    assert timestamps_of(world)[1:] == [11]
    assert world.reporter.discarded == {DiscardReason.KAFKA_ERROR_ACK: 1}


@pytest.mark.exhaustive
@examples(30)
@given(
    batches=st.lists(st.lists(st.sampled_from([5, AHEAD_MS]), min_size=1, max_size=8), min_size=1, max_size=8),
    losses=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), max_size=3),
    deaths=st.lists(st.integers(0, 40), max_size=3),
    names=st.booleans(),
)
def test_replaced_timestamps_lose_no_message_when_connections_break(
    batches: list[list[int]], losses: list[tuple[int, int]], deaths: list[int], *, names: bool
) -> None:
    with new_slab(GEOMETRY) as slab:
        world = World(slab, {b"t": [1]}, quick_config(action="none"))
        start(world)
        world.cluster.latest_ms, world.names_refused = 10**14, names
        for batch in batches:
            send_stamped(world, *batch)
        for step in range(41):
            for at, executed in losses:
                if at == step:
                    world.break_connection(SLOT, executed=executed)
            if step in deaths:
                world.kill_peer(SLOT)
            world.step_all()
        settle(world)
        assert not world.reporter.discarded
        world.close()


# --- damage -----------------------------------------------------------------------------------------------------------
def damage(slab: Slab, segment: Segment) -> None:
    slab.words[(slab.chunk_at(segment.chunk) + segment.first + lay.RECORD_VALUE_LENGTH) >> 2] = 2**31


def deliver(world: World, messages: int) -> None:
    for _ in range(100):
        if len(log_of(world)) == messages:
            return
        world.step_all()
    raise AssertionError(f"{log_of(world)} after 100 rounds")


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_damaged_run_is_skipped_and_others_are_delivered(make: MakeWorld, damaged: int, acks: int) -> None:
    world = make(quick_config(action="none", acks=acks))
    for number in range(3):
        world.send([(b"t", datagram(b"t"), None)] * 2)
        if number == damaged:
            damage(world.slab, world.doorbells[-1][0])
        world.ring()
    for _ in range(3):
        world.deliver_to_dispatcher(SLOT)
    hand_over(world, 2)
    deliver(world, 1 + 2 + 2 + 2)
    world.kill_peer(SLOT)
    world.send_one(b"t")
    deliver(world, 1 + 2 + 2 + 2 + 1)
    assert log_of(world) == sorted(log_of(world))
    assert count_books(world.slab).held["in_flight"] == 2
    assert world.peers[SLOT].core._row.counters[Counter.RefusedDamagedPlace] >= 2


@pytest.mark.parametrize("action", ["none", "combined"])
def test_a_damaged_run_is_quarantined_and_its_parcel_is_processed(make: MakeWorld, action: str) -> None:
    world = make(quick_config(action=action))
    for _ in range(3):
        world.send_one(b"t")
    runs = [segment for doorbell in world.doorbells for segment in doorbell]
    world.doorbells.clear()
    world.doorbells.append(runs)
    world.ring()
    world.slab.words[(world.slab.chunk_at(runs[1].chunk) + runs[1].run + lay.RUN_SIZE) >> 2] += 4
    world.now_ms += 1000
    deliver(world, 1 + 2)
    assert world.peers[SLOT].core._row.counters[Counter.RefusedDamagedPlace] == 1


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_run_damaged_in_its_queue_is_skipped_and_its_neighbours_are_sent(make: MakeWorld, damaged: int) -> None:
    world = make(quick_config(action="none"))
    runs: list[Segment] = []
    for _ in range(3):
        world.send_one(b"t")
        runs += world.doorbells[-1]
        world.ring()
    for _ in range(3):
        world.deliver_to_dispatcher(SLOT)
    world.slab.words[(world.slab.chunk_at(runs[damaged].chunk) + runs[damaged].run + lay.RUN_COUNT) >> 2] += 1
    deliver(world, 1 + 2)
    hand_over(world, 2)
    deliver(world, 1 + 2 + 2)
    assert log_of(world) == sorted(log_of(world))
    assert world.peers[SLOT].core._row.counters[Counter.RefusedDamagedPlace] == 1


def test_a_damaged_run_that_needs_splitting_is_skipped(make: MakeWorld) -> None:
    world = make(quick_config(action="none", batching=Batching(message_max_bytes=100)))
    world.send([(b"t", datagram(b"t", b"v" * 30), None)] * 3)
    damage(world.slab, world.doorbells[-1][0])
    world.ring()
    hand_over(world, 2)
    deliver(world, 3)


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_record_damaged_in_flight_is_left_out_when_its_timestamp_is_refused(
    make: MakeWorld, damaged: int, *, names: bool
) -> None:
    world = make()
    world.cluster.latest_ms, world.names_refused = 10**14, names
    for number in range(3):
        world.send([(b"t", datagram(b"t", timestamp=AHEAD_MS), None)] * 2)
        run = world.doorbells[-1][0]
        world.ring()
        world.deliver_to_dispatcher(SLOT)
        world.send_request(SLOT)
        if number == damaged:
            damage(world.slab, run)
    assert len(in_flight(world)) == 3
    deliver(world, 1 + 2 + 2)
    hand_over(world, 2)
    deliver(world, 1 + 2 + 2 + 2)
    assert log_of(world) == sorted(log_of(world))
    assert world.peers[SLOT].core._row.counters[Counter.RefusedDamagedPlace] == 1


# --- brokers that do not recognise a batch ----------------------------------------------------------------------------
def test_one_batch_is_in_flight_and_duplicates_are_counted_without_idempotence(make: MakeWorld) -> None:
    world = make(quick_config(action="none", acks=1))
    assert len(hand_over(world, 2, 2, 2)) == 1
    world.break_connection(SLOT, executed=0)
    world.execute_stray()
    world.step_until_settled()
    world.check(duplicates=True)
    assert world.reporter.duplicates == 2
    assert len(log_of(world)) == 1 + 6 + 2
