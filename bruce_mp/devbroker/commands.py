"""Commands of the control channel, and their execution.

The channel is TCP on the loopback interface, or a UNIX socket. A request is one line of JSON, such as
`{"do": "move_leader", "topic": ...}`. The response is one line, `{"ok": true, "result": ...}` or
`{"ok": false, "error": "a sentence"}`. Each command is a struct: the fields are the command's arguments, and the method
`run` executes the command on a `DevServer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping  # noqa: TC003  msgspec reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Final, Union

import msgspec

from bruce_mp.devbroker.codes import RefusedError
from bruce_mp.devbroker.faults import Fault, InjectedFault  # noqa: TC001  msgspec reads the annotations
from bruce_mp.devbroker.statistics import Statistics  # noqa: TC001  msgspec reads the annotations

if TYPE_CHECKING:
    from bruce_mp.devbroker.cluster import Partition
    from bruce_mp.devbroker.server import DevServer


def tag_of(name: str) -> str:
    """Return the name on the wire of a command's class: `move_leader` for `MoveLeader`."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).removeprefix("_")


MAX_PORT: Final = 65535

NonNegativeInt = Annotated[int, msgspec.Meta(ge=0)]


class BrokerCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do", tag=tag_of):
    """Base of all commands."""

    async def run(self, server: DevServer) -> Any:
        """Execute the command and return the `result` of the response. Raise RefusedError or OSError if it fails."""
        raise NotImplementedError


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Response to a command: `result` if it succeeded (`ok`), else `error`."""

    ok: bool
    result: Any = None
    error: str = ""


class LogSlice(msgspec.Struct, frozen=True, kw_only=True):
    """Some stored batches of a partition, and the offsets `start` and `end` of the whole log (see `PartitionLog`)."""

    start: int
    end: int
    batches: bytes
    """The batches one after the other; in JSON, as base64."""


class AppendedBatch(msgspec.Struct, frozen=True, array_like=True):
    """A stored batch with the time of its append, in ns of the host's monotonic clock."""

    appended_ns: int
    batch: bytes


class Inject(BrokerCommand, frozen=True):
    """Inject a fault. The result is its number."""

    fault: Fault

    async def run(self, server: DevServer) -> int:
        return server.faults.inject(self.fault)


class ListFaults(BrokerCommand, frozen=True):
    """List the faults that may still be triggered."""

    async def run(self, server: DevServer) -> list[InjectedFault]:
        return server.faults.injected


class ClearFaults(BrokerCommand, frozen=True):
    """Remove the fault of this number; if it is None, remove all faults and end the stale metadata."""

    number: int | None = None

    async def run(self, server: DevServer) -> None:
        server.faults.clear(self.number)
        if self.number is None:
            server.cluster.unfreeze()


class MoveLeader(BrokerCommand, frozen=True):
    """Make `broker` the leader of a partition; the next `stale` Metadata responses still name the old leader."""

    topic: str
    partition: int
    broker: int
    stale: NonNegativeInt = 0

    async def run(self, server: DevServer) -> None:
        cluster = server.cluster
        # These two calls may raise RefusedError. A refused command must not freeze metadata, so they precede `freeze`.
        cluster.partition(self.topic, self.partition)
        cluster.check_broker_id(self.broker)
        cluster.freeze(self.stale)
        cluster.move_leader(self.topic, self.partition, self.broker)


class BrokerDown(BrokerCommand, frozen=True):
    """Close a broker's listening socket and connections.

    If `elect` is True, other brokers become leaders of its partitions. Otherwise the partitions have no leader until
    the broker is up again. The next `stale` Metadata responses still show the cluster as it was.
    """

    broker: int
    elect: bool = False
    stale: NonNegativeInt = 0

    async def run(self, server: DevServer) -> None:
        # This call may raise RefusedError. A refused command must not freeze metadata, so it precedes `freeze`.
        server.cluster.check_broker_id(self.broker)
        server.cluster.freeze(self.stale)
        await server.broker_down(self.broker, elect=self.elect)


class BrokerUp(BrokerCommand, frozen=True):
    """Reopen a broker on `port`: 0 is any port, None the broker's old port. The result is the port."""

    broker: int
    port: Annotated[int, msgspec.Meta(ge=0, le=MAX_PORT)] | None = None

    async def run(self, server: DevServer) -> int:
        return await server.broker_up(self.broker, self.port)


class AddTopic(BrokerCommand, frozen=True):
    topic: str
    partitions: int

    async def run(self, server: DevServer) -> None:
        server.cluster.add_topic(self.topic, self.partitions)


class AddPartitions(BrokerCommand, frozen=True):
    """Increase a topic's number of partitions to `partitions`."""

    topic: str
    partitions: int

    async def run(self, server: DevServer) -> None:
        server.cluster.add_partitions(self.topic, self.partitions)


