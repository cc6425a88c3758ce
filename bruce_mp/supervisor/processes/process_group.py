"""All processes of the daemon: restarts, messages to them, and the current set of dispatchers.

Input, router and status always run. The router requests dispatchers: a dispatcher has a *slot*, and a slot whose broker
changes its address gets a new process.

After a death, the supervisor finishes the transaction in the process's row, restarts the process, and then sends
PeerDied to the router, which claims the runs that the process left. A starting router needs no such message.
"""

from __future__ import annotations

import logging
import socket
import time
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from bruce_mp.ipc.control_messages import (
    ConfigApplied,
    Control,
    DebugTopics,
    Dispatchers,
    Drain,
    Loaded,
    PeerDied,
    Ready,
    RefreshMetadata,
    ReloadRequest,
)
from bruce_mp.ipc.start import Start
from bruce_mp.slab import layout as lay
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.supervisor.processes import watchdog
from bruce_mp.supervisor.processes.lifecycle import UNWANTED, ProcessState
from bruce_mp.supervisor.processes.managed_process import PROPER_END, ManagedProcess
from bruce_mp.supervisor.processes.restart_policy import BOOTS_MAX
from bruce_mp.supervisor.slab.slab_setup import retire_row
from bruce_mp.supervisor.sockets.bound_sockets import Bound
from bruce_mp.supervisor.upgrade.handover import Member
from bruce_mp.telemetry.clock import steady
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.logs import NOTICE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection
    from pathlib import Path

    from bruce_mp.config.model import Config
    from bruce_mp.ipc.control_messages import ActiveConfig, Broker, ControlMessage, NewConfig
    from bruce_mp.slab.file import Slab
    from bruce_mp.supervisor.processes.bootstrap import Inherited
    from bruce_mp.supervisor.processes.programs import Programs
    from bruce_mp.supervisor.sockets.input_sockets import InputSockets

__all__ = ["HEAD_START_S", "Equipment", "ProcessGroup"]

log = logging.getLogger(__name__)

HEAD_START_S: Final = 1.0
"""Longest time at the start in which only the inputs boot, because clients wait for them."""


class Equipment(NamedTuple):
    """Resources that the supervisor acquires before it starts a process; `locks` last as long as any process."""

    config: Config
    run_dir: Path
    slab: Slab
    locks: Sequence[Inherited]
    intake: InputSockets
    http: Bound
    inputs: tuple[int, ...]


