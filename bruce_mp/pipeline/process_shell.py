"""The base class of the daemon's processes: start, control messages, frames, timers, reports and end.

A process derives from `ProcessShell` and overrides the hooks that differ.  It starts in this order:

1. The derived constructor recovers the process row: it finishes the transaction of the process's predecessor, so that
   later steps read no half-settled records.  The row is a `kernels.ProcessRow` in a process that uses kernels, else the
   `ProcessRow` of `slab/rows.py`.
2. The constructor of `ProcessShell` stores the pid and a new incarnation in the row.
3. The derived constructor binds the links from which the process receives; frames then wait in the links.
4. `recover` searches the slab for records to claim, before the loop serves any frame or control message.
5. The heartbeat and the process's own sources start (`start`).  Then Ready tells the supervisor that the process works.

A *source* is a descriptor or timer that the loop serves: a link, a socket, the pipe of control messages. In a *round*,
the loop serves all sources that are ready.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from bruce_mp.ipc.control_messages import ConfigApplied, Drain, NewConfig, Ready, Stop
from bruce_mp.ipc.links import CLOSE_TIMEOUT_MS, Links
from bruce_mp.ipc.loop import Loop
from bruce_mp.telemetry.clock import steady_ms, wall_ms
from bruce_mp.telemetry.logs import set_up_logging

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.config.model import Config
    from bruce_mp.ipc.control_messages import Control, ControlMessage
    from bruce_mp.ipc.frames import Parcel
    from bruce_mp.ipc.loop import Timer
    from bruce_mp.ipc.start import Start
    from bruce_mp.slab.rows import ProcessRow

__all__ = ["MAX_FRAMES_PER_ROUND", "Output", "ProcessShell"]

MAX_FRAMES_PER_ROUND: Final = 64
"""The most frames of one link that the loop serves before it serves its other sources again."""
_FLUSH_DELAY_S: Final = 0.5
"""The time between a first waiting report and the flush, so that a flush sends many reports together."""
_FILE_CHECK_S: Final = 1.0
"""The time between two checks of the links' socket files."""


class Output(Protocol):
    """A buffer of reports for the status process, such as discards, copies or sums."""

    @property
    def has_pending(self) -> bool:
        """True if reports wait for `flush`."""

    def flush(self) -> None:
        """Send the waiting reports."""

    def close(self) -> None:
        """Send the last reports."""


_Frame = TypeVar("_Frame")
_Output = TypeVar("_Output", bound=Output)


