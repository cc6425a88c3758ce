"""One process of the daemon, as the supervisor manages it: spawn, control messages, kill and reap.

A spawn forks the supervisor, which has already imported the program. So all processes share the memory of the code, and
a process that died is replaced within milliseconds. A fork is safe only in a process without other threads, so the
supervisor starts no threads.

`lifecycle.py` has the table of the states, `restart_policy.py` the delays of restarts.
"""

from __future__ import annotations

import multiprocessing
import signal
from dataclasses import replace
from signal import strsignal
from typing import TYPE_CHECKING, Final

from bruce_mp.ipc.control_messages import Begin, Control, Drain, Stop
from bruce_mp.supervisor.processes.bootstrap import failure_file, load_program, open_descriptors, run_program
from bruce_mp.supervisor.processes.lifecycle import ALIVE_STATES, TRANSITIONS, ProcessEvent, ProcessState
from bruce_mp.supervisor.processes.restart_policy import RestartPolicy
from bruce_mp.supervisor.signal_pipe import WATCHED_SIGNALS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess

    from bruce_mp.ipc.control_messages import Broker, ControlMessage
    from bruce_mp.ipc.start import Start
    from bruce_mp.slab.file import Slab

__all__ = ["CLEAN_EXIT", "ManagedProcess"]

STOP_TIMEOUT_S: float = 2.0
"""Time limit for a process to exit after the message Stop, or after its control pipe was closed."""

CLEAN_EXIT: Final = "exit code 0"
"""The text that `reap` returns after exit code 0."""
_DEFAULT_DRAIN: Final = Drain()

_FORK_CONTEXT: Final = multiprocessing.get_context("fork")