class ProcessGroup:
    """The process group. `failure` is the reason why the daemon cannot continue, or None."""

    def __init__(self, programs: Programs, equipment: Equipment, row: ProcessRow) -> None:
        self._programs = programs
        self._equipment = equipment
        self._config = equipment.config
        self._config_number = 0
        self._in_force: ActiveConfig | None = None
        self.late: set[tuple[str, int]] = set()
        """Lives that have not confirmed the configuration in force."""
        self.on_reload_request: Callable[[ReloadRequest], None] = lambda _: None
        self._row = row
        self._bereft: set[ManagedProcess] = set()
        self._debug = DebugTopics()
        self._watches: dict[ProcessState, watchdog.Watchdog[tuple[str, int]]] = {
            ProcessState.BOOTING: watchdog.Watchdog(watchdog.HUNG_BOOT_S),
            ProcessState.RUNNING: watchdog.Watchdog(watchdog.HUNG_S),
        }
        self._draining = False
        self._stopping = False
        self.failure: str | None = None
        self.inputs = [self._input(row) for row in equipment.inputs]
        self._router = self._child(programs.router, "router", lay.ROW_ROUTER)
        self._status = self._child(programs.status, "status", lay.ROW_STATUS, listener=equipment.http.socket)
        for child in (self._router, self._status):
            child.due = time.monotonic() + HEAD_START_S
        self._dispatchers: dict[int, ManagedProcess] = {}

    def _child(
        self,
        program: str,
        name: str,
        row: int,
        *,
        listener: socket.socket | None = None,
        slot: int = 0,
        broker: Broker | None = None,
        ends_when_drained: bool = False,
    ) -> ManagedProcess:
        equipment = self._equipment
        places = (self._config, equipment.run_dir, equipment.slab.path)
        clock = steady.offset_ms
        start = Start(name, row, *places, listener=listener, slot=slot, broker=broker, clock_offset_ms=clock)
        return ManagedProcess(program, start, equipment.locks, time.monotonic(), ends_when_drained=ends_when_drained)

    def _input(self, row: int) -> ManagedProcess:
        """Create the process of an input. Without a datagram socket, the datagram input gets an unconnected one."""
        intake, number = self._equipment.intake, row - lay.ROW_FIRST_INPUT
        if number:
            child = self._child(self._programs.stream, f"input-{number}", row, ends_when_drained=True)
            unix, tcp = (bound.socket if bound else None for bound in (intake.unix_stream, intake.tcp))
            child.start = replace(child.start, unix_stream=unix, tcp=tcp)
        else:
            bound = intake.datagrams or Bound(_no_datagrams())
            child = self._child(self._programs.input, "input", row, listener=bound.socket, ends_when_drained=True)
            child.start = replace(child.start, queue=bound.queue)
        child.start = replace(child.start, inputs=self._equipment.inputs)
        return child

    def load(self, until: float) -> None:
        """Start all processes, and wait until each has loaded its program or the monotonic time `until` is reached."""
        for child in self.members:
            child.hold()
            child.due = time.monotonic()
        self.act()
        loading = [child.connection for child in self.members if child.connection is not None]
        while loading and time.monotonic() < until:
            for connection in cast("list[Connection]", wait(loading, until - time.monotonic())):
                Control(connection).receive()  # Loaded, or the end of a dead process, which is handled later
                loading.remove(connection)

    def start_inputs(self) -> None:
        """Let the inputs begin after their predecessors have ended."""
        for child in self.inputs:
            child.begin()

    def start_all(self) -> None:
        """Let all processes begin after their predecessors have ended."""
        for child in self.members:
            child.begin()

    def members_for_handover(self) -> tuple[Member, ...]:
        """List the live processes for the handover to new code."""
        return tuple(
            Member(child.name, child.process.pid or 0, child.connection.fileno() if child.connection else None)
            for child in self.members
            if child.process is not None and child.process.is_alive()  # the pid of a dead one may be reused
        )

    @property
    def members(self) -> list[ManagedProcess]:
        """Return all processes, including ended ones."""
        return [*self.inputs, self._router, self._status, *self._dispatchers.values()]

    @property
    def is_complete(self) -> bool:
        """Return True if all permanent processes run: the inputs receive and the pages answer."""
        return all(child.state is ProcessState.RUNNING for child in (*self.inputs, self._router, self._status))

    @property
    def is_gone(self) -> bool:
        """Return True if all processes have ended for good."""
        return all(child.state is ProcessState.ENDED for child in self.members)

    @property
    def due(self) -> float | None:
        """Return the next time at which `act` has work."""
        return min((child.due for child in self.members if child.due is not None), default=None)

    def act(self) -> None:
        """Start and kill the processes that are due."""
        for child in self.members:
            try:
                if child.act(time.monotonic()):
                    self._introduce(child)
            except OSError as error:
                self._schedule_restart(child, f"it could not be started: {error.strerror}")

    def kill_hung(self) -> None:
        """Kill hung processes; they restart like dead ones."""
        for state, watcher in self._watches.items():
            watched = {child.life: child for child in self.members if child.state is state}
            beats = {life: self._heartbeat(child) for life, child in watched.items()}
            for life in watcher.hung(beats, time.monotonic()):
                watched[life].kill("gave no sign of life")

    def _heartbeat(self, child: ManagedProcess) -> int:
        slab = self._equipment.slab
        return slab.signed(slab.geometry.rows_at + child.start.row * lay.ROW_BYTES + lay.ROW_HEARTBEAT_MS)

    def _introduce(self, child: ManagedProcess) -> None:
        log.info("Process %s is started.", child.name, extra=child.about)
        if child in self._bereft:
            self._bereft.remove(child)
            self._row.add(Counter.ProcessRestarted)
            if child is not self._router:
                self._router.send(PeerDied(child.name))

    def sources(self) -> dict[int, Callable[[], None]]:
        """Return the descriptors to poll, with the handler of each."""
        found: dict[int, Callable[[], None]] = {}
        for child in self.members:
            if child.connection is not None:
                found[child.connection.fileno()] = partial(self._on_message, child)
            if child.process is not None:
                found[child.process.sentinel] = partial(self._on_end, child)
        return found

    def _on_message(self, child: ManagedProcess) -> None:
        if child.connection is None:
            return
        message = Control(child.connection).receive()
        if message is None:
            child.on_pipe_closed(time.monotonic())
        else:
            self._handle_message(child, message)

    def _handle_message(self, child: ManagedProcess, message: ControlMessage) -> None:
        match message:
            case Loaded():
                pass
            case Ready():
                self._on_ready(child)
            case Dispatchers(wanted):
                self._arrange_dispatchers(wanted)
            case RefreshMetadata():
                self._router.send(message)
            case ConfigApplied(number):
                if number == self._config_number:
                    self.late.discard(child.life)
            case ReloadRequest():
                self.on_reload_request(message)
            case DebugTopics():
                self._debug = message
                for each in (self._router, *self._dispatchers.values()):
                    each.send(message)
            case _:
                log.warning("Process %s sent %s, which only the supervisor sends.", child.name, type(message).__name__)

    def _on_ready(self, child: ManagedProcess) -> None:
        child.is_ready()
        if self._debug.any and child not in self.inputs:
            child.send(self._debug)
        if child is self._status and self._in_force is not None:
            child.send(self._in_force)
        log.log(NOTICE, "Process %s is ready.", child.name, extra=child.about)
        if self.inputs_run:
            self._end_head_start()

    def _end_head_start(self) -> None:
        for child in (self._router, self._status):
            if child.state is ProcessState.WAITING and not child.has_lived:
                child.due = time.monotonic()

    # --- reload ------------------------------------------------------------------------------------------------------

    @property
    def have_begun(self) -> bool:
        """Return True if every process may begin its work."""
        return all(child.may_begin for child in self.members)

    def apply_config(self, message: NewConfig) -> None:
        """Apply a reloaded config: send it to running processes, and start others with it."""
        self._config, self._config_number = message.config, message.number
        for child in self.members:
            child.start = replace(child.start, config=message.config)
            child.send(message)
        self.late = {child.life for child in self.members if child.state is ProcessState.RUNNING}

    def kill_late(self, reason: str) -> None:
        """Kill the processes that have not confirmed the configuration; their successors start with it."""
        for child in self.members:
            if child.life in self.late:
                child.kill(reason)

    def announce(self, in_force: ActiveConfig) -> None:
        """Send the status of the configuration to the status process, now and after its restarts."""
        self._in_force = in_force
        self.send_to_status(in_force)

    def send_to_status(self, message: ControlMessage) -> None:
        """Send a control message to the status process."""
        self._status.send(message)

    # --- dispatchers and shutdown ------------------------------------------------------------------------------------

    def _arrange_dispatchers(self, wanted: dict[int, Broker]) -> None:
        if self._stopping:
            return
        now = time.monotonic()
        for slot, broker in wanted.items():
            child = self._dispatchers.get(slot)
            if child is None:
                self._dispatchers[slot] = self._dispatcher(slot, broker)
            elif child.state in UNWANTED or child.start.broker != broker:
                child.replace(broker, now)
        for slot, child in self._dispatchers.items():
            if slot not in wanted and child.state not in UNWANTED:
                child.stop(now)

    def _dispatcher(self, slot: int, broker: Broker) -> ManagedProcess:
        row = lay.ROW_FIRST_DISPATCHER + slot
        child = self._child(self._programs.dispatcher, f"dispatcher-{slot}", row, slot=slot, broker=broker)
        if self._draining:
            child.drain()
        return child

    def _on_end(self, child: ManagedProcess) -> None:
        while child.connection is not None and child.connection.poll():
            self._on_message(child)
        self.late.discard(child.life)
        was_wanted = child.is_wanted
        reason = child.reap()
        ProcessRow(self._equipment.slab, child.start.row)  # finishes its transaction
        if child.state is ProcessState.WAITING and was_wanted:
            self._schedule_restart(child, reason)
        elif child.state is ProcessState.WAITING:
            child.due = time.monotonic()
            self._bereft.add(child)
        else:
            retire_row(self._equipment.slab, child.start.row)
            level = logging.INFO if reason == PROPER_END else logging.WARNING
            log.log(level, "Process %s has ended: %s.", child.name, reason, extra=child.about)
        self._stop_status_last()

    def _schedule_restart(self, child: ManagedProcess, reason: str) -> None:
        now = time.monotonic()
        delay = child.restarts.died(now)
        if delay is None:
            self.failure = f"Process {child.name} failed {BOOTS_MAX} times in a row before it was ready; last: {reason}"
            return
        self._bereft.add(child)
        child.due = now + delay
        log.warning("Process %s has died: %s. Next start in %g s.", child.name, reason, delay, extra=child.about)

    @property
    def inputs_have_ended(self) -> bool:
        """Return True if all inputs have ended, so that no more messages arrive."""
        return all(child.state is ProcessState.ENDED for child in self.inputs)

    @property
    def inputs_run(self) -> bool:
        """Return True if every input runs or has ended, so that none will restart and receive more."""
        return all(child.state in {ProcessState.RUNNING, ProcessState.ENDED} for child in self.inputs)

    def drain_inputs(self, *, stays_open: bool) -> None:
        """Let the inputs hand over their messages and end; with `stays_open`, even if more arrive."""
        for child in self.inputs:
            child.drain(Drain(stays_open))

    def drain_others(self) -> None:
        """Let router and dispatchers send their messages."""
        self._draining = True
        for child in (self._router, *self._dispatchers.values()):
            child.drain()

    def stop(self) -> None:
        """Let all processes end, by force after a time limit.

        Status ends last, because it records the others' last reports.
        """
        self._stopping = True
        for child in self._others:
            child.stop(time.monotonic())
        self._stop_status_last()

    @property
    def _others(self) -> list[ManagedProcess]:
        return [child for child in self.members if child is not self._status]

    def _stop_status_last(self) -> None:
        if self._stopping and all(child.state is ProcessState.ENDED for child in self._others):
            self._status.stop(time.monotonic())


def _no_datagrams() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
