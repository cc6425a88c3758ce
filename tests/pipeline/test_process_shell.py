"""The shell of the daemon's processes, in this process, with hooks that record their calls."""

from __future__ import annotations

import importlib
import os
import re
from itertools import pairwise
from multiprocessing import Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeGuard

import msgspec
import pytest

import bruce_mp
from bruce_mp.config.model import Config
from bruce_mp.config.sections import Http, Kafka, Logging
from bruce_mp.ipc.control_messages import (
    ConfigApplied,
    Control,
    DebugTopics,
    Drain,
    NewConfig,
    PeerDied,
    Ready,
    Stop,
)
from bruce_mp.ipc.frames import Parcel, ParcelKind
from bruce_mp.ipc.links import Links
from bruce_mp.ipc.start import Start
from bruce_mp.kernels import ProcessRow
from bruce_mp.pipeline.process_shell import MAX_FRAMES_PER_ROUND, ProcessShell
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry
from bruce_mp.telemetry.clock import steady_ms
from support.slabs import new_slab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.ipc.control_messages import ControlMessage
    from bruce_mp.slab.file import Slab

GEOMETRY: Final = Geometry(chunks=16, topics=16, partitions=16, landing_slots=4, landing_slot_size=4096)
CONFIG: Final = Config(kafka=Kafka(bootstrap_servers=("broker:9092",)))
ROW: Final = lay.ROW_FIRST_DISPATCHER
LINK: Final = "some"


class Reports:
    """An output; `refused` flushes keep what is pending."""

    def __init__(self, calls: list[str], refused: int = 0) -> None:
        self._calls = calls
        self._refused = refused
        self.has_pending = False

    def flush(self) -> None:
        self._calls.append("flush")
        self.has_pending = self._refused > 0
        self._refused -= 1

    def close(self) -> None:
        self.flush()


class Shell(ProcessShell):
    """A process that records the calls of its hooks."""

    def __init__(self, slab: Slab, directory: Path, control: Control) -> None:
        super().__init__(Start("some", ROW, CONFIG, directory), control, ProcessRow(slab, ROW))
        self.calls: list[str] = []
        self.reports = self.add_output(Reports(self.calls))
        self.due_ms: int | None = None
        self.configs: list[tuple[Config, Config, Config]] = []
        self.messages: list[ControlMessage] = []
        self.frames: list[list[Parcel]] = []
        self.rounds: list[int] = []
        self.serve_frames(LINK, self.frames.append)

    def recover(self) -> None:
        self.calls.append("recover")

    def start(self) -> None:
        self.calls.append("start")

    def after_round(self, now_ms: int) -> int | None:
        self.calls.append("round")
        self.rounds.append(now_ms)
        if self.due_ms is not None and self.due_ms <= now_ms:
            self.due_ms = None
            self.calls.append("due")
            self._loop.stop()
        return self.due_ms

    def apply_config(self, config: Config, before: Config) -> None:
        self.configs.append((config, before, self._config))

    def drain(self, message: Drain) -> None:
        self.calls.append(f"drain {message.stays_open}")

    def on_control(self, message: ControlMessage) -> None:
        self.messages.append(message)

    def on_supervisor_exit(self) -> None:
        self.calls.append("make way")
        super().on_supervisor_exit()

    def close(self) -> int:
        self.calls.append("close")
        return 0


class Bench:
    def __init__(self, slab: Slab, directory: Path) -> None:
        ours, theirs = Pipe()
        self.slab = slab
        self.directory = directory
        self.pipes = (ours, theirs)
        self.supervisor = Control(ours)
        self.shell = Shell(slab, directory, Control(theirs))

    def answers(self) -> list[ControlMessage | None]:
        """The control messages that the process has sent."""
        found = []
        while self.pipes[0].poll():
            found.append(self.supervisor.receive())
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with new_slab(GEOMETRY) as slab:
        made = Bench(slab, tmp_path)
        yield made
        for pipe in made.pipes:
            pipe.close()
        made.shell._links.close()


def test_row_shows_pid_and_incarnation_before_recovery(bench: Bench) -> None:
    assert ProcessRow(bench.slab, ROW).pid == os.getpid()
    assert bench.shell._incarnation == 1


def test_shell_recovers_starts_and_ends_in_order(bench: Bench) -> None:
    bench.supervisor.send(Stop())
    bench.shell.run()
    assert bench.shell.calls == ["recover", "start", "round", "round", "flush", "close"]
    assert bench.answers() == [Ready()]


def test_ready_follows_the_start(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.shell, "start", lambda: bench.shell.calls.append(f"start {bench.answers()}"))
    bench.supervisor.send(Stop())
    bench.shell.run()
    assert "start []" in bench.shell.calls


