"""Handle of one process of the daemon: spawn, messages, and end.

`lifecycle.py` has the state table, `restart_policy.py` the restart delays; this module executes both.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from signal import strsignal
from typing import TYPE_CHECKING, Final

from bruce_mp.ipc.control_messages import Begin, Control, Drain, Stop
from bruce_mp.supervisor.processes.bootstrap import note_of, run_child
from bruce_mp.supervisor.processes.lifecycle import ALIVE, ProcessEvent, ProcessState, advance
from bruce_mp.supervisor.processes.restart_policy import RestartPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from bruce_mp.ipc.control_messages import Broker, ControlMessage
    from bruce_mp.ipc.start import Start
    from bruce_mp.supervisor.processes.bootstrap import Inherited

__all__ = ["PROPER_END", "ManagedProcess"]

STOP_PATIENCE_S: Final = 2.0
"""Time limit for a process to end after a stop request."""

PROPER_END: Final = "exit code 0"
DRAIN: Final = Drain()

_SPAWN: Final = multiprocessing.get_context("spawn")


class ManagedProcess:
    """A process with its restarts. Times are `time.monotonic()` in seconds.

    `act` has work at the time `due`. With `ends_when_drained`, an exit with 0 after Drain is a regular end.
    """

    def __init__(
        self, program: str, start: Start, locks: Sequence[Inherited], now: float, *, ends_when_drained: bool = False
    ) -> None:
        self.start = start
        self.state = ProcessState.WAITING
        self.restarts = RestartPolicy()
        self.due: float | None = now
        self.connection: Connection | None = None
        self.process: SpawnProcess | None = None
        self._program = program
        self._locks = locks
        self._ends_when_drained = ends_when_drained
        self._drain: Drain | None = None
        self.may_begin = True
        self._killed_for = ""
        self._lives = 0

    @property
    def name(self) -> str:
        return self.start.name

    @property
    def about(self) -> dict[str, object]:
        """Return the log key: each life of the process has its own log lines."""
        return {"about": (self.name, self._lives)}

    @property
    def life(self) -> tuple[str, int]:
        """Return the identity of the current life."""
        return self.name, self._lives

    @property
    def has_lived(self) -> bool:
        """Return True if the process was started before."""
        return self._lives > 0

    @property
    def is_wanted(self) -> bool:
        """Return True if the current life should continue."""
        return self.state in {ProcessState.BOOTING, ProcessState.RUNNING}

    def send(self, message: ControlMessage) -> None:
        """Send a control message if the process has a control pipe.

        A process that waits for Begin receives only Stop, because it takes any other message for a request to end.
        """
        if self.connection is not None and (self.may_begin or isinstance(message, Stop)):
            Control(self.connection).send(message)

    def hold(self) -> None:
        """Let the next life load its program and then wait for `begin`."""
        self.may_begin = False

    def begin(self) -> None:
        """Let the process begin its work."""
        if not self.may_begin:
            self.may_begin = True
            self._open()

    def _open(self) -> None:
        """Send the first messages of a life."""
        self.send(Begin())
        if self._drain is not None:
            self.send(self._drain)

    def drain(self, message: Drain = DRAIN) -> None:
        """Send Drain to the current life, and to each later one."""
        self._drain = message
        self.send(message)

    def stop(self, now: float) -> None:
        """Request the end of the process; `act` kills it after a time limit."""
        self._end(ProcessEvent.STOP, now)

    def replace(self, broker: Broker, now: float) -> None:
        """Request the end of the process and a restart as the dispatcher of `broker`."""
        self.start = replace(self.start, broker=broker)
        self._end(ProcessEvent.REPLACE, now)

    def _end(self, event: ProcessEvent, now: float) -> None:
        was_told = self.state in {ProcessState.STOPPING, ProcessState.REPLACING}
        self.state = advance(self.state, event)
        if self.state in ALIVE and not was_told:
            self.due = now + STOP_PATIENCE_S
            self.send(Stop())
        elif self.state is ProcessState.ENDED:
            self.due = None
        elif self.state is ProcessState.WAITING and self.due is None:
            self.due = now

    def is_ready(self) -> None:
        """Record that the process is ready."""
        self.state = advance(self.state, ProcessEvent.READY)
        self.restarts.ready()

    def act(self, now: float) -> bool:
        """Spawn the process (and return True) or kill it, if that is due. Raise OSError if the spawn fails."""
        if self.due is None or now < self.due:
            return False
        self.due = None
        if self.state is ProcessState.WAITING:
            self._spawn(now)
            return True
        self.kill("did not end in time")
        return False

    def _spawn(self, now: float) -> None:
        note_of(self.start).unlink(missing_ok=True)
        self.restarts.started(now)
        self._lives += 1
        self._killed_for = ""
        self.connection, theirs = _SPAWN.Pipe()
        arguments = (self._program, self.start, theirs, self._locks)
        # daemon: if the supervisor fails, its interpreter ends the children instead of waiting for them
        process = _SPAWN.Process(target=run_child, args=arguments, name=self.name, daemon=True)
        try:
            process.start()
        except OSError:
            self._close()
            raise
        finally:
            theirs.close()
        self.process = process
        self.state = advance(self.state, ProcessEvent.SPAWNED)
        self._open()

    def kill(self, reason: str) -> None:
        """Kill the process. SIGKILL also ends a process that is stopped."""
        if self.process is not None:
            self._killed_for = reason
            self.process.kill()

    def on_pipe_closed(self, now: float) -> None:
        """Handle the end of the control pipe: the process is dying, or it has no control any more."""
        self._close()
        if self.due is None:
            self.due = now + STOP_PATIENCE_S

    def _close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def reap(self) -> str:
        """Reap the ended process, and return how it ended as text for the log."""
        assert self.process is not None
        self.process.join()
        code = self.process.exitcode or 0
        self.process.close()
        self.process = None
        self._close()
        self.due = None
        finished = code == 0 and self._drain is not None and self._ends_when_drained
        self.state = advance(self.state, ProcessEvent.FINISHED if finished else ProcessEvent.CRASHED)
        return self._death_report(code)

    def _death_report(self, code: int) -> str:
        if code < 0:
            by_us = f", sent by the supervisor because it {self._killed_for}" if self._killed_for else ""
            return f"signal {-code} ({strsignal(-code)}){by_us}"
        try:
            return note_of(self.start).read_text("utf-8").strip().removesuffix(".")
        except OSError:
            return f"exit code {code}"
