"""Paused connections: the times and the order of their retries."""

from __future__ import annotations

import pytest

from bruce_mp.input import waiting
from bruce_mp.input.clients import UNIX, Client, Section
from bruce_mp.input.waiting import Waiting


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
    monkeypatch.setattr(waiting, "steady_ms", lambda: 1000)
    return FakeLoop()


def held(until_ms: int) -> Client:
    return Client(UNIX, Section(1), held_until_ms=until_ms)


def made(loop: FakeLoop, *until_ms: int) -> Waiting:
    found = Waiting(loop, lambda: None)  # type: ignore[arg-type]
    for descriptor, until in enumerate(until_ms):
        found.add(descriptor, held(until))
    return found


def test_for_room_it_is_looked_often_for_a_quota_when_its_interval_is_over(loop: FakeLoop) -> None:
    made(loop, 5000, 3000).pause()
    made(loop, 5000, 0).pause()
    assert [seconds for seconds, _ in loop.calls] == [2.0, 0.005]


def test_who_has_to_be_looked_at_earlier_moves_the_time(loop: FakeLoop) -> None:
    found = made(loop, 5000)
    found.pause()
    found.pause()
    found.add(7, held(2000))
    found.pause()
    assert [(seconds, timer.cancelled) for seconds, timer in loop.calls] == [(4.0, True), (1.0, False)]


def test_of_those_with_a_quota_others_go_first_the_next_time(loop: FakeLoop) -> None:
    found = made(loop, 2000, 0, 2000, 4000)
    assert found.due(1999) == [1]
    assert found.due(2000) == [0, 1, 2]
    assert found.due(4000) == [1, 3, 0, 2]
    assert found.is_for_room(1)
    found.discard(1)
    assert not found.some_for_room
    assert len(found) == 3


def test_new_quotas_have_everybody_looked_at(loop: FakeLoop) -> None:
    found = made(loop, 90_000, 0)
    found.look_soon()
    assert found.due(1000) == [0, 1]
    assert found.is_for_room(1)
    assert not found.is_for_room(0)
    assert [seconds for seconds, _ in loop.calls] == [0.001]
