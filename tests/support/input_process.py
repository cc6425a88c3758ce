"""A separate input process, started as by the supervisor."""

from __future__ import annotations

import multiprocessing
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

from bruce_mp.config.inputs import Input, UnixDatagram
from bruce_mp.config.model import Config
from bruce_mp.config.sections import Kafka, TopicShare
from bruce_mp.input.datagram_process import main
from bruce_mp.ipc.control_messages import Control, Ready
from bruce_mp.ipc.links import REPORTS, ROUTER_FROM_INPUTS, Links
from bruce_mp.ipc.start import Start
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.slab.file import Geometry, Slab, create_slab
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.recovery import sweep
from support.processes import wait_until
from support.slabs import INPUT_ROW, datagram, set_state

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

    from bruce_mp.slab.runs import Segment
    from bruce_mp.telemetry.books import Books

__all__ = ["WITHIN_S", "InputProcess"]

GEOMETRY: Final = Geometry(chunks=64, topics=16, partitions=16, landing_slots=8, landing_slot_size=16384)
WITHIN_S: Final = 20


def _run(start: Start, slab_path: Path, connection: Connection) -> None:
    main(start, Slab(slab_path), Control(connection))


class InputProcess:
    """An input process; the test acts as supervisor, router and clients. The context kills the process."""

    def __init__(
        self, directory: Path, when_full: str = "discard", kind: int = socket.SOCK_DGRAM, *, alpha: int = 0
    ) -> None:
        self._alpha = alpha
        self._directory = directory
        self._when_full = when_full
        self._stack = ExitStack()
        self.listener = self._stack.enter_context(socket.socket(socket.AF_UNIX, kind))
        self.path = directory / "dgram"
        self.sender = self._stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self._links = Links(directory)
        self._stack.callback(self._links.close)

    def __enter__(self) -> Self:
        with self._stack:
            create_slab(self._directory / "slab", GEOMETRY, 0)
            self.slab = Slab(self._directory / "slab")
            self._runs = self._links.receiver(ROUTER_FROM_INPUTS)
            self._discards = self._links.receiver(REPORTS)
            self.listener.bind(str(self.path))
            self._start()
            if self.listener.type == socket.SOCK_DGRAM:
                self.sender.connect(str(self.path))
            self._stack = self._stack.pop_all()
        return self

    def _start(self) -> None:
        settings = Input(unix_datagram=UnixDatagram(when_full=self._when_full))  # type: ignore[arg-type]
        config = Config(
            kafka=Kafka(bootstrap_servers=("127.0.0.1:1",)), input=settings, topic_share=TopicShare(alpha=self._alpha)
        )
        start = Start("input", INPUT_ROW, config, self._directory, listener=self.listener)
        context = multiprocessing.get_context("spawn")
        connection, theirs = context.Pipe()
        self._stack.enter_context(connection)
        self.control = Control(connection)
        self.process = context.Process(target=_run, args=(start, self.slab.path, theirs))
        self.process.start()
        self._stack.callback(self._kill)
        theirs.close()
        assert connection.poll(WITHIN_S), "The input process did not start."
        assert self.control.receive() == Ready()

    def _kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def books(self) -> Books:
        return count_books(self.slab)

    def wait_received(self, count: int) -> None:
        wait_until(lambda: self.books().received >= count, f"{count} messages to be received", WITHIN_S)

    def fill(self, size: int = 1000) -> int:
        """Send until the kernel's queue stays full; return the number of sent messages."""
        sent = 0
        self.sender.settimeout(0.4)
        while True:
            try:
                self.sender.send(datagram(b"t", b"%d:" % sent + bytes(size)))
            except TimeoutError:
                return sent
            sent += 1
            assert sent < 10_000

    def deliver_all(self) -> int:
        """Act as router and dispatchers; return the number of delivered messages."""
        found: list[Segment] = [item.segment for item in sweep(self.slab, {RunState.FILLED})]
        set_state(self.slab, found, RunState.DELIVERED)
        return sum(segment.records for segment in found)

    def next_runs(self) -> list[Segment]:
        assert self._runs.socket.poll(WITHIN_S * 1000)
        return [segment for parcel in self._runs.receive() or [] for segment in parcel.segments]

    def close_intake(self) -> None:
        """Close the intake, the supervisor's first step of a shutdown."""
        self.listener.shutdown(socket.SHUT_RD)

    def end(self) -> int | None:
        self.process.join(WITHIN_S)
        return self.process.exitcode
