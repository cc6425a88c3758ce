"""The queues of a dispatcher: those of topics that are gone are forgotten, and no others."""

from __future__ import annotations

from bruce_mp.dispatcher.queues import Queues, QueueState
from bruce_mp.slab.runs import Segment

SEGMENT = Segment(0, 1, 64, 152, 1, 1)


def test_only_idle_queues_of_topics_that_are_gone_are_forgotten() -> None:
    turn = {(5, 0): None}
    queues = Queues(6, {1}.__contains__, turn)
    queues.of(1, 0)
    queues.of(2, 0).ready.append(SEGMENT)
    queues.of(3, 0).state = QueueState.PAUSED
    queues.of(4, 0).hand_back = True
    in_turn = queues.of(5, 0)
    queues.of(6, 0)
    assert len(queues) == 6
    queues.of(7, 0)
    assert queues.keys() == {(number, 0) for number in (1, 2, 3, 4, 5, 7)}
    assert queues.of(5, 0) is in_turn
    turn.clear()
    queues.of(8, 0)
    assert queues.keys() == {(number, 0) for number in (1, 2, 3, 4, 8)}


def test_nothing_is_forgotten_while_there_are_few() -> None:
    queues = Queues(6, lambda _: False, {})
    first = queues.of(1, 0)
    for number in range(2, 7):
        queues.of(number, 0)
    assert queues.of(1, 0) is first
    assert len(queues) == 6