class DeleteTopic(BrokerCommand, frozen=True):
    topic: str

    async def run(self, server: DevServer) -> None:
        server.cluster.delete_topic(self.topic)


class LogCommand(BrokerCommand, frozen=True):
    """Base of the commands that concern one offset of a partition's log."""

    topic: str
    partition: int
    offset: int

    def find_partition(self, server: DevServer) -> Partition:
        return server.cluster.partition(self.topic, self.partition)


class DropBatch(LogCommand, frozen=True):
    """Damage the log: remove the batch that holds the offset."""

    async def run(self, server: DevServer) -> None:
        self.find_partition(server).log.remove(self.offset)


class DoubleBatch(LogCommand, frozen=True):
    """Damage the log: append a second copy of the batch that holds the offset."""

    async def run(self, server: DevServer) -> None:
        self.find_partition(server).log.double(self.offset)


class SwapBatches(LogCommand, frozen=True):
    """Damage the log: swap the batch that holds the offset with the next one."""

    async def run(self, server: DevServer) -> None:
        self.find_partition(server).log.swap(self.offset)


class Batches(LogCommand, frozen=True):
    """Read stored batches, beginning with the batch that holds the offset.

    If the log starts after the offset, begin at the start of the log.
    """

    max_bytes: int = 1 << 20
    """Maximum size of all batches together; a larger first batch is returned alone."""

    async def run(self, server: DevServer) -> LogSlice:
        log = self.find_partition(server).log
        batches = log.read(max(self.offset, log.start), self.max_bytes)
        return LogSlice(start=log.start, end=log.end, batches=batches)


class AppendedSince(BrokerCommand, frozen=True):
    """List the batches of all partitions that were appended at `moment_ns` or later."""

    moment_ns: int
    """Time on the host's monotonic clock."""

    async def run(self, server: DevServer) -> list[AppendedBatch]:
        partitions = (part for topic in server.cluster.topics.values() for part in topic.partitions)
        found = (batch for partition in partitions for batch in partition.log.appended_since(self.moment_ns))
        return [AppendedBatch(batch.appended_ns, batch.raw) for batch in found]


class PartitionCount(BrokerCommand, frozen=True):
    """Return the number of partitions of a topic."""

    topic: str

    async def run(self, server: DevServer) -> int:
        return len(server.cluster.topic(self.topic).partitions)


class GetStatistics(BrokerCommand, frozen=True):
    async def run(self, server: DevServer) -> Statistics:
        return server.statistics


class WaitUntil(BrokerCommand, frozen=True):
    """Wait, at most `seconds`, until the counters of the same names in `Statistics` have at least these values.

    The result is the `Statistics` at the end of the wait, also if the counters have not reached these values.
    """

    records: int = 0
    duplicates: int = 0
    requests: Mapping[str, int] = {}
    faults: Mapping[str, int] = {}
    errors: Mapping[int, int] = {}
    seconds: float = 10.0

    async def run(self, server: DevServer) -> Statistics:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.seconds
        while not self.is_reached_by(server.statistics) and loop.time() < deadline:
            await server.counts.wait(deadline - loop.time())
        return server.statistics

    def is_reached_by(self, statistics: Statistics) -> bool:
        return (
            statistics.records >= self.records
            and statistics.duplicates >= self.duplicates
            and all(statistics.requests.get(api, 0) >= wanted for api, wanted in self.requests.items())
            and all(statistics.faults.get(action, 0) >= wanted for action, wanted in self.faults.items())
            and all(statistics.errors.get(code, 0) >= wanted for code, wanted in self.errors.items())
        )


def leaf_classes(kind: type[BrokerCommand]) -> list[type[BrokerCommand]]:
    """Return the direct and indirect subclasses of `kind` that have no subclasses themselves."""
    subclasses = kind.__subclasses__()
    return [leaf for subclass in subclasses for leaf in leaf_classes(subclass)] if subclasses else [kind]


COMMANDS: Final = tuple(leaf_classes(BrokerCommand))
COMMANDS_BY_NAME: Final[Mapping[str, type[BrokerCommand]]] = {tag_of(kind.__name__): kind for kind in COMMANDS}
COMMAND_DECODER: Final = msgspec.json.Decoder(Union[COMMANDS])  # noqa: UP007  the members are computed


async def execute(line: bytes, server: DevServer) -> bytes:
    """Execute the command in one line of the control channel, and return the line of the response.

    The response has an error if the line is no valid command, or if the command fails.
    """
    try:
        answer = Answer(ok=True, result=await COMMAND_DECODER.decode(line).run(server))
    except (msgspec.DecodeError, UnicodeDecodeError, RefusedError, OSError) as error:
        answer = Answer(ok=False, error=str(error))
    server.changes.notify()  # a Fetch request may wait for a new leader or a doubled batch
    return encode_answer(answer)


def encode_answer(answer: Answer) -> bytes:
    return msgspec.json.encode(answer) + b"\n"
