"""Clients of the embedded broker: `DevBroker` starts the process, `ControlChannel` sends commands to a running one.

    with DevBroker(brokers=3, topics={"hits": 4}) as broker:
        broker.inject(Fault(action=FaultAction.ERROR_APPENDED, code=7, topic="hits", times=3))
        ...send to broker.bootstrap...
        broker.wait_until(records=1000)
        assert [len(partition) for partition in broker.fetch("hits")] == [250] * 4

Threads must not share a `DevBroker` or `ControlChannel`. The broker's process ends at `close`, and also when the
process that started it ends, because this closes the pipe to the broker's standard input. `drop_batch`, `double_batch`
and `swap_batches` damage a log deliberately, to test programs that detect lost, duplicate or reordered records.
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
from bruce_mp.devbroker.batch import SEQUENCE_MASK, BatchHead, decode_records
from bruce_mp.devbroker.faults import InjectedFault
from bruce_mp.devbroker.statistics import Statistics
from bruce_mp.errors import BruceError, StartError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bruce_mp.devbroker.faults import Fault

__all__ = ["CommandError", "ControlChannel", "DevBroker", "StoredRecord", "decode_batches"]

RESPONSE_TIMEOUT_S: Final = 30.0  # longer than any command except WaitUntil takes, even on a busy machine
STOP_TIMEOUT_S: Final = 10.0  # a process that runs longer than this after SIGTERM is killed

Result = TypeVar("Result")


class CommandError(BruceError):
    """A command failed, or could not be sent. If the broker refused the command, the text is the broker's reason."""


class ControlChannel:
    """A connection to a broker's control channel.

    `address` is HOST:PORT, or the path of a UNIX socket. The constructor raises CommandError if it cannot connect.
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
        if not port.isdecimal() or int(port) > commands.MAX_PORT:  # the C library would use the port's last 16 bits
            raise CommandError(
                f"{address} is neither HOST:PORT nor an existing path: "
                "give the address that the broker printed after CONTROL."
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
    """A stored record.

    `timestamp` is in ms. The last three fields are -1 if the record's batch has no producer id.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    producer_id: int
    producer_epoch: int
    sequence: int


def decode_batches(batches: bytes) -> Iterator[StoredRecord]:
    """Yield the records of stored batches that follow each other in `batches`, compressed or not.

    Raise RefusedError if the body of a batch is damaged.
    """
    position = 0
    while position < len(batches):
        head = BatchHead.unpack(batches, position)
        for record in decode_records(batches[position : position + head.size]):
            sequence = (head.base_sequence + record.offset - head.base_offset) & SEQUENCE_MASK
            yield StoredRecord(
                record.offset, record.timestamp, record.key, record.value, tuple(record.headers),
                head.producer_id, head.producer_epoch, sequence if head.base_sequence >= 0 else -1,
            )  # fmt: skip
        position += head.size