class ProcessShell:
    """The part that all processes share; `main` creates an instance of a derived class and calls `run`."""

    def __init__(self, start: Start, control: Control, row: ProcessRow) -> None:
        self._name = start.name
        self._config = start.config
        self._row = row
        self._incarnation = row.begin(os.getpid(), wall_ms(), steady_ms())
        self._links = Links(start.run_dir)
        self._loop = Loop()
        self._control = control
        self._loop.watch(control, lambda _: self._receive_control())
        self._outputs: list[Output] = []
        self._is_flush_planned = False
        self._alarm: Timer | None = None
        """The timer for the earliest work that `after_round` announced; None if no work is announced."""
        self._alarm_ms = 0
        """The time at which `_alarm` is due, in ms on the steady clock."""

    # --- hooks -------------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Claim a predecessor's records in the slab, before the process serves any source."""

    def start(self) -> None:
        """Start the process's own sources, timers and threads, before it sends Ready."""

    def after_round(self, now_ms: int) -> int | None:
        """Do the work that is due at `now_ms`, and send the output of the last round of the loop.

        Return the time at which the next work is due, in ms on the steady clock; None if only events bring work.
        """
        del now_ms
        return None

    def apply_config(self, config: Config, before: Config) -> None:
        """Apply a reloaded config; `before` is the old one.  Settings that need a restart are equal in both."""

    def drain(self, _: Drain) -> None:
        """Send all accumulated messages now, because the daemon stops and no further messages follow."""

    def stop(self) -> None:
        """End after this round; the slab keeps the messages that the process holds."""
        self._loop.stop()

    def on_supervisor_exit(self) -> None:
        """End, because the supervisor died or was upgraded; the next supervisor starts all processes again."""
        self.stop()

    def on_control(self, message: ControlMessage) -> None:
        """Handle a control message that no other hook handles."""

    def close(self) -> int:
        """Close the process's own parts.  Return the time limit for the links to send the last frames, in ms."""
        return CLOSE_TIMEOUT_MS

    # --- services for the hooks --------------------------------------------------------------------------------------

    def send(self, message: ControlMessage) -> None:
        self._control.send(message)

    def add_output(self, output: _Output) -> _Output:
        """Register an output and return it.

        The shell flushes the output `_FLUSH_DELAY_S` after a round has left reports in it, and closes it at the end.
        """
        self._outputs.append(output)
        return output

    def serve_frames(self, link: str, on_frame: Callable[[list[Parcel]], None]) -> None:
        """Bind a link, and call `on_frame` with the parcels of each frame."""
        receiver = self._links.receiver(link)
        self._loop.watch(receiver.socket, lambda _: _serve(receiver.receive, on_frame))

    def serve_bytes(self, link: str, on_bytes: Callable[[bytes], None]) -> Callable[[], bool]:
        """Bind a link, and call `on_bytes` with each frame.

        Return a function that serves waiting frames, and returns True if further frames may wait.
        """
        receiver = self._links.receiver(link)
        serve = partial(_serve, receiver.receive_bytes, on_bytes)
        self._loop.watch(receiver.socket, lambda _: serve())
        return serve

    def repeat(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call `callback` now, and again about `seconds` after each call."""

        def call() -> None:
            callback()
            self._loop.call_about(seconds, call)

        call()

    # --- start, rounds and end ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Start, and serve the sources until `stop`."""
        self.recover()
        self._row.start_heartbeat(self._loop.call_about, steady_ms)
        self.repeat(_FILE_CHECK_S, self._links.restore_files)
        self.start()
        self.send(Ready())
        self._end_round()
        self._loop.run(self._end_round)
        for output in self._outputs:
            output.close()
        self._links.close(self.close())

    def _receive_control(self) -> None:
        message = self._control.receive()
        if isinstance(message, NewConfig):
            self._apply_new_config(message)
        elif isinstance(message, Drain):
            self.drain(message)
        elif isinstance(message, Stop):
            self.stop()
        elif message is None:
            self.on_supervisor_exit()
        else:
            self.on_control(message)

    def _apply_new_config(self, message: NewConfig) -> None:
        before, self._config = self._config, message.config
        if message.config.logging != before.logging:
            set_up_logging(message.config.logging, self._name)
        self.apply_config(message.config, before)
        self.send(ConfigApplied(message.number))

    def _end_round(self) -> None:
        due_ms = self.after_round(steady_ms())
        if due_ms is not None and (self._alarm is None or due_ms < self._alarm_ms):
            self._set_alarm(due_ms)
        if self._is_flush_planned:
            return
        for output in self._outputs:
            if output.has_pending:
                self._is_flush_planned = True
                self._loop.call_about(_FLUSH_DELAY_S, self._flush_outputs)
                return

    def _set_alarm(self, due_ms: int) -> None:
        """Replace the timer, so that the loop wakes at `due_ms` and `after_round` does the work then."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_ms = due_ms
        self._alarm = self._loop.call_later(max(0, due_ms - steady_ms()) / 1000, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None  # the loop calls `_end_round` next, as after every event

    def _flush_outputs(self) -> None:
        self._is_flush_planned = False
        for output in self._outputs:
            output.flush()


def _serve(receive: Callable[[], _Frame | None], on_frame: Callable[[_Frame], None]) -> bool:
    """Receive and handle at most `MAX_FRAMES_PER_ROUND` frames of a link; return True if further frames may wait."""
    for _ in range(MAX_FRAMES_PER_ROUND):
        frame = receive()
        if frame is None:
            return False
        on_frame(frame)
    return True