class ManagedProcess:
    """A process and its restarts; each start makes a new *instance*. Times are in seconds of `time.monotonic()`.

    `start` has the arguments of the next instance, which inherits `slab`, and the descriptors in `start` and `locks`.
    `due` is the time of the next spawn or kill by `spawn_or_kill_if_due`, or None. If `ends_when_drained` is True, the
    process does not restart when it has received Drain and exited with code 0.
    """

    def __init__(
        self,
        program: str,
        start: Start,
        slab: Slab,
        locks: Sequence[int],
        now: float,
        *,
        ends_when_drained: bool = False,
    ) -> None:
        self.start = start
        self.state = ProcessState.WAITING
        self.restart_policy = RestartPolicy()
        self.due: float | None = now
        self.connection: Connection | None = None
        self.process: ForkProcess | None = None
        self._program = program
        self._slab = slab
        self._locks = locks
        self._ends_when_drained = ends_when_drained
        self._drain_message: Drain | None = None
        self.may_begin = True
        """False makes the next instance load its program and then wait for `begin`."""
        self._kill_reason = ""
        self._start_count = 0

    @property
    def name(self) -> str:
        return self.start.name

    @property
    def log_extra(self) -> dict[str, object]:
        """Return the `extra` of log lines. With it, the log suppresses a repeated line only for the same instance."""
        return {"about": self.instance}

    @property
    def instance(self) -> tuple[str, int]:
        """Return the name and the number of starts so far, which together identify the current instance."""
        return self.name, self._start_count

    @property
    def was_started(self) -> bool:
        return self._start_count > 0

    @property
    def exit_is_requested(self) -> bool:
        """Return True if the supervisor has requested the exit of the current instance."""
        return self.state in {ProcessState.STOPPING, ProcessState.REPLACING}

    def send(self, message: ControlMessage) -> None:
        """Send a control message if the control pipe is open; otherwise drop the message.

        While `may_begin` is False, drop every message except Stop, because a process that waits for Begin exits when it
        receives another message.
        """
        if self.connection is not None and (self.may_begin or isinstance(message, Stop)):
            Control(self.connection).send(message)

    def begin(self) -> None:
        """Set `may_begin`, and send Begin if it was False before."""
        if not self.may_begin:
            self.may_begin = True
            self._send_first_messages()

    def _send_first_messages(self) -> None:
        """Send Begin, and Drain if the process has to drain. While `may_begin` is False, `send` drops both."""
        self.send(Begin())
        if self._drain_message is not None:
            self.send(self._drain_message)

    def drain(self, message: Drain = _DEFAULT_DRAIN) -> None:
        """Send Drain to the current instance, and at its start to each later one."""
        self._drain_message = message
        self.send(message)

    def stop(self, now: float) -> None:
        """Request the exit of the process; `spawn_or_kill_if_due` kills it if it does not exit in time."""
        self._request_exit(ProcessEvent.STOP, now)

    def replace(self, broker: Broker, now: float) -> None:
        """Request the exit of the process, and then a start as the dispatcher of `broker`."""
        self.start = replace(self.start, broker=broker)
        self._request_exit(ProcessEvent.REPLACE, now)

    def _request_exit(self, event: ProcessEvent, now: float) -> None:
        """Apply STOP or REPLACE: request the exit if the process runs; else cancel or schedule the next start."""
        was_requested = self.exit_is_requested
        self.state = TRANSITIONS[self.state][event]
        if self.state in ALIVE_STATES and not was_requested:
            self.due = now + STOP_TIMEOUT_S
            self.send(Stop())
        elif self.state is ProcessState.ENDED:
            self.due = None
        elif self.state is ProcessState.WAITING and self.due is None:
            self.due = now

    def on_ready(self) -> None:
        self.state = TRANSITIONS[self.state][ProcessEvent.READY]
        self.restart_policy.on_ready()

    def spawn_or_kill_if_due(self, now: float) -> bool:
        """Spawn or kill the process if that is due. Return True after a spawn. Raise OSError if the spawn fails."""
        if self.due is None or now < self.due:
            return False
        self.due = None
        if self.state is ProcessState.WAITING:
            self._spawn(now)
            return True
        self.kill("did not exit in time")
        return False

    def _spawn(self, now: float) -> None:
        failure_file(self.start).unlink(missing_ok=True)
        self.restart_policy.on_started(now)
        self._start_count += 1
        self._kill_reason = ""
        load_program(self._program)
        self.connection, child_end = _FORK_CONTEXT.Pipe()
        needed = {*self._locks, self._slab.descriptor, *self.start.descriptors(), child_end.fileno()}
        arguments = (self._program, self.start, self._slab, child_end, open_descriptors() - needed)
        process = _FORK_CONTEXT.Process(target=run_program, args=arguments, name=self.name)
        # The signals stay blocked until the child has replaced the supervisor's handlers, which it inherits.
        mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED_SIGNALS)
        try:
            process.start()
        except OSError:
            self._close_pipe()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask_before)
            child_end.close()
        self.process = process
        self.state = TRANSITIONS[self.state][ProcessEvent.SPAWNED]
        self._send_first_messages()

    def kill(self, reason: str) -> None:
        """Kill the process, if it runs. `reason` completes the sentence "The supervisor killed it because it ..."."""
        if self.process is not None:
            self._kill_reason = reason
            self.process.kill()  # SIGKILL also ends a process that SIGSTOP has stopped

    def on_pipe_closed(self, now: float) -> None:
        """Handle the end of the control pipe: the process is about to exit, or it can no longer be controlled.

        Schedule a kill after `STOP_TIMEOUT_S`, unless one is already scheduled.
        """
        self._close_pipe()
        if self.due is None:
            self.due = now + STOP_TIMEOUT_S

    def _close_pipe(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def reap(self) -> str:
        """Reap the ended process. Return a text for the log: its exit code, the signal that ended it, or its error."""
        assert self.process is not None
        self.process.join()
        exit_code = self.process.exitcode or 0
        self.process.close()
        self.process = None
        self._close_pipe()
        self.due = None
        has_drained = exit_code == 0 and self._drain_message is not None and self._ends_when_drained
        self.state = TRANSITIONS[self.state][ProcessEvent.FINISHED if has_drained else ProcessEvent.EXITED]
        return self._describe_exit(exit_code)

    def _describe_exit(self, exit_code: int) -> str:
        if exit_code < 0:
            sent_by = f", sent by the supervisor because it {self._kill_reason}" if self._kill_reason else ""
            return f"signal {-exit_code} ({strsignal(-exit_code)}){sent_by}"
        try:
            return failure_file(self.start).read_text("utf-8").strip().removesuffix(".")
        except OSError:
            return f"exit code {exit_code}"