class DevBroker:
    """A process that runs an embedded cluster of one or more brokers.

    The constructor starts the process and waits until it is ready; it raises StartError if that takes too long.

    Args:
        brokers: number of brokers; their ids are 1, 2 and so on.
        topics: topics to create, each with its number of partitions.
        auto_create: number of partitions of topics that clients create by a Metadata request; 0: clients create none.
        max_bytes: memory limit of all records; the broker removes the oldest ones.
        ack_delay_ms: delay of each Produce response.
        message_max_bytes: largest accepted record batch.
        strict: check not only each record batch, but also each record.
        cluster_id: the cluster id in Metadata responses.
        start_within: time limit of the start, in seconds.
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
        """Addresses of the brokers as `host:port[,host:port...]`, in the order of their ids."""

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
        """Remove the fault of this number; if it is None, remove all faults and end the stale metadata."""
        self._run(commands.ClearFaults(number=number))

    def move_leader(self, topic: str, partition: int, broker: int, *, stale: int = 0) -> None:
        """Make `broker` the leader of a partition; the next `stale` Metadata responses still name the old leader."""
        self._run(commands.MoveLeader(topic=topic, partition=partition, broker=broker, stale=stale))

    def broker_down(self, broker: int, *, elect: bool = False, stale: int = 0) -> None:
        """Close a broker's socket and connections.

        Args:
            broker: the broker's id.
            elect: make other brokers leaders of its partitions; otherwise they have no leader until the broker is up.
            stale: number of Metadata responses that still show the cluster as it was.
        """
        self._run(commands.BrokerDown(broker=broker, elect=elect, stale=stale))

    def broker_up(self, broker: int, *, port: int | None = None) -> int:
        """Reopen a broker on `port`: 0 is any port, None the broker's old port. Return the port."""
        return self._request(commands.BrokerUp(broker=broker, port=port), int)

    def add_topic(self, topic: str, partitions: int) -> None:
        self._run(commands.AddTopic(topic=topic, partitions=partitions))

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Increase a topic's number of partitions to `partitions`."""
        self._run(commands.AddPartitions(topic=topic, partitions=partitions))

    def delete_topic(self, topic: str) -> None:
        self._run(commands.DeleteTopic(topic=topic))

    def drop_batch(self, topic: str, partition: int, offset: int) -> None:
        """Damage the log: remove the batch that holds the offset."""
        self._run(commands.DropBatch(topic=topic, partition=partition, offset=offset))

    def double_batch(self, topic: str, partition: int, offset: int) -> None:
        """Damage the log: append a second copy of the batch that holds the offset."""
        self._run(commands.DoubleBatch(topic=topic, partition=partition, offset=offset))

    def swap_batches(self, topic: str, partition: int, offset: int) -> None:
        """Damage the log: swap the batch that holds the offset with the next one."""
        self._run(commands.SwapBatches(topic=topic, partition=partition, offset=offset))

    def fetch(self, topic: str) -> list[list[StoredRecord]]:
        """Return all stored records of a topic: one list for each partition, in the order of offsets."""
        partition_count = self._request(commands.PartitionCount(topic=topic), int)
        return [list(self._records(topic, partition)) for partition in range(partition_count)]

    def appended_since(self, moment_ns: int) -> list[tuple[int, list[StoredRecord]]]:
        """Return the batches of all partitions that were appended at `moment_ns` or later.

        Each batch is a pair: the time of its append, and its records. Times are values of `time.monotonic_ns()`.
        """
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
        """Wait until the counters of the same names in `Statistics` have at least these values.

        Raise TimeoutError if the counters do not reach the values within `within` seconds.
        """
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
        offset, end_offset = 0, 1  # 1 starts the loop; the first response replaces it with the end of the log
        while offset < end_offset:
            read = self._request(commands.Batches(topic=topic, partition=partition, offset=offset), commands.LogSlice)
            offset, end_offset = max(offset, read.start), read.end
            found = list(decode_batches(read.batches))
            if not found:
                return
            yield from found
            offset = found[-1].offset + 1

    def _run(self, command: commands.BrokerCommand) -> None:
        """Execute a command that has no result."""
        self._request(command, type(None))

    def _request(self, command: commands.BrokerCommand, kind: type[Result]) -> Result:
        return msgspec.convert(self._channel.request(command), kind, strict=False)


def start_process(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bruce_mp.devbroker", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)  # noqa: S603  our module


def read_ready(process: subprocess.Popen[bytes], within: float) -> dict[str, str]:
    """Wait until the process prints that it is ready, and return BOOTSTRAP and CONTROL, each with its address.

    Raise StartError if the process ends, or is not ready within `within` seconds.
    """
    assert process.stdout is not None
    deadline = time.monotonic() + within
    ready: dict[str, str] = {}
    while "CONTROL" not in ready:
        word, _, rest = next_line(process.stdout, deadline).partition(" ")
        ready[word] = rest.strip()
    return ready


def next_line(stream: IO[bytes], deadline: float) -> str:
    """Return the next line. Raise StartError if the stream ends, or if no line comes before `deadline` (monotonic)."""
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
