"""Matching of faults, and their effect on the response bytes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from bruce_mp.devbroker.codes import ApiKey
from bruce_mp.devbroker.faults import EFFECTS, NO_FAULTS, Fault, FaultAction, FaultBook, Target, TriggeredFaults
from devbroker.kit import make_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FRAME = b"\0\0\0\x0c" + b"\0\0\0\x07" + b"answer.."
HITS = [Target("hits", 0)]
CLIENT = "127.0.0.1"
BATCH = Target("hits", 0, make_batch(2, codec=4))


def trigger_faults(book: FaultBook, targets: Callable[[], Iterable[Target]] = lambda: HITS) -> TriggeredFaults:
    return book.trigger_faults(ApiKey.PRODUCE, 1, CLIENT, targets)


def triggers(fault: Fault, requests: int, **where: Any) -> list[int]:
    """Return the numbers (from 1) of the requests that trigger the fault."""
    book = FaultBook()
    book.inject(fault)
    api, broker, targets = where.get("api", ApiKey.PRODUCE), where.get("broker", 1), where.get("targets", HITS)
    client = where.get("client", CLIENT)
    return [n for n in range(1, requests + 1) if book.trigger_faults(api, broker, client, lambda: targets).faults]


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({}, [1]),
        ({"nth": 3}, [3]),
        ({"times": 3}, [1, 2, 3]),
        ({"nth": 2, "every": 3, "times": None}, [2, 5, 8]),
        ({"every": 4, "times": 2}, [1, 5]),
    ],
)
def test_a_fault_is_triggered_at_the_selected_occurrences(when: dict[str, Any], expected: list[int]) -> None:
    assert triggers(Fault(action=FaultAction.CLOSE, **when), 10) == expected


@pytest.mark.parametrize(
    ("match", "where", "meets"),
    [
        ({}, {}, True),
        ({}, {"api": ApiKey.FETCH}, False),
        ({"api": None}, {"api": ApiKey.FETCH}, True),
        ({"broker": 1}, {}, True),
        ({"broker": 2}, {}, False),
        ({"topic": "hits"}, {}, True),
        ({"topic": "other"}, {}, False),
        ({"partition": 1}, {"targets": [Target("hits", 0), Target("other", 1)]}, True),
        ({"topic": "hits", "partition": 1}, {"targets": [Target("hits", 0), Target("other", 1)]}, False),
        ({"topic": "hits"}, {"targets": []}, False),
        ({"topic": "hits"}, {"targets": [Target()]}, True),
        ({"partition": 0}, {"targets": [Target()]}, False),
        ({"client": "127.0.0.1"}, {}, True),
        ({"client": "127.0.0.2"}, {}, False),
        ({"client": "127.0.0.0/30"}, {"client": "127.0.0.3"}, True),
        ({"client": "127.0.0.0/30"}, {"client": "127.0.0.4"}, False),
        ({"client": "127.0.0.2", "topic": "hits"}, {}, False),
        ({"text": "alu"}, {"targets": [BATCH]}, True),
        ({"text": "key1"}, {"targets": [BATCH]}, True),
        ({"text": "key2"}, {"targets": [BATCH]}, False),
        ({"text": "header"}, {"targets": [BATCH]}, False),
        ({"text": "value", "topic": "other"}, {"targets": [BATCH]}, False),
        ({"text": "value"}, {"targets": [Target("hits", 0, b"damaged")]}, False),
        ({"text": "value"}, {"targets": [Target("hits", 0)]}, False),
    ],
)
def test_a_fault_is_triggered_only_by_matching_requests(
    match: dict[str, Any], where: dict[str, Any], meets: bool
) -> None:
    assert bool(triggers(Fault(action=FaultAction.CLOSE, **match), 1, **where)) is meets


def test_only_matching_requests_count() -> None:
    book = FaultBook()
    book.inject(Fault(action=FaultAction.CLOSE, topic="hits", nth=2))
    requests = [[Target(*part)] for part in (("other", 0), ("hits", 0), ("other", 0), ("hits", 1))]
    triggered = [bool(trigger_faults(book, partial(iter, targets)).faults) for targets in requests]
    assert triggered == [False, False, False, True]


def test_an_error_is_for_the_matching_partitions_only() -> None:
    book = FaultBook()
    book.inject(Fault(action=FaultAction.ERROR, code=6, topic="hits", partition=1))
    book.inject(Fault(action=FaultAction.ERROR_APPENDED, code=7))
    parts = [Target("hits", partition) for partition in (0, 1)]
    triggered = trigger_faults(book, lambda: parts)
    assert [triggered.error_code(FaultAction.ERROR, part) for part in parts] == [0, 6]
    assert [triggered.error_code(FaultAction.ERROR_APPENDED, part) for part in parts] == [7, 7]


def test_an_error_by_text_is_for_the_partitions_with_the_text() -> None:
    book = FaultBook()
    book.inject(Fault(action=FaultAction.ERROR, code=6, text="poison"))
    parts = [Target("hits", 0, make_batch()), Target("hits", 1, make_batch(value=b"a poisoned value"))]
    triggered = trigger_faults(book, lambda: parts)
    assert [triggered.error_code(FaultAction.ERROR, part) for part in parts] == [0, 6]


@pytest.mark.parametrize(
    ("action", "sent"),
    [
        (FaultAction.ERROR, FRAME),
        (FaultAction.ACK_LOST, b""),
        (FaultAction.HALF_FRAME, FRAME[:8]),
        (FaultAction.WRONG_CORRELATION, b"\0\0\0\x0c\x40\0\0\x07answer.."),
        (FaultAction.GARBAGE_BODY, FRAME[:8] + b"\xff" * 8),
    ],
)
def test_each_action_changes_the_bytes_of_the_response(action: FaultAction, sent: bytes) -> None:
    book = FaultBook()
    book.inject(Fault(action=action))
    assert trigger_faults(book).mangle(FRAME) == sent


def test_several_faults_of_one_request_combine() -> None:
    book = FaultBook()
    book.inject(Fault(action=FaultAction.DELAY, ms=20))
    book.inject(Fault(action=FaultAction.DELAY, ms=30))
    book.inject(Fault(action=FaultAction.ACK_LOST))
    triggered = trigger_faults(book)
    assert (triggered.total_ms(FaultAction.DELAY), triggered.is_executed, triggered.closes) == (50, True, True)
    assert trigger_faults(book) == NO_FAULTS


@pytest.mark.parametrize(
    ("actions", "sent"),
    [
        ((FaultAction.ACK_LOST, FaultAction.WRONG_CORRELATION), b""),
        ((FaultAction.ACK_LOST, FaultAction.GARBAGE_BODY), b""),
        ((FaultAction.CLOSE, FaultAction.GARBAGE_FRAME), b""),
        ((FaultAction.HALF_FRAME, FaultAction.HALF_FRAME, FaultAction.WRONG_CORRELATION), FRAME[:4]),
    ],
)
def test_later_faults_change_only_the_bytes_that_remain(actions: tuple[FaultAction, ...], sent: bytes) -> None:
    assert TriggeredFaults(tuple(Fault(action=action) for action in actions)).mangle(FRAME) == sent


def test_clear_disarms_all_faults() -> None:
    book = FaultBook()
    book.inject(Fault(action=FaultAction.CLOSE, times=None))
    book.clear()
    assert trigger_faults(book) == NO_FAULTS


def test_one_fault_can_be_removed_by_its_number() -> None:
    book = FaultBook()
    first, second = (book.inject(Fault(action=FaultAction.DELAY, ms=ms, times=3)) for ms in (1, 2))
    trigger_faults(book)
    book.clear(first)
    assert [(some.number, some.fault.ms, some.matched, some.triggered) for some in book.injected] == [(second, 2, 1, 1)]


def test_every_action_has_an_effect() -> None:
    assert set(EFFECTS) == set(FaultAction)


@pytest.mark.parametrize(
    "wrong",
    [
        b'{"action":"close","nth":0}',
        b'{"action":"no"}',
        b'{"action":"close","odd":1}',
        b'{"action":"close","client":"host"}',
    ],
)
def test_an_invalid_fault_is_refused(wrong: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(wrong, type=Fault)
