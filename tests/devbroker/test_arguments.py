"""Faults and commands from the words of a command line."""

from __future__ import annotations

import pytest

from bruce_mp.devbroker.arguments import ArgumentError, parse_command, parse_fault
from bruce_mp.devbroker.codes import ApiKey
from bruce_mp.devbroker.commands import COMMANDS_BY_NAME, Inject, ListFaults, MoveLeader, WaitUntil
from bruce_mp.devbroker.faults import Fault, FaultAction

COMMANDS = (
    "add_partitions add_topic appended_since batches broker_down broker_up clear_faults delete_topic double_batch "
    "drop_batch get_statistics inject list_faults move_leader partition_count swap_batches wait_until"
)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["close"], Fault(action=FaultAction.CLOSE)),
        (["ack-lost", "times=always"], Fault(action=FaultAction.ACK_LOST, times=None)),
        (["error", "code=7", "topic=7"], Fault(action=FaultAction.ERROR, code=7, topic="7")),
        (["error", "code=not-leader-or-follower", "nth=2"], Fault(action=FaultAction.ERROR, code=6, nth=2)),
        (["delay", "api=metadata", "ms=20"], Fault(action=FaultAction.DELAY, api=ApiKey.METADATA, ms=20)),
        (["close", 'text={"id":7}'], Fault(action=FaultAction.CLOSE, text='{"id":7}')),
        (["delay", "api=3"], Fault(action=FaultAction.DELAY, api=ApiKey.METADATA)),
        (["silence", "api=any", "broker=2"], Fault(action=FaultAction.SILENCE, api=None, broker=2)),
        (
            ["close", "text=a=b c", "client=::1"],
            Fault(action=FaultAction.CLOSE, text="a=b c", client="::1"),
        ),
    ],
)
def test_words_are_a_fault(words: list[str], fault: Fault) -> None:
    assert parse_fault(words) == fault


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "begins with its action: one of error, error_appended"),
        (["topic=hits"], "begins with its action"),
        (["close", "topic"], "'topic' is not FIELD=VALUE"),
        (["close", "odd=1"], "fields action, api, broker"),
        (["close", "nth=0"], "nth"),
        (["error", "code=NO_SUCH_ERROR"], "code"),
        (["error", "code=32768"], "code"),
        (["close", "client=somewhere"], "somewhere"),
        (["close", "api=nothing"], "api"),
        (["error", "action=delay"], "its first word"),
        (["close", "topic=hits", "topic=misses"], "each field once"),
    ],
)
def test_words_that_are_no_fault_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        parse_fault(words)


def test_words_are_a_command() -> None:
    assert parse_command(["list-faults"]) == ListFaults()
    moved = parse_command(["move_leader", "topic=hits", "partition=0", "broker=2"])
    assert moved == MoveLeader(topic="hits", partition=0, broker=2)
    assert parse_command(["inject", "close", "topic=hits"]) == Inject(fault=parse_fault(["close", "topic=hits"]))
    wait = parse_command(["wait_until", "records=3", 'requests={"Produce": 2}', "seconds=0.5"])
    assert wait == WaitUntil(records=3, requests={"Produce": 2}, seconds=0.5)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["move_leader", "topic=hits"],
        ["add_topic", "topic"],
        ["inject"],
        ["wait_until", "requests={bad"],
    ],
)
def test_words_that_are_no_command_are_refused(words: list[str]) -> None:
    with pytest.raises(ArgumentError):
        parse_command(words)


def test_every_command_has_a_name() -> None:
    assert COMMANDS_BY_NAME.keys() == set(COMMANDS.split())
