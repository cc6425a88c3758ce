"""Paused connections: the times and the order of their retries."""

from __future__ import annotations

import pytest

from bruce_mp.input import paused_connections
from bruce_mp.input.flush_groups import FlushGroup
from bruce_mp.input.paused_connections import PausedConnections
from bruce_mp.input.stream_client import UNIX, StreamClientState


class FakeTimer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLoop:
    """Records the calls that are requested, and their times."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, FakeTimer]] = []

    def call_later(self, seconds: float, _: object) -> FakeTimer:
        self.calls.append((seconds, FakeTimer()))
        return self.calls[-1][1]


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> FakeLoop:
    monkeypatch.setattr(paused_connections, "steady_ms", lambda: 1000)
    return FakeLoop()


def held(until_ms: int) -> StreamClientState:
    return StreamClientState(UNIX, FlushGroup(1), paused_until_ms=until_ms)


def made(loop: FakeLoop, *until_ms: int) -> PausedConnections:
    found = PausedConnections(loop, lambda: None)  # type: ignore[arg-type]
    for descriptor, until in enumerate(until_ms):
        found.add(descriptor, held(until))
    return found


def test_retries_are_frequent_for_room_and_at_the_interval_end_for_quotas(loop: FakeLoop) -> None:
    made(loop, 5000, 3000).schedule_retry()
    made(loop, 5000, 0).schedule_retry()
    assert [seconds for seconds, _ in loop.calls] == [2.0, 0.005]


def test_an_earlier_deadline_reschedules_the_timer(loop: FakeLoop) -> None:
    found = made(loop, 5000)
    found.schedule_retry()
    found.schedule_retry()
    found.add(7, held(2000))
    found.schedule_retry()
    assert [(seconds, timer.cancelled) for seconds, timer in loop.calls] == [(4.0, True), (1.0, False)]


def test_connections_over_a_quota_are_retried_in_rotation(loop: FakeLoop) -> None:
    found = made(loop, 2000, 0, 2000, 4000)
    assert found.rotate_due(1999) == [1]
    assert found.rotate_due(2000) == [0, 1, 2]
    assert found.rotate_due(4000) == [1, 3, 0, 2]
    assert found.waits_for_room(1)
    found.discard(1)
    assert not found.any_waits_for_room
    assert len(found) == 3


def test_a_quota_reload_retries_every_connection(loop: FakeLoop) -> None:
    found = made(loop, 90_000, 0)
    found.retry_soon()
    assert found.rotate_due(1000) == [0, 1]
    assert found.waits_for_room(1)
    assert not found.waits_for_room(0)
    assert [seconds for seconds, _ in loop.calls] == [0.001]


def waiting_for(topic: bytes) -> StreamClientState:
    return StreamClientState(UNIX, FlushGroup(1), stuck_topic=topic, unprocessed=bytearray(10), is_paused=True)


def look(found: PausedConnections, now_ms: int, *, may_resume: bool) -> tuple[list[int], list[int]]:
    """Retry the connections that are due; return the asked ones and the ones admitted in vain."""
    asked: list[int] = []
    admitted: list[int] = []
    for descriptor in found.rotate_due(now_ms):

        def ask(_: StreamClientState, descriptor: int = descriptor) -> bool:
            asked.append(descriptor)
            return may_resume

        found.retry_one(descriptor, ask, admitted.append)
    found.pause_stuck_topics(now_ms)
    return asked, admitted


@pytest.mark.parametrize("may_resume", [False, True])
def test_one_connection_per_stuck_topic_is_retried_in_rotation(loop: FakeLoop, may_resume: bool) -> None:
    found = made(loop)
    for descriptor in range(6):
        found.add(descriptor, waiting_for(b"t%d" % (descriptor % 2)))
    for pair in ([0, 1], [2, 3], [4, 5], [0, 1]):
        asked, admitted = look(found, 1_000_000 * (1 + len(loop.calls)), may_resume=may_resume)
        assert (asked, admitted) == (pair, pair if may_resume else [])
        loop.calls.append((0, FakeTimer()))


def test_backoff_for_a_stuck_topic_doubles_up_to_a_limit(loop: FakeLoop) -> None:
    found, now_ms, pauses = made(loop), 1000, []
    client = waiting_for(b"t")
    found.add(1, client)
    for _ in range(6):
        look(found, now_ms, may_resume=False)
        pauses.append(client.paused_until_ms - now_ms)
        assert found.rotate_due(client.paused_until_ms - 1) == []
        now_ms = client.paused_until_ms
    assert pauses == [5, 10, 20, 40, 50, 50]


def test_backoff_for_a_stuck_topic_restarts_after_progress(loop: FakeLoop) -> None:
    found, client = made(loop), waiting_for(b"t")
    found.add(1, client)
    look(found, 1000, may_resume=False)
    look(found, 2000, may_resume=False)
    found.rotate_due(3000)
    found.retry_one(1, lambda _: True, lambda _: client.unprocessed.clear())
    found.pause_stuck_topics(3000)
    assert client.paused_until_ms == 3005


def test_backoff_for_a_stuck_topic_restarts_after_a_connection_resumes(loop: FakeLoop) -> None:
    found, resumed, other = made(loop), waiting_for(b"t"), waiting_for(b"t")
    found.add(1, resumed)
    found.add(2, other)
    for now_ms in (1000, 2000):
        look(found, now_ms, may_resume=False)
    assert other.paused_until_ms == 2010
    found.discard(1)
    look(found, 3000, may_resume=False)
    assert other.paused_until_ms == 3005
