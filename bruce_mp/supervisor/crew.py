"""All processes of the daemon together: who there is, who is to be told what, who is started again.

Input, router and status are always there.  Dispatchers come and go as the router says: a dispatcher is a *slot*, and a
slot whose broker has another address gets a new process.

When a process died, its transaction is finished first (its row in the slab says how far it was), then it is started
again, then the router hears of it, who looks what it left.  The router looks by itself when it starts.
"""

from __future__ import annotations

import logging
import socket
import time
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from bruce_mp.pipes.control import (
    ConfigTaken,
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
from bruce_mp.pipes.start import Start
from bruce_mp.slab import layout as lay
from bruce_mp.slab.rows import Row
from bruce_mp.supervisor import watch
from bruce_mp.supervisor.children import PROPER_END, Child
from bruce_mp.supervisor.handover import Member
from bruce_mp.supervisor.lifecycle import UNWANTED, State
from bruce_mp.supervisor.policy import BOOTS_MAX
from bruce_mp.supervisor.slab_setup import retire_row
from bruce_mp.supervisor.sockets import Bound
from bruce_mp.telemetry.clock import steady
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.logs import NOTICE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection
    from pathlib import Path

    from bruce_mp.config.model import Config
    from bruce_mp.pipes.control import Broker, InForce, NewConfig, Word
    from bruce_mp.slab.file import Slab
    from bruce_mp.supervisor.child import Inherited
    from bruce_mp.supervisor.intake import Intake
    from bruce_mp.supervisor.programs import Programs

__all__ = ["HEAD_START_S", "Crew", "Equipment"]

log = logging.getLogger(__name__)

HEAD_START_S: Final = 1.0
"""So long at the most have the inputs the machine to themselves at the start: clients wait for them."""


class Equipment(NamedTuple):
    """What the supervisor got hold of before it starts a process; `locks` live as long as any process."""

    config: Config
    run_dir: Path
    slab: Slab
    locks: Sequence[Inherited]
    intake: Intake
    http: Bound
    inputs: tuple[int, ...]


class Crew:
    """The processes.  `failure` says why the daemon cannot go on, once it cannot."""

    def __init__(self, programs: Programs, equipment: Equipment, row: Row) -> None:
        self._programs = programs
        self._equipment = equipment
        self._config = equipment.config
        self._config_number = 0
        self._in_force: InForce | None = None
        self.late: set[tuple[str, int]] = set()
        """The lives that have not said yet that they took the configuration in force."""
        self.on_reload_request: Callable[[ReloadRequest], None] = lambda _: None
        self._row = row
        self._bereft: set[Child] = set()
        self._debug = DebugTopics()
        self._watches: dict[State, watch.Watch[tuple[str, int]]] = {
            State.BOOTING: watch.Watch(watch.HUNG_BOOT_S),
            State.RUNNING: watch.Watch(watch.HUNG_S),
        }
        self._draining = False
        self._stopping = False
        self.failure: str | None = None
        self.inputs = [self._input(row) for row in equipment.inputs]
        self._router = self._child(programs.router, "router", lay.ROW_ROUTER)
        self._status = self._child(programs.status, "status", lay.ROW_STATUS, listener=equipment.http.socket)
        for child in (self._router, self._status):
            child.due = time.monotonic() + HEAD_START_S
        self._dispatchers: dict[int, Child] = {}

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
    ) -> Child:
        equipment = self._equipment
        places = (self._config, equipment.run_dir, equipment.slab.path)
        clock = steady.offset_ms
        start = Start(name, row, *places, listener=listener, slot=slot, broker=broker, clock_offset_ms=clock)
        return Child(program, start, equipment.locks, time.monotonic(), ends_when_drained=ends_when_drained)

    def _input(self, row: int) -> Child:
        """The process of an input; if there is no socket for datagrams, one on which none will come."""
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
        """Start everybody, and wait until they could begin, or until a time of the monotonic clock."""
        for child in self.members:
            child.hold()
            child.due = time.monotonic()
        self.act()
        loading = [child.connection for child in self.members if child.connection is not None]
        while loading and time.monotonic() < until:
            for connection in cast("list[Connection]", wait(loading, until - time.monotonic())):
                Control(connection).receive()  # Loaded, or the end of one that died: that is found later
                loading.remove(connection)

    def let_inputs_begin(self) -> None:
        """Whoever had the inputs' places is gone."""
        for child in self.inputs:
            child.begin()

    def let_all_begin(self) -> None:
        """The same of everybody."""
        for child in self.members:
            child.begin()

    def as_left(self) -> tuple[Member, ...]:
        """Those that live, as new code is told of them."""
        return tuple(
            Member(child.name, child.process.pid or 0, child.connection.fileno() if child.connection else None)
            for child in self.members
            if child.process is not None and child.process.is_alive()  # else its number may be another's by then
        )

    @property
    def members(self) -> list[Child]:
        """Everyone, those that ended included."""
        return [*self.inputs, self._router, self._status, *self._dispatchers.values()]

    @property
    def is_complete(self) -> bool:
        """Whether all run that are always there: messages are taken in, and the pages answer."""
        return all(child.state is State.RUNNING for child in (*self.inputs, self._router, self._status))

    @property
    def is_gone(self) -> bool:
        """Whether nobody lives, or will."""
        return all(child.state is State.ENDED for child in self.members)

    @property
    def due(self) -> float | None:
        """When `act` has something to do."""
        return min((child.due for child in self.members if child.due is not None), default=None)

    def act(self) -> None:
        """Start and end processes whose time has come."""
        for child in self.members:
            try:
                if child.act(time.monotonic()):
                    self._introduce(child)
            except OSError as error:
                self._mourn(child, f"it could not be started: {error.strerror}")

    def watch_over(self) -> None:
        """Kill who hangs; it is started again as whoever dies."""
        for state, watcher in self._watches.items():
            watched = {child.life: child for child in self.members if child.state is state}
            beats = {life: self._heartbeat(child) for life, child in watched.items()}
            for life in watcher.hung(beats, time.monotonic()):
                watched[life].kill("gave no sign of life")

    def _heartbeat(self, child: Child) -> int:
        slab = self._equipment.slab
        return slab.signed(slab.geometry.rows_at + child.start.row * lay.ROW_BYTES + lay.ROW_HEARTBEAT_MS)

    def _introduce(self, child: Child) -> None:
        log.info("Process %s is started.", child.name, extra=child.about)
        if child in self._bereft:
            self._bereft.remove(child)
            self._row.add(Counter.ProcessRestarted)
            if child is not self._router:
                self._router.send(PeerDied(child.name))

    def sources(self) -> dict[int, Callable[[], None]]:
        """The descriptors to wait for, and what to do then."""
        found: dict[int, Callable[[], None]] = {}
        for child in self.members:
            if child.connection is not None:
                found[child.connection.fileno()] = partial(self._on_word, child)
            if child.process is not None:
                found[child.process.sentinel] = partial(self._on_end, child)
        return found

    def _on_word(self, child: Child) -> None:
        if child.connection is None:
            return
        word = Control(child.connection).receive()
        if word is None:
            child.hung_up(time.monotonic())
        else:
            self._obey(child, word)

    def _obey(self, child: Child, word: Word) -> None:
        match word:
            case Loaded():
                pass
            case Ready():
                self._on_ready(child)
            case Dispatchers(wanted):
                self._arrange_dispatchers(wanted)
            case RefreshMetadata():
                self._router.send(word)
            case ConfigTaken(number):
                if number == self._config_number:
                    self.late.discard(child.life)
            case ReloadRequest():
                self.on_reload_request(word)
            case DebugTopics():
                self._debug = word
                for each in (self._router, *self._dispatchers.values()):
                    each.send(word)
            case _:
                log.warning("Process %s said %s, which only the supervisor says.", child.name, type(word).__name__)

    def _on_ready(self, child: Child) -> None:
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
            if child.state is State.WAITING and not child.has_lived:
                child.due = time.monotonic()

    # --- a new configuration -----------------------------------------------------------------------------------------

    @property
    def have_begun(self) -> bool:
        """Whether nobody is held back."""
        return all(child.may_begin for child in self.members)

    def take_config(self, word: NewConfig) -> None:
        """From now on everybody goes by this configuration: those that run are told, others begin with it."""
        self._config, self._config_number = word.config, word.number
        for child in self.members:
            child.start = replace(child.start, config=word.config)
            child.send(word)
        self.late = {child.life for child in self.members if child.state is State.RUNNING}

    def kill_late(self, reason: str) -> None:
        """Kill who has not taken the configuration; its successor begins with it."""
        for child in self.members:
            if child.life in self.late:
                child.kill(reason)

    def announce(self, in_force: InForce) -> None:
        """Let the pages tell of the configuration in force."""
        self._in_force = in_force
        self.tell_status(in_force)

    def tell_status(self, word: Word) -> None:
        """Say a word to the status process."""
        self._status.send(word)

    # --- dispatchers, and ends ---------------------------------------------------------------------------------------

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

    def _dispatcher(self, slot: int, broker: Broker) -> Child:
        row = lay.ROW_FIRST_DISPATCHER + slot
        child = self._child(self._programs.dispatcher, f"dispatcher-{slot}", row, slot=slot, broker=broker)
        if self._draining:
            child.drain()
        return child

    def _on_end(self, child: Child) -> None:
        while child.connection is not None and child.connection.poll():
            self._on_word(child)
        self.late.discard(child.life)
        was_wanted = child.is_wanted
        reason = child.bury()
        Row(self._equipment.slab, child.start.row)  # finishes its transaction
        if child.state is State.WAITING and was_wanted:
            self._mourn(child, reason)
        elif child.state is State.WAITING:
            child.due = time.monotonic()
            self._bereft.add(child)
        else:
            retire_row(self._equipment.slab, child.start.row)
            level = logging.INFO if reason == PROPER_END else logging.WARNING
            log.log(level, "Process %s has ended: %s.", child.name, reason, extra=child.about)
        self._stop_status_last()

    def _mourn(self, child: Child, reason: str) -> None:
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
        """Whether nothing more comes in."""
        return all(child.state is State.ENDED for child in self.inputs)

    @property
    def inputs_run(self) -> bool:
        """Whether every input that has not ended runs: then none of them will begin anew and bring more."""
        return all(child.state in {State.RUNNING, State.ENDED} for child in self.inputs)

    def drain_inputs(self, *, goes_on: bool) -> None:
        """Let the inputs hand on what they have, and end, also if more comes (`goes_on`)."""
        for child in self.inputs:
            child.drain(Drain(goes_on))

    def drain_others(self) -> None:
        """Let everyone behind the input send what they have."""
        self._draining = True
        for child in (self._router, *self._dispatchers.values()):
            child.drain()

    def stop(self) -> None:
        """Let everyone end, by force if need be; status last, for it writes down what the others say at their end."""
        self._stopping = True
        for child in self._others:
            child.stop(time.monotonic())
        self._stop_status_last()

    @property
    def _others(self) -> list[Child]:
        return [child for child in self.members if child is not self._status]

    def _stop_status_last(self) -> None:
        if self._stopping and all(child.state is State.ENDED for child in self._others):
            self._status.stop(time.monotonic())


def _no_datagrams() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