def test_heartbeat_runs_before_the_first_round(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[int] = []
    at = GEOMETRY.rows_at + ROW * lay.ROW_BYTES + lay.ROW_HEARTBEAT_MS
    monkeypatch.setattr(bench.shell, "after_round", lambda _: beats.append(bench.slab.longs[at >> 3]))
    bench.supervisor.send(Stop())
    bench.shell.run()
    assert all(beats)


def test_new_config_is_applied_before_it_is_confirmed(bench: Bench) -> None:
    new = msgspec.structs.replace(CONFIG, http=Http(discard_report_interval_s=7))
    for message in (NewConfig(7, new), NewConfig(8, CONFIG), Stop()):
        bench.supervisor.send(message)
    bench.shell.run()
    assert bench.shell.configs == [(new, CONFIG, new), (CONFIG, new, CONFIG)]
    assert bench.answers() == [Ready(), ConfigApplied(7), ConfigApplied(8)]


def test_refused_logging_leaves_the_new_config_unconfirmed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no log file")

    monkeypatch.setattr("bruce_mp.pipeline.process_shell.set_up_logging", refuse)
    bench.supervisor.send(NewConfig(7, msgspec.structs.replace(CONFIG, logging=Logging(level="DEBUG"))))
    with pytest.raises(OSError, match="no log file"):
        bench.shell.run()
    assert bench.answers() == [Ready()]
    assert not bench.shell.configs


def test_control_messages_reach_their_hooks(bench: Bench) -> None:
    for message in (Drain(), Drain(stays_open=True), PeerDied("input"), DebugTopics(all_topics=True), Stop()):
        bench.supervisor.send(message)
    bench.shell.run()
    assert [call for call in bench.shell.calls if call.startswith("drain")] == ["drain False", "drain True"]
    assert bench.shell.messages == [PeerDied("input"), DebugTopics(all_topics=True)]
    assert "make way" not in bench.shell.calls


def test_process_ends_after_the_death_of_the_supervisor(bench: Bench) -> None:
    bench.pipes[0].close()
    bench.shell.run()
    assert bench.shell.calls[-3:] == ["round", "flush", "close"]
    assert "make way" in bench.shell.calls


def test_frames_reach_their_hook_in_order_and_in_bounded_rounds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    links = Links(bench.directory)
    sender = links.sender(LINK)
    count = 2 * MAX_FRAMES_PER_ROUND + 1
    for topic in range(count):
        sender.send([Parcel(ParcelKind.FLUSH, topic)])
    links.close(5000)  # every frame is in the receiver's queue or socket buffer
    seen: list[int] = []

    def count_frames(_: int) -> None:
        seen.append(len(bench.shell.frames))
        if seen[-1] == count:
            bench.shell._loop.stop()

    monkeypatch.setattr(bench.shell, "after_round", count_frames)
    bench.shell.run()
    assert [frame[0].topic for frame in bench.shell.frames] == list(range(count))
    assert max(after - before for before, after in pairwise(seen)) <= MAX_FRAMES_PER_ROUND


def test_waiting_bytes_are_served_on_request(bench: Bench) -> None:
    found: list[bytes] = []
    serve = bench.shell.serve_bytes("bytes", found.append)
    links = Links(bench.directory)
    sender = links.sender("bytes")
    sender.send_bytes(b"one")
    links.close(5000)
    while not found:
        serve()
    assert found == [b"one"]


def test_alarm_ends_the_wait_when_work_is_due(bench: Bench) -> None:
    bench.shell.due_ms = due_ms = steady_ms() + 20
    bench.shell.run()
    assert bench.shell.calls.count("due") == 1
    assert bench.shell.rounds[-1] >= due_ms
    assert len(bench.shell.rounds) <= 3  # the first one, one without a frame after the bind, and the due one


def test_earlier_work_replaces_the_alarm(bench: Bench) -> None:
    bench.shell._set_alarm(steady_ms() + 60_000)
    late = bench.shell._alarm
    bench.shell.due_ms = steady_ms() + 20
    bench.shell.run()
    assert bench.shell.calls.count("due") == 1
    assert late is not None
    assert late.cancelled


def test_later_work_keeps_the_present_alarm(bench: Bench) -> None:
    bench.shell._set_alarm(steady_ms() + 10_000)
    alarm = bench.shell._alarm
    bench.shell.due_ms = steady_ms() + 60_000
    bench.supervisor.send(Stop())
    bench.shell.run()
    assert bench.shell._alarm is alarm


def test_pending_reports_are_flushed_soon_and_until_the_link_accepts_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = bench.shell.add_output(Reports(bench.shell.calls, refused=1))
    reports.has_pending = True
    began_ms = steady_ms()

    def stop_when_flushed(_: int) -> None:
        if not reports.has_pending:
            bench.shell._loop.stop()

    monkeypatch.setattr(bench.shell, "after_round", stop_when_flushed)
    bench.shell.run()
    assert steady_ms() - began_ms >= 800
    assert bench.shell.calls.count("flush") == 2 * 3  # of both outputs: two timers, and the end


def test_idle_outputs_set_no_timer(bench: Bench) -> None:
    bench.supervisor.send(Stop())
    bench.shell.run()
    assert len(bench.shell._loop._timers) == 2  # the heartbeat and the check of the socket files


def test_repeated_call_is_made_at_once_and_again(bench: Bench) -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        if len(calls) == 3:
            bench.shell._loop.stop()

    bench.shell.repeat(0.001, call)
    assert len(calls) == 1
    bench.shell.run()
    assert len(calls) == 3


PROGRAMS: Final = (
    "dispatcher.process",
    "input.datagram_process",
    "input.stream_process",
    "router.process",
    "status.process",
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_public_methods_of_a_process_are_hooks_of_the_shell(program: str) -> None:
    """A hook with an outdated name is never called."""
    module = importlib.import_module(f"bruce_mp.{program}")
    [process] = (kind for kind in vars(module).values() if is_process_of(module.__name__, kind))
    methods = {name for kind in process.__mro__[:-1] if kind is not ProcessShell for name in vars(kind)}
    assert {name for name in methods if not name.startswith("_")} <= set(dir(ProcessShell))


def is_process_of(module: str, kind: object) -> TypeGuard[type[ProcessShell]]:
    """Return True for the process class that a module defines."""
    return isinstance(kind, type) and issubclass(kind, ProcessShell) and kind.__module__ == module


def test_only_the_shell_creates_an_event_loop_in_the_daemon() -> None:
    package = Path(bruce_mp.__file__).parent
    commands = {package / "cli" / "connection_check.py"}  # a command has no shell
    creators = [path for path in package.rglob("*.py") if re.search(r"\bLoop\(\)", path.read_text())]
    assert set(creators) - commands == {package / "pipeline" / "process_shell.py"}
