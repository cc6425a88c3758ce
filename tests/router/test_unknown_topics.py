"""Unknown topics: their messages wait, topics are created or refused, and other topics continue."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bruce_mp.config.sections import Delivery
from bruce_mp.errors import DiscardReason
from bruce_mp.router import unknown_topics
from bruce_mp.router.cluster import MISSING_GRACE_MS, ClusterView, MissingTopics, TopicView
from bruce_mp.router.metadata_refresh import FetchSchedule
from bruce_mp.router.unknown_topics import (
    CREATED_FETCH_DELAYS_MS,
    CREATION_REFUSAL_MS,
    FORBIDDEN_RETRY_MS,
    MAX_CREATED_AT_ONCE,
    MAX_CREATION_REQUESTS,
    RETRIABLE,
    START_GRACE_MS,
    UNKNOWN_REFUSAL_MS,
    UnknownTopics,
)
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.runs import Segment
from support.examples import examples
from support.flow import ROUTER, World
from support.flow_parts import quick_config
from support.slabs import new_slab

if TYPE_CHECKING:
    from collections.abc import Iterator

GEOMETRY: Final = Geometry(chunks=320, topics=16, partitions=32, landing_slots=128, landing_slot_size=4096)
AUTOCREATE: Final = Delivery(
    min_pause_delay_ms=10, pause_rate_limit_initial_ms=10, pause_rate_limit_max_double=2, topic_autocreate=True
)
MANY: Final = [b"many-%d" % number for number in range(30)]
SEGMENT: Final = Segment(1, 1, 0, 0, 1, 1)
UNKNOWN_TOPIC, INVALID_TOPIC, ALREADY_EXISTS, NOT_CONTROLLER = 3, 17, 36, 41


@pytest.fixture
def world() -> Iterator[World]:
    """Topic "new" is led by broker 2, but does not exist yet; nor do many others."""
    with new_slab(GEOMETRY) as slab:
        world = World(
            slab, {b"t": [1], b"new": [2], **{topic: [3] for topic in MANY}}, quick_config(delivery=AUTOCREATE)
        )
        for topic in (b"new", *MANY):
            del world.topics[topic]
        world.step_until_synced()
        yield world
        world.close()


def wanted(world: World) -> list[bytes]:
    """Return the topics to create, after metadata without them."""
    for _ in range(20):
        world.step_all()
    return world.router.names_to_create


def answer(world: World, errors: dict[bytes, int]) -> None:
    """Request the creation of the wanted topics, with these answers."""
    world.router.on_creation_started(world.router.names_to_create)
    world.router.on_creation_answered(errors, world.now_ms)


def delivered(world: World, topic: bytes) -> int:
    return len(world.cluster.log(topic, 0))


@pytest.mark.parametrize("error", [0, 5, ALREADY_EXISTS])
def test_messages_wait_until_their_topic_is_created(world: World, error: int) -> None:
    for key in (None, 3, None):
        world.send_one(b"new", key=key)
    assert wanted(world) == [b"new"]
    world.send_one(b"t")
    for _ in range(20):
        world.step_all()
    assert (delivered(world, b"t"), world.held()) == (1, {"ROUTED": 3})
    answer(world, {b"new": error})
    world.topics[b"new"] = 1
    world.send_one(b"new")
    world.step_until_settled()
    world.check()
    assert delivered(world, b"new") == 4


def test_a_created_topic_is_looked_up_until_metadata_shows_it(world: World) -> None:
    world.send_one(b"new")
    wanted(world)
    answer(world, {b"new": 0})
    before = world.fetches
    world.advance_clock(sum(CREATED_FETCH_DELAYS_MS[:3]))
    for _ in range(300):
        world.step_all()
    assert 1 <= world.fetches - before <= len(CREATED_FETCH_DELAYS_MS)
    world.topics[b"new"] = 1
    world.advance_clock(CREATED_FETCH_DELAYS_MS[-1])
    world.step_until_settled()
    assert delivered(world, b"new") == 1


def test_messages_of_a_created_topic_that_never_appears_are_discarded_after_further_creations(world: World) -> None:
    world.send_one(b"new")
    wanted(world)
    for _ in range(MAX_CREATION_REQUESTS):
        assert world.router.names_to_create == [b"new"]
        answer(world, {b"new": 0})
        for wait_ms in CREATED_FETCH_DELAYS_MS:
            assert world.held() == {"ROUTED": 1}
            world.advance_clock(wait_ms)
            for _ in range(3):
                world.step_all()
    assert world.reporter.discarded == {DiscardReason.TOPIC_AUTOCREATE_FAIL: 1}


def test_a_failed_creation_is_not_retried_for_a_while(world: World) -> None:
    world.send_one(b"new")
    wanted(world)
    answer(world, {b"new": UNKNOWN_TOPIC})
    before = world.fetches
    for _ in range(20):
        world.send_one(b"new")
        world.step_until_settled()
    assert world.reporter.discarded == {DiscardReason.TOPIC_AUTOCREATE_FAIL: 21}
    assert (world.fetches, world.router.names_to_create) == (before, [])
    world.advance_clock(CREATION_REFUSAL_MS)
    world.send_one(b"new")
    assert wanted(world) == [b"new"]


@pytest.mark.parametrize("errors", [{}, *({b"new": error} for error in sorted(RETRIABLE))])
def test_an_inconclusive_creation_is_retried_a_limited_number_of_times(world: World, errors: dict[bytes, int]) -> None:
    world.send_one(b"new")
    for _ in range(MAX_CREATION_REQUESTS):
        assert wanted(world) == [b"new"]
        answer(world, errors)
        world.advance_clock(2000)
    assert wanted(world) == []
    assert world.reporter.discarded == {DiscardReason.TOPIC_AUTOCREATE_FAIL: 1}


@pytest.mark.parametrize("name", [b".", b"..", b"a/b", b"gr\xc3\xb6\xc3\x9fe", b"\xff", b"x" * 250, b"a\n"])
def test_an_invalid_topic_name_is_not_requested(world: World, name: bytes) -> None:
    world.send_one(name)
    assert wanted(world) == []
    assert world.reporter.discarded == {DiscardReason.TOPIC_AUTOCREATE_FAIL: 1}


def test_topics_are_created_only_while_the_table_has_room(world: World) -> None:
    world.send_one(b"t")
    for topic in MANY:
        world.send_one(topic)
    first = wanted(world)
    assert len(first) == GEOMETRY.topics - 2 <= MAX_CREATED_AT_ONCE  # number 0 is no topic, and one is known
    answer(world, dict.fromkeys(first, 0))
    world.topics.update(dict.fromkeys(first, 1))
    world.step_until_settled()
    assert world.reporter.discarded == {DiscardReason.BAD_TOPIC: len(MANY) - len(first)}


def test_no_further_topic_is_created_after_a_reload_without_automatic_creation(world: World) -> None:
    """Senders may have invented the names; the topics in a request may still be created."""
    world.send_one(b"new")
    assert wanted(world) == [b"new"]
    world.router.on_creation_started([b"new"])
    for topic in MANY[:3]:
        world.send_one(topic)
    assert sorted(wanted(world)) == MANY[:3]
    world.reload(quick_config(delivery=replace(AUTOCREATE, topic_autocreate=False)))
    world.apply_config(ROUTER)
    assert world.router.names_to_create == []
    world.advance_clock(START_GRACE_MS)
    assert wanted(world) == []
    assert world.reporter.discarded == {DiscardReason.BAD_TOPIC: 3}
    world.router.on_creation_answered({b"new": 0}, world.now_ms)
    world.topics[b"new"] = 1
    world.step_until_settled()
    assert delivered(world, b"new") == 1


def test_a_new_router_repeats_the_creation(world: World) -> None:
    world.send_one(b"new")
    wanted(world)
    world.router.on_creation_started([b"new"])
    world.kill_router()
    assert wanted(world) == [b"new"]


def test_no_topic_is_created_without_automatic_creation() -> None:
    with new_slab(GEOMETRY) as slab:
        world = World(slab, {b"t": [1]})
        world.step_until_synced()
        world.advance_clock(START_GRACE_MS)
        world.send_one(b"new")
        assert wanted(world) == []
        assert world.reporter.discarded == {DiscardReason.BAD_TOPIC: 1}
        world.close()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from([b"a", b"b", b"c!", b"t"])),
        st.tuples(
            st.just("answer"), st.sampled_from([0, UNKNOWN_TOPIC, INVALID_TOPIC, ALREADY_EXISTS, NOT_CONTROLLER])
        ),
        st.tuples(st.just("exists"), st.sampled_from([b"a", b"b"])),
        st.tuples(st.just("time"), st.sampled_from([10, 500, 6_000, 40_000])),
        st.tuples(st.just("kill"), st.just(0)),
        st.tuples(st.just("step"), st.just(0)),
    ),
    max_size=40,
)


@pytest.mark.exhaustive
@examples(30)
@given(steps=STEPS)
def test_each_message_is_delivered_or_discarded_in_any_sequence_of_events(steps: list[tuple[str, object]]) -> None:
    """And messages of known topics never wait for those of unknown ones."""
    with new_slab(GEOMETRY) as slab:
        world = World(slab, {b"t": [1], b"a": [2], b"b": [3]}, quick_config(delivery=AUTOCREATE))
        del world.topics[b"a"], world.topics[b"b"]
        for step, with_what in steps:
            take(world, step, with_what)
        for _ in range(10 * MAX_CREATION_REQUESTS):
            if world.is_settled():
                break
            wanted(world)
            answer(world, dict.fromkeys(world.router.names_to_create, INVALID_TOPIC))
            world.advance_clock(3000)
        assert world.is_settled(), world.held()
        world.check()
        world.close()


def take(world: World, step: str, with_what: object) -> None:
    if step == "send":
        assert isinstance(with_what, bytes)
        world.send_one(with_what)
    elif step == "answer":
        assert isinstance(with_what, int)
        answer(world, dict.fromkeys(world.router.names_to_create, with_what))
    elif step == "exists":
        assert isinstance(with_what, bytes)
        world.topics[with_what] = 1
    elif step == "time":
        assert isinstance(with_what, int)
        world.advance_clock(with_what)
    elif step == "kill":
        world.kill_router()
    else:
        world.step_all()


class Kept:
    """Where discards would be settled."""

    def settle(self, *_: object) -> None:
        raise AssertionError("it was discarded")


@pytest.mark.parametrize("autocreate", [True, False])
def test_messages_of_an_unauthorized_topic_wait_for_permission(*, autocreate: bool) -> None:
    refresh = FetchSchedule(random.Random(1))
    unknown = UnknownTopics(Kept(), refresh, lambda: 10, autocreate=autocreate)  # type: ignore[arg-type]
    unknown.on_metadata(lambda _: False, 0, 0)
    now = 10 * START_GRACE_MS
    unknown.park(b"secret", SEGMENT, now)
    unknown.park(b"no name", SEGMENT, now)
    assert unknown.names_to_request == [b"secret"]
    for _ in range(5):
        assert unknown.on_metadata(lambda name: name == b"no name", now, now, frozenset([b"secret"])) in ([], [SEGMENT])
        assert refresh.due_ms is not None
        assert unknown.names_to_create == []
        now += FORBIDDEN_RETRY_MS
    assert unknown.on_metadata(lambda _: True, now, now) == [SEGMENT]
    assert unknown.names_to_request == []


class Discarded:
    """The names of the topics of which messages were discarded."""

    def __init__(self) -> None:
        self.names: list[bytes] = []

    def settle(self, _segments: object, _reason: object, name: bytes, _counter: object) -> None:
        self.names.append(name)


def after_refusals() -> tuple[UnknownTopics, Discarded]:
    """Return unknown topics that have just refused "a" and "b", at time `START_GRACE_MS`, and their later discards."""
    discarded = Discarded()
    schedule = FetchSchedule(random.Random(1))
    unknown = UnknownTopics(discarded, schedule, lambda: 10, autocreate=False)  # type: ignore[arg-type]
    unknown.on_metadata(lambda _: False, 0, 0)
    for name in (b"a", b"b"):
        unknown.park(name, SEGMENT, START_GRACE_MS)
    unknown.on_metadata(lambda _: False, START_GRACE_MS, START_GRACE_MS)
    assert discarded.names == [b"a", b"b"]
    discarded.names.clear()
    return unknown, discarded


def test_a_refusal_ends_at_its_time() -> None:
    unknown, discarded = after_refusals()
    end_ms = START_GRACE_MS + UNKNOWN_REFUSAL_MS
    unknown.park(b"a", SEGMENT, end_ms - 1)
    unknown.park(b"b", SEGMENT, end_ms)
    assert discarded.names == [b"a"]
    assert list(unknown.waiting_segments()) == [(b"b", [SEGMENT])]


@pytest.mark.parametrize("autocreate", [True, False])
def test_a_refusal_ends_when_automatic_creation_is_enabled(*, autocreate: bool) -> None:
    unknown, discarded = after_refusals()
    unknown.apply_config(autocreate=autocreate)
    unknown.park(b"a", SEGMENT, START_GRACE_MS)
    assert discarded.names == ([] if autocreate else [b"a"])


def test_a_topic_beyond_the_limit_of_refusals_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unknown_topics, "MAX_REFUSED", 1)
    unknown, discarded = after_refusals()
    for name in (b"a", b"b"):
        unknown.park(name, SEGMENT, START_GRACE_MS)
    assert discarded.names == [b"a"]
    assert unknown.names_to_request == [b"b"]


def test_a_known_topic_that_is_hidden_is_not_missing() -> None:
    missing = MissingTopics()
    nothing = ClusterView({}, {}, frozenset([b"secret"]))
    for now in (0, 100 * MISSING_GRACE_MS):
        view = missing.keep_for_grace_period(nothing, {b"secret": 2, b"gone": 1}, {}, now)
    assert view.topics == {b"secret": TopicView((0, 1), {}, is_partial=True)}
    assert set(missing.names_to_request) == {b"secret", b"gone"}


def test_a_view_with_fewer_partitions_keeps_its_leaders() -> None:
    lagging = ClusterView({}, {b"t": TopicView((0, 1), {0: 2})})
    topic = MissingTopics().keep_for_grace_period(lagging, {b"t": 4}, {}, 0).topics[b"t"]
    assert topic == TopicView((0, 1, 2, 3), {0: 2}, is_partial=True)
    assert topic.key_partitions() == [], "none stands in for another"


def test_a_view_is_partial_while_a_lost_partition_is_in_use() -> None:
    missing = MissingTopics()
    response = ClusterView({}, {b"t": TopicView((0, 1), {0: 2}), b"u": TopicView((0,), {})})
    known = {b"t": 2, b"u": 1, b"gone": 3}
    for now in (0, 100 * MISSING_GRACE_MS):
        view = missing.keep_for_grace_period(response, known, {b"t": 4, b"u": 1, b"gone": 3}, now)
    assert view.topics == {**response.topics, b"t": TopicView((0, 1, 2, 3), {0: 2}, is_partial=True)}
    assert missing.keep_for_grace_period(response, known, {b"t": 2}, now).topics == response.topics
