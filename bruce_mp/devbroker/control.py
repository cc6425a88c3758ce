"""Clients of the embedded broker: `DevBroker` starts the process, `ControlChannel` sends commands to a running one.

    with DevBroker(brokers=3, topics={"hits": 4}) as broker:
        broker.inject(Fault(action=FaultAction.ERROR_APPENDED, code=7, topic="hits", times=3))
        ...send to broker.bootstrap...
        broker.wait_until(records=1000)
        assert [len(partition) for partition in broker.fetch("hits")] == [250] * 4

Threads must not share a `DevBroker` or `ControlChannel`. The process ends at `close`, or when the parent process ends,
which closes the pipe to its standard input. `drop_batch`, `double_batch` and `swap_batches` damage a log deliberately,
to test programs that detect lost, duplicate or reordered records.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec

from bruce_mp.devbroker import commands
from bruce_mp.devbroker.batch import SEQUENCE_MASK, BatchHead, records_of
from bruce_mp.devbroker.faults import InjectedFault
from bruce_mp.devbroker.statistics import Statistics
from bruce_mp.errors import BruceError, StartError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bruce_mp.devbroker.faults import Fault

__all__ = ["CommandError", "ControlChannel", "DevBroker", "StoredRecord", "decode_batches"]

RESPONSE_TIMEOUT_S: Final = 30.0  # longer than any command except WaitUntil takes, even on a busy machine
STOP_TIMEOUT_S: Final = 10.0  # after which the process is killed

Result = TypeVar("Result")


class CommandError(BruceError):
    """Failure of a command; the text is the broker's."""


class ControlChannel:
    """A connection to a broker's control channel at HOST:PORT, or at the path of a UNIX socket.

    Raise CommandError if no broker listens there.
    """

    def __init__(self, address: str) -> None:
        try:
            self._socket = connect(address)
        except (OSError, ValueError) as error:
            raise CommandError(f"No embedded broker can be reached at {address}: {error}.") from error
        self._lines = self._socket.makefile("rb")

    def request(self, command: commands.BrokerCommand) -> Any:
        """Execute a command and return its result. Raise CommandError if the broker refuses it, or has ended."""
        wait_s = command.seconds if isinstance(command, commands.WaitUntil) else 0.0
        try:
            self._socket.settimeout(wait_s + RESPONSE_TIMEOUT_S)
            self._socket.sendall(msgspec.json.encode(command) + b"\n")
            line = self._lines.readline()
        except OSError as error:
            raise CommandError(f"The control connection of the embedded broker failed: {error}.") from error
        if not line:
            raise CommandError("The embedded broker closed its control connection: its process has ended.")
        answer = msgspec.json.decode(line, type=commands.Answer)
        if not answer.ok:
            raise CommandError(answer.error)
        return answer.result

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


def connect(address: str) -> socket.socket:
    if "/" not in address and not Path(address).exists():
        host, _, port = address.rpartition(":")
        if not port.isdecimal():
            raise CommandError(
                f"{address} is neither HOST:PORT nor an existing path: give the address in the broker's line CONTROL."
            )
        return socket.create_connection((host, int(port)), RESPONSE_TIMEOUT_S)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A stored record. `timestamp` is in ms; producer fields are -1 without idempotence."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    producer_id: int
    producer_epoch: int
    sequence: int


def decode_batches(batches: bytes) -> Iterator[StoredRecord]:
    """Yield the records of consecutive stored batches, with any of Kafka's codecs. Raise RefusedError for damage."""
    at = 0
    while at < len(batches):
        head = BatchHead.unpack(batches, at)
        for record in records_of(batches[at : at + head.size]):
            sequence = (head.base_sequence + record.offset - head.base_offset) & SEQUENCE_MASK
            yield StoredRecord(
                record.offset, record.timestamp, record.key, record.value, tuple(record.headers),
                head.producer_id, head.producer_epoch, sequence if head.base_sequence >= 0 else -1,
            )  # fmt: skip
        at += head.size


