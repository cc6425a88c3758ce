"""Faults of the embedded broker by topic, message text and client, from the command line, with the whole daemon."""

from __future__ import annotations

import json
import subprocess
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from kafka.protocol.producer import ProduceResponse

from bruce_mp.devbroker.commands import AppendedBatch, AppendedSince
from bruce_mp.devbroker.control import ControlChannel, decode_batches, end_process, read_ready
from bruce_mp.errors import DiscardReason
from devbroker.kit import RawClient, make_batch, produce
from support.daemon import Daemon
from support.processes import BRUCE, run_bruce

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

import msgspec

pytestmark = pytest.mark.process

MESSAGES: Final = 60
OTHER_CLIENT: Final = "127.0.0.2"


def run_control(address: str, *words: str) -> subprocess.CompletedProcess[str]:
    return run_bruce("dev-broker", "control", address, *words)


class CommandLineBroker:
    """An embedded broker that only the command line starts and changes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        ready = read_ready(process, 30)
        self.bootstrap, self.control = ready["BOOTSTRAP"], ready["CONTROL"]

    def command(self, *words: str) -> Any:
        result = run_control(self.control, *words)
        assert (result.returncode, result.stderr) == (0, "")
        return json.loads(result.stdout or "null")

    def wait_struck(self, number: int) -> None:
        statistics = self.command("wait_until", f'faults={{"error": {number}}}', "seconds=20")
        assert statistics["faults"]["error"] >= number

    def values(self) -> list[bytes | None]:
        with closing(ControlChannel(self.control)) as channel:
            batches = msgspec.convert(channel.request(AppendedSince(moment_ns=0)), list[AppendedBatch])
        in_time = sorted(batches, key=lambda some: some.appended_ns)
        return [record.value for some in in_time for record in decode_batches(some.batch)]


@contextmanager
def a_broker(*arguments: str) -> Iterator[CommandLineBroker]:
    process = subprocess.Popen(
        [*BRUCE, "dev-broker", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    try:
        yield CommandLineBroker(process)
    finally:
        end_process(process)


def test_only_messages_with_the_text_are_discarded(tmp_path: Path) -> None:
    values = [b"poison %d" % n if n % 20 == 7 else b"good %d" % n for n in range(MESSAGES)]
    good = [value for value in values if value.startswith(b"good")]
    fault = "error code=INVALID_RECORD text=poison times=always"
    with a_broker("--topic", "hits:1", "--fault", fault) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        daemon.send("hits", *values)
        books = daemon.wait_settled(MESSAGES)
        assert (books.received, books.delivered) == (MESSAGES, len(good))
        assert books.discarded == {DiscardReason.KAFKA_ERROR_ACK.name: MESSAGES - len(good)}
        assert broker.values() == good


def test_a_fault_of_a_topic_ends_by_a_command(tmp_path: Path) -> None:
    control = tmp_path / "control"
    topics = ("--topic", "hurt:1", "--topic", "well:1", "--control", str(control))
    with a_broker(*topics) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        assert broker.control == str(control)
        number = broker.command("inject", "error", "code=NOT_LEADER_OR_FOLLOWER", "topic=hurt", "times=always")
        values = {topic: [b"%s %d" % (topic.encode(), n) for n in range(MESSAGES)] for topic in ("hurt", "well")}
        for topic, sent in values.items():
            daemon.send(topic, *sent)
        broker.wait_struck(2)
        daemon.wait_for(lambda: daemon.books().delivered == MESSAGES, "the other topic", 20)
        assert broker.values() == values["well"]
        (listed,) = broker.command("list_faults")
        assert (listed["number"], listed["fault"]["topic"]) == (number, "hurt")
        broker.command("clear_faults", f"number={number}")
        books = daemon.wait_settled(2 * MESSAGES)
        assert books.received == books.delivered == 2 * MESSAGES
        assert broker.values() == values["well"] + values["hurt"]
    assert not control.exists()


def test_a_fault_of_a_client_spares_other_clients(tmp_path: Path) -> None:
    fault = "error code=NOT_LEADER_OR_FOLLOWER client=127.0.0.1 times=always"
    with a_broker("--topic", "hits:1", "--fault", fault) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        values = [b"%d" % n for n in range(MESSAGES)]
        daemon.send("hits", *values)
        broker.wait_struck(2)
        with RawClient(broker.bootstrap, source=OTHER_CLIENT) as client:
            client.send(produce([("hits", 0, make_batch(value=b"other"))]))
            answer = client.receive(ProduceResponse, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert broker.values() == [b"other"]
        broker.command("clear_faults")
        books = daemon.wait_settled(MESSAGES)
        assert books.received == books.delivered == MESSAGES
        assert broker.values() == [b"other", *values]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["nonsense"], 2, "There is no command 'nonsense'"),
        (["inject", "close", "odd=1"], 2, "'odd=1' is not FIELD=VALUE"),
        (["delete_topic", "topic=nothing"], 1, "There is no topic 'nothing'."),
    ],
)
def test_a_refused_command_is_explained(words: list[str], status: int, message: str) -> None:
    with a_broker() as broker:
        result = run_control(broker.control, *words)
    assert (result.returncode, result.stdout) == (status, "")
    assert message in result.stderr


def test_a_command_without_a_broker_is_explained(tmp_path: Path) -> None:
    result = run_control(str(tmp_path / "none"), "list_faults")
    assert result.returncode == 1
    assert "No embedded broker can be reached at" in result.stderr
