"""All processes of the daemon: their restarts, the messages to them, and the current set of dispatchers.

The *permanent* processes always run: the inputs, the router, the status process and, unless `slab.sync` is off, the
journal process. A *dispatcher* sends messages to one broker. The router numbers the brokers with *slots*, and requests
a dispatcher for each slot in use. When the broker of a slot changes its address, the slot gets a new process.

After the death of a process, the supervisor finishes the transaction in the process's row of the slab, restarts the
process, and then sends PeerDied to the router. The router searches the slab for runs that the dead process handed over
without telling the router their places. A router that starts searches the whole slab anyway, so it needs no PeerDied
about its predecessor.
"""

from __future__ import annotations

import logging
import socket
import time
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from bruce_mp.ipc.control_messages import (
    AcceptCluster,
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
from bruce_mp.supervisor.processes.lifecycle import UNWANTED_STATES, ProcessState
from bruce_mp.supervisor.processes.managed_process import CLEAN_EXIT, ManagedProcess
from bruce_mp.supervisor.processes.restart_policy import MAX_FAILED_BOOTS
from bruce_mp.supervisor.slab.slab_setup import retire_row
from bruce_mp.supervisor.sockets.bound_sockets import BoundSocket
from bruce_mp.supervisor.upgrade.handover import PassedProcess
from bruce_mp.telemetry.clock import steady
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.logs import NOTICE

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from pathlib import Path

    from bruce_mp.config.model import Config
    from bruce_mp.ipc.control_messages import ActiveConfig, Broker, ControlMessage, NewConfig
    from bruce_mp.slab.file import Slab
    from bruce_mp.supervisor.processes.programs import Programs
    from bruce_mp.supervisor.sockets.input_sockets import InputSockets

__all__ = ["HEAD_START_S", "ProcessGroup", "Resources"]

log = logging.getLogger(__name__)

HEAD_START_S: Final = 1.0
"""Time limit of the *head start*, in which only the inputs boot, because clients wait for them."""


class Resources(NamedTuple):
    """Resources that the supervisor acquires before it starts a process.

    `locks` are the descriptors that hold the locks of run directory and slab. Every process inherits them, so the
    kernel releases a lock only after the last process has exited. `http` is the socket of the status pages.
    `input_rows` are the slab rows of the input processes.
    """

    config: Config
    run_dir: Path
    slab: Slab
    locks: tuple[int, ...]
    input_sockets: InputSockets
    http: BoundSocket
    input_rows: tuple[int, ...]


class ProcessGroup:
    """The supervisor's processes. `failure` is the reason why the daemon cannot continue, or None."""

    def __init__(self, programs: Programs, resources: Resources, supervisor_row: ProcessRow) -> None:
        self._programs = programs
        self._resources = resources
        self._config = resources.config
        self._config_number = 0
        self._active_config: ActiveConfig | None = None
        self.unconfirmed_instances: set[tuple[str, int]] = set()
        """`ManagedProcess.instance` of each process that has not confirmed the last configuration yet."""
        self.on_reload_request: Callable[[ReloadRequest], None] = lambda _: None
        self._supervisor_row = supervisor_row
        self._awaiting_restart: set[ManagedProcess] = set()
        self._debug_topics = DebugTopics()
        self._watchdogs: dict[ProcessState, watchdog.Watchdog[tuple[str, int]]] = {
            ProcessState.BOOTING: watchdog.Watchdog(watchdog.HUNG_BOOT_S),
            ProcessState.RUNNING: watchdog.Watchdog(watchdog.HUNG_S),
        }
        self._is_draining = False
        self._is_stopping = False
        self.failure: str | None = None
        self.inputs = [self._create_input(input_row) for input_row in resources.input_rows]
        self._router = self._create_process(programs.router, "router", lay.ROW_ROUTER)
        self._status = self._create_process(programs.status, "status", lay.ROW_STATUS, listener=resources.http.socket)
        self._journal_processes: list[ManagedProcess] = []
        if self._config.slab.sync != "off":
            self._journal_processes.append(self._create_process(programs.journal, "journal", lay.ROW_JOURNAL))
        for child in (self._router, self._status, *self._journal_processes):
            child.due = time.monotonic() + HEAD_START_S
        self._dispatchers: dict[int, ManagedProcess] = {}

    def _create_process(
        self,
        program: str,
        name: str,
        row: int,
        *,
        ends_when_drained: bool = False,
        **start_fields: Any,
    ) -> ManagedProcess:
        """Return a process that is not started yet; `start_fields` are further arguments of `Start`."""
        resources = self._resources
        start = Start(name, row, self._config, resources.run_dir, clock_offset_ms=steady.offset_ms, **start_fields)
        return ManagedProcess(
            program, start, resources.slab, resources.locks, time.monotonic(), ends_when_drained=ends_when_drained
        )

    def _create_input(self, row: int) -> ManagedProcess:
        input_sockets, number = self._resources.input_sockets, row - lay.ROW_FIRST_INPUT
        common: dict[str, Any] = {"ends_when_drained": True, "input_rows": self._resources.input_rows}
        if number:  # a stream worker; the datagram input has the number 0
            unix, tcp = (bound.socket if bound else None for bound in (input_sockets.unix_stream, input_sockets.tcp))
            return self._create_process(
                self._programs.stream_input, f"input-{number}", row, unix_stream=unix, tcp=tcp, **common
            )
        # If datagrams are disabled, the process gets a socket that no client can reach, and only hands over the
        # datagrams that the previous daemon left in the landing zone.
        bound = input_sockets.datagrams or BoundSocket(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        return self._create_process(
            self._programs.datagram_input,
            "input",
            row,
            listener=bound.socket,
            queue_length=bound.queue_length,
            **common,
        )

    def load_programs(self, deadline: float) -> None:
        """Start all processes without Begin. Wait until each has loaded its program, at most until `deadline`."""
        for child in self.members:
            child.may_begin = False
            child.due = time.monotonic()
        self.spawn_or_kill_if_due()
        loading = [child.connection for child in self.members if child.connection is not None]
        while loading and time.monotonic() < deadline:
            for connection in cast("list[Connection]", wait(loading, deadline - time.monotonic())):
                Control(connection).receive()  # Loaded, or None from a dead process, which the event loop handles later
                loading.remove(connection)

    def begin_inputs(self) -> None:
        """Send Begin to the inputs that have not received it."""
        for child in self.inputs:
            child.begin()

    def begin_all(self) -> None:
        """Send Begin to all processes that have not received it."""
        for child in self.members:
            child.begin()

    def processes_to_pass(self) -> tuple[PassedProcess, ...]:
        """Return the live processes, to pass them to the new code of an upgrade."""
        return tuple(
            PassedProcess(child.name, child.process.pid or 0, child.connection.fileno() if child.connection else None)
            for child in self.members
            if child.process is not None and child.process.is_alive()  # the kernel may reuse the pid of a dead process
        )

    @property
    def members(self) -> list[ManagedProcess]:
        """Return all processes, including the ended ones."""
        return [*self._permanent, *self._dispatchers.values()]

    @property
    def _permanent(self) -> list[ManagedProcess]:
        """Return all processes except the dispatchers."""
        return [*self.inputs, self._router, self._status, *self._journal_processes]

    @property
    def is_complete(self) -> bool:
        """Return True if all permanent processes run, so that the inputs receive and the status pages answer."""
        return all(child.state is ProcessState.RUNNING for child in self._permanent)

    @property
    def has_ended(self) -> bool:
        """Return True if all processes have ended, and none will restart."""
        return all(child.state is ProcessState.ENDED for child in self.members)

    @property
    def due(self) -> float | None:
        """Return the time of the next spawn or kill in seconds of `time.monotonic()`, or None."""
        return min((child.due for child in self.members if child.due is not None), default=None)

    def spawn_or_kill_if_due(self) -> None:
        """Spawn or kill each process for which that is due."""
        for child in self.members:
            try:
                if child.spawn_or_kill_if_due(time.monotonic()):
                    self._on_started(child)
            except OSError as error:
                self._schedule_restart(child, f"it could not be started: {error.strerror}")

    def kill_hung(self) -> None:
        """Kill the processes that the watchdogs find to be hung; they restart as after a crash."""
        for state, state_watchdog in self._watchdogs.items():
            watched = {child.instance: child for child in self.members if child.state is state}
            heartbeats = {instance: self._heartbeat(child) for instance, child in watched.items()}
            for instance in state_watchdog.find_hung(heartbeats, time.monotonic()):
                watched[instance].kill("stored no heartbeat")

    def _heartbeat(self, child: ManagedProcess) -> int:
        """Return the time of the last heartbeat that the process stored in its row."""
        slab = self._resources.slab
        return slab.read_signed(slab.row_at(child.start.row) + lay.ROW_HEARTBEAT_MS)

    def _on_started(self, child: ManagedProcess) -> None:
        log.info("Process %s has started.", child.name, extra=child.log_extra)
        if child in self._awaiting_restart:
            self._awaiting_restart.remove(child)
            self._supervisor_row.add(Counter.ProcessRestarted)
            if child is not self._router:
                self._router.send(PeerDied(child.name))

    def sources(self) -> dict[int, Callable[[], None]]:
        """Return the descriptors to poll, with the handler of each."""
        handlers: dict[int, Callable[[], None]] = {}
        for child in self.members:
            if child.connection is not None:
                handlers[child.connection.fileno()] = partial(self._on_message, child)
            if child.process is not None:
                handlers[child.process.sentinel] = partial(self._on_exit, child)
        return handlers

    def _on_message(self, child: ManagedProcess) -> None:
        if child.connection is None:  # `_on_exit` has just closed it
            return
        message = Control(child.connection).receive()
        if message is None:
            child.on_pipe_closed(time.monotonic())
        else:
            self._handle_message(child, message)

    def _handle_message(self, child: ManagedProcess, message: ControlMessage) -> None:
        match message:
            case Loaded():
                pass  # only `load_programs` awaits it
            case Ready():
                self._on_ready(child)
            case Dispatchers(wanted):
                self._update_dispatchers(wanted)
            case RefreshMetadata() | AcceptCluster():
                self._router.send(message)
            case ConfigApplied(number):
                if number == self._config_number:
                    self.unconfirmed_instances.discard(child.instance)
            case ReloadRequest():
                self.on_reload_request(message)
            case DebugTopics():
                self._debug_topics = message
                for each in (self._router, *self._dispatchers.values()):
                    each.send(message)
            case _:
                log.warning("Process %s sent %s, which only the supervisor sends.", child.name, type(message).__name__)

    def _on_ready(self, child: ManagedProcess) -> None:
        child.on_ready()
        if self._debug_topics.has_topics and child not in self.inputs:
            child.send(self._debug_topics)
        if child is self._status and self._active_config is not None:
            child.send(self._active_config)
        log.log(NOTICE, "Process %s is ready.", child.name, extra=child.log_extra)
        if self.inputs_have_booted:
            self._end_head_start()

    def _end_head_start(self) -> None:
        """Start the permanent processes that have waited for the inputs to boot."""
        for child in self._permanent:
            if child.state is ProcessState.WAITING and not child.was_started:
                child.due = time.monotonic()

    # --- reload ------------------------------------------------------------------------------------------------------

    @property
    def all_may_begin(self) -> bool:
        """Return True if no process must wait for `begin_all` or `begin_inputs` before it receives Begin."""
        return all(child.may_begin for child in self.members)

    def apply_config(self, message: NewConfig) -> None:
        """Send a reloaded configuration to the running processes; processes that start later start with it."""
        self._config, self._config_number = message.config, message.number
        for child in self.members:
            child.start = replace(child.start, config=message.config)
            child.send(message)
        self.unconfirmed_instances = {child.instance for child in self.members if child.state is ProcessState.RUNNING}

    def kill_unconfirmed(self, reason: str) -> None:
        """Kill the processes that have not confirmed the last configuration; they restart with it."""
        for child in self.members:
            if child.instance in self.unconfirmed_instances:
                child.kill(reason)

    def publish_config_status(self, active_config: ActiveConfig) -> None:
        """Send the status of the configuration to the status process, now and after each of its restarts."""
        self._active_config = active_config
        self.send_to_status(active_config)

    def send_to_status(self, message: ControlMessage) -> None:
        self._status.send(message)

    # --- dispatchers and shutdown ------------------------------------------------------------------------------------

    def _update_dispatchers(self, wanted: dict[int, Broker]) -> None:
        """Start, replace and stop dispatchers so that exactly the slots in `wanted` have one, each for its broker."""
        if self._is_stopping:
            return
        now = time.monotonic()
        for slot, broker in wanted.items():
            child = self._dispatchers.get(slot)
            if child is None:
                self._dispatchers[slot] = self._create_dispatcher(slot, broker)
            elif child.state in UNWANTED_STATES or child.start.broker != broker:
                child.replace(broker, now)
        for slot, child in self._dispatchers.items():
            if slot not in wanted and child.state not in UNWANTED_STATES:
                child.stop(now)

    def _create_dispatcher(self, slot: int, broker: Broker) -> ManagedProcess:
        row = lay.ROW_FIRST_DISPATCHER + slot
        child = self._create_process(self._programs.dispatcher, f"dispatcher-{slot}", row, slot=slot, broker=broker)
        if self._is_draining:
            child.drain()
        return child

    def _on_exit(self, child: ManagedProcess) -> None:
        """Handle the last messages of an ended process, finish its transaction, and schedule its restart, if any."""
        while child.connection is not None and child.connection.poll():
            self._on_message(child)
        self.unconfirmed_instances.discard(child.instance)
        was_requested = child.exit_is_requested
        reason = child.reap()
        ProcessRow.recover(self._resources.slab, child.start.row)
        if child.state is ProcessState.WAITING and not was_requested:
            self._schedule_restart(child, reason)
        elif child.state is ProcessState.WAITING:  # the supervisor replaces the instance by a new one
            child.due = time.monotonic()
            self._awaiting_restart.add(child)
        else:
            retire_row(self._resources.slab, child.start.row)
            level = logging.INFO if reason == CLEAN_EXIT else logging.WARNING
            log.log(level, "Process %s has ended: %s.", child.name, reason, extra=child.log_extra)
        self._stop_status_last()

    def _schedule_restart(self, child: ManagedProcess, reason: str) -> None:
        """Schedule the restart of a process that died for `reason`, or set `failure` if the policy allows none."""
        now = time.monotonic()
        delay = child.restart_policy.on_died(now)
        if delay is None:
            self.failure = (
                f"Process {child.name} failed {MAX_FAILED_BOOTS} times in a row before it was ready; last: {reason}"
            )
            return
        self._awaiting_restart.add(child)
        child.due = now + delay
        log.warning("Process %s has died: %s. Next start in %g s.", child.name, reason, delay, extra=child.log_extra)

    @property
    def inputs_have_ended(self) -> bool:
        """Return True if all inputs have ended for good, so that the daemon receives no more messages."""
        return all(child.state is ProcessState.ENDED for child in self.inputs)

    @property
    def inputs_have_booted(self) -> bool:
        """Return True if each input is running, or has ended for good."""
        return all(child.state in {ProcessState.RUNNING, ProcessState.ENDED} for child in self.inputs)

    def drain_inputs(self, *, datagram_socket_stays_open: bool) -> None:
        """Send Drain to the inputs: they hand their messages over to the router and exit.

        If `datagram_socket_stays_open` is True, the datagram input receives only the messages that wait in its socket
        now, because clients may go on sending. The stream inputs ignore the flag.
        """
        for child in self.inputs:
            child.drain(Drain(datagram_socket_stays_open))

    def drain_router_and_dispatchers(self) -> None:
        """Send Drain to the router and the dispatchers: they deliver all messages that the daemon holds."""
        self._is_draining = True
        for child in (self._router, *self._dispatchers.values()):
            child.drain()

    def stop(self) -> None:
        """Request the exit of all processes, and kill processes that do not exit in time.

        The status process ends last, because it records the last reports of the other processes.
        """
        self._is_stopping = True
        for child in self._all_but_status:
            child.stop(time.monotonic())
        self._stop_status_last()

    @property
    def _all_but_status(self) -> list[ManagedProcess]:
        return [child for child in self.members if child is not self._status]

    def _stop_status_last(self) -> None:
        """Request the exit of the status process if the group is stopping and all other processes have ended."""
        if self._is_stopping and all(child.state is ProcessState.ENDED for child in self._all_but_status):
            self._status.stop(time.monotonic())