class DevBroker:
    """A running embedded broker.

    Args:
        brokers: number of brokers, with ids from 1 up.
        topics: partitions by name.
        auto_create: partitions of topics that a client's metadata request creates; 0 disables it.
        max_bytes: memory for all records.
        ack_delay_ms: delay of each Produce response.
        message_max_bytes: largest accepted record batch.
        strict: check every record of every batch.
        cluster_id: the id in metadata.
        start_within: time limit of the start, in seconds; after it, raise StartError.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        topics: Mapping[str, int] | None = None,
        auto_create: int = 0,
        max_bytes: int = 256 << 20,
        ack_delay_ms: int = 0,
        message_max_bytes: int = 1_048_588,
        strict: bool = False,
        cluster_id: str = "bruce-dev-broker",
        start_within: float = 30.0,
    ) -> None:
        arguments = [f"--brokers={brokers}", f"--max-bytes={max_bytes}", f"--ack-delay-ms={ack_delay_ms}"]
        arguments += [f"--message-max-bytes={message_max_bytes}", "--until-eof"]
        arguments += [f"--topic={name}:{partitions}" for name, partitions in (topics or {}).items()]
        arguments += [f"--auto-create={auto_create}"] if auto_create else []
        arguments += ["--strict"] if strict else []
        arguments.append(f"--cluster-id={cluster_id}")
        self._process = start_process(arguments)
        try:
            ready = read_ready(self._process, start_within)
            self._channel = ControlChannel(ready["CONTROL"])
        except BaseException:
            end_process(self._process)
            raise
        self.control: str = ready["CONTROL"]
        """Address of the control channel."""
        self.bootstrap: str = ready["BOOTSTRAP"]
        """`host:port[,host:port...]`, the first broker first."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def inject(self, fault: Fault) -> int:
        """Add a fault and return its number."""
        return self._request(commands.Inject(fault=fault), int)

    def faults(self) -> list[InjectedFault]:
        """Return the faults that may still be triggered, with their counts."""
        return self._request(commands.ListFaults(), list[InjectedFault])

    def clear_faults(self, number: int | None = None) -> None:
        """Remove all faults, or the one of this number."""
        self._run(commands.ClearFaults(number=number))

    def move_leader(self, topic: str, partition: int, broker: int, *, stale: int = 0) -> None:
        """Make `broker` the leader; the next `stale` Metadata responses still name the old one."""
        self._run(commands.MoveLeader(topic=topic, partition=partition, broker=broker, stale=stale))

    def broker_down(self, broker: int, *, elect: bool = False, stale: int = 0) -> None:
        """Close a broker's socket and connections.

        Args:
            broker: its id.
            elect: give its partitions other leaders; otherwise they have none until it returns.
            stale: number of Metadata responses that still list it.
        """
        self._run(commands.BrokerDown(broker=broker, elect=elect, stale=stale))

    def broker_up(self, broker: int, *, port: int | None = None) -> int:
        """Reopen a broker on its old port, or on `port` (0: any). Return the port."""
        return self._request(commands.BrokerUp(broker=broker, port=port), int)

    def add_topic(self, topic: str, partitions: int) -> None:
        self._run(commands.AddTopic(topic=topic, partitions=partitions))

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Increase a topic's number of partitions."""
        self._run(commands.AddPartitions(topic=topic, partitions=partitions))

    def delete_topic(self, topic: str) -> None:
        self._run(commands.DeleteTopic(topic=topic))

    def drop_batch(self, topic: str, partition: int, offset: int) -> None:
        """Damage the log: remove the batch that holds the offset."""
        self._run(commands.DropBatch(topic=topic, partition=partition, offset=offset))

    def double_batch(self, topic: str, partition: int, offset: int) -> None:
        """Damage the log: append the batch that holds the offset again."""
        self._run(commands.DoubleBatch(topic=topic, partition=partition, offset=offset))

    def swap_batches(self, topic: str, partition: int, offset: int) -> None:
        """Damage the log: swap the batch that holds the offset with the next one."""
        self._run(commands.SwapBatches(topic=topic, partition=partition, offset=offset))

    def fetch(self, topic: str) -> list[list[StoredRecord]]:
        """Return all stored records of a topic by partition, in offset order."""
        partitions = self._request(commands.PartitionCount(topic=topic), int)
        return [list(self._records(topic, partition)) for partition in range(partitions)]

    def appended_since(self, moment_ns: int) -> list[tuple[int, list[StoredRecord]]]:
        """Return the records of each batch appended since that moment, with its time in ns of `time.monotonic_ns()`."""
        found = self._request(commands.AppendedSince(moment_ns=moment_ns), list[commands.AppendedBatch])
        return [(appended.appended_ns, list(decode_batches(appended.batch))) for appended in found]

    def statistics(self) -> Statistics:
        """Return the broker's counters since its start."""
        return self._request(commands.GetStatistics(), Statistics)

    def wait_until(
        self,
        *,
        records: int = 0,
        duplicates: int = 0,
        requests: Mapping[str, int] | None = None,
        faults: Mapping[str, int] | None = None,
        errors: Mapping[int, int] | None = None,
        within: float = 10.0,
    ) -> Statistics:
        """Wait until all of these counters of `Statistics` are reached. Raise TimeoutError after `within` seconds."""
        wanted = commands.WaitUntil(
            records=records, duplicates=duplicates, requests=requests or {}, faults=faults or {}, errors=errors or {},
            seconds=within,
        )  # fmt: skip
        statistics = self._request(wanted, Statistics)
        if not wanted.is_reached_by(statistics):
            raise TimeoutError(f"The broker did not reach {wanted} within {within} s; it counted {statistics}.")
        return statistics

    def close(self) -> None:
        """End the process. Repeated calls are harmless."""
        self._channel.close()
        end_process(self._process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _records(self, topic: str, partition: int) -> Iterator[StoredRecord]:
        offset, end_offset = 0, 1  # the first response brings the real end
        while offset < end_offset:
            read = self._request(commands.Batches(topic=topic, partition=partition, offset=offset), commands.LogSlice)
            offset, end_offset = max(offset, read.start), read.end
            found = list(decode_batches(read.batches))
            if not found:
                return
            yield from found
            offset = found[-1].offset + 1

    def _run(self, command: commands.BrokerCommand) -> None:
        self._request(command, type(None))

    def _request(self, command: commands.BrokerCommand, kind: type[Result]) -> Result:
        return msgspec.convert(self._channel.request(command), kind, strict=False)


def start_process(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bruce_mp.devbroker", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)  # noqa: S603  our module


def read_ready(process: subprocess.Popen[bytes], within: float) -> dict[str, str]:
    """Return the lines that the process prints when it is ready, by their first word.

    Raise StartError if it ends, or does not print them in time.
    """
    assert process.stdout is not None
    deadline = time.monotonic() + within
    ready: dict[str, str] = {}
    while "CONTROL" not in ready:
        word, _, rest = next_line(process.stdout, deadline).partition(" ")
        ready[word] = rest.strip()
    return ready


def next_line(stream: IO[bytes], deadline: float) -> str:
    readable, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
    line = stream.readline() if readable else b""
    if not line:
        raise StartError("The embedded broker did not start; standard error has its message.")
    return line.decode()


def end_process(process: subprocess.Popen[Any]) -> None:
    """Send SIGTERM, then SIGKILL if necessary, and close all pipes."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
