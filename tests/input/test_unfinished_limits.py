"""Limits on unfinished messages: grants, order, users, time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.config.inputs import Input, Streams
from bruce_mp.config.sizes import GIB, MIB
from bruce_mp.input.flush_groups import FlushGroup
from bruce_mp.input.stream_client import UNIX, StreamClientState
from bruce_mp.input.unfinished_limits import MIN_READ, ReadDecision, UnfinishedLimits, UnfinishedMessages
from support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGE: Final = 100_000
LIMITS: Final = UnfinishedLimits(total=4 * LARGE, per_user=2 * LARGE, timeout_ms=1000)
READ, WAIT, CLOSE = ReadDecision.READ, ReadDecision.WAIT, ReadDecision.CLOSE


def client(user: int = 1, received: int = 1000, full_size: int = LARGE) -> StreamClientState:
    return StreamClientState(
        UNIX, FlushGroup(0), user=user, origin=user, unprocessed=bytearray(received), full_size=full_size
    )


def complete(messages: UnfinishedMessages, some: StreamClientState) -> None:
    some.unprocessed, some.full_size = bytearray(), 0
    assert messages.update(some, 0) is READ


def test_a_message_waits_when_its_user_has_no_room_and_other_users_are_read() -> None:
    messages = UnfinishedMessages(LIMITS)
    first, second, third = (client() for _ in range(3))
    assert [messages.update(each, 0) for each in (first, second, third)] == [READ, READ, WAIT]
    assert [messages.update(client(user=2), 0) for _ in range(3)] == [READ, READ, WAIT]
    assert messages.update(client(user=3), 0) is WAIT  # no room at all
    complete(messages, first)
    assert messages.grant_waiting(0) == [third]


def test_waiting_messages_get_grants_in_order_when_a_large_one_is_first() -> None:
    messages = UnfinishedMessages(LIMITS._replace(per_user=4 * LARGE))
    running = [client() for _ in range(4)]
    assert [messages.update(each, 0) for each in running] == [READ] * 4
    large, small = client(full_size=2 * LARGE), client()
    assert [messages.update(each, 0) for each in (large, small)] == [WAIT, WAIT]
    complete(messages, running[0])
    assert messages.grant_waiting(0) == []
    complete(messages, running[1])
    assert messages.grant_waiting(0) == [large]
    complete(messages, running[2])
    assert messages.grant_waiting(0) == [small]


def test_a_connection_is_closed_when_bytes_without_a_grant_exceed_the_limit_of_its_user() -> None:
    messages = UnfinishedMessages(LIMITS)
    pieces = [client(received=MIN_READ, full_size=0) for _ in range(4)]
    assert [messages.update(each, 0) for each in pieces] == [READ, READ, READ, CLOSE]
    assert messages.update(client(user=2, received=MIN_READ, full_size=0), 0) is READ
    messages.remove(pieces[0])
    assert messages.update(pieces[3], 0) is READ


def test_a_message_is_idle_when_it_does_not_grow_unless_it_waits_for_a_grant() -> None:
    messages = UnfinishedMessages(LIMITS)
    growing, idle, small, also, waiting = client(), client(), client(user=2, full_size=0), client(user=2), client()
    assert [messages.update(each, 0) for each in (growing, idle, small, also, waiting)] == [READ] * 4 + [WAIT]
    assert messages.update(growing, 900) is READ
    assert messages.find_idle(1000) == []
    assert messages.find_idle(1001) == [idle, small, also]


def test_a_paused_client_has_no_unfinished_message() -> None:
    messages = UnfinishedMessages(LIMITS)
    paused = client(received=9 * LARGE, full_size=0)
    paused.is_paused = True
    assert messages.update(paused, 0) is READ
    assert messages.find_idle(9999) == []


def test_limits_are_divided_among_workers_and_admit_the_largest_message() -> None:
    streams = Streams(workers=4, max_unfinished_size=256 * MIB, max_unfinished_size_per_user=MIB)
    assert UnfinishedLimits.of(Input(streams=streams)) == (64 * MIB, 2 * MIB + 4, 60_000)
    assert UnfinishedLimits.of(Input(streams=streams, max_stream_size=GIB))[:2] == (GIB + 4, GIB + 4)


_steps = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 2), st.integers(0, MIN_READ), st.sampled_from([0, LARGE, 2 * LARGE])),
    max_size=60,
)


@examples(100)
@given(_steps)
def test_memory_stays_within_the_limits_and_returns_to_zero_in_any_order(
    steps: Sequence[tuple[int, int, int, int]],
) -> None:
    messages = UnfinishedMessages(LIMITS)
    clients: dict[int, StreamClientState] = {}
    granted: set[StreamClientState] = set()
    for who, user, received, full_size in steps:
        some = clients.setdefault(who, client(user))
        some.unprocessed, some.full_size = bytearray(received), full_size if received else 0
        decision = messages.update(some, 0)
        granted.discard(some)
        if decision is READ and some.full_size:
            granted.add(some)
        if decision is CLOSE:
            messages.remove(clients.pop(who))
        granted.update(messages.grant_waiting(0))
        assert sum(each.full_size for each in granted) <= LIMITS.total
        for one in (1, 2):
            assert sum(each.full_size for each in granted if each.origin == one) <= LIMITS.per_user
    for some in list(clients.values()):
        complete(messages, some)
        for now_granted in messages.grant_waiting(0):
            assert now_granted.unprocessed
    assert (sum(messages._totals.values()), dict(messages._by_origin), messages._usages, messages._waiting) == (
        0,
        {},
        {},
        {},
    )
