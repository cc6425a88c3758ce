"""The life of a daemon process around its core: start, control messages, frames, timers, reports and end.

A process derives from `ProcessShell` and overrides the hooks that differ.  The order of a start has reasons:

1. The caller builds the row, which finishes a predecessor's transaction: no later step may read half settled records.
   The row gets the pid and a new incarnation, which frames name.
2. The constructor binds the links that the process reads.  Frames that arrive from then on wait in them.
3. `recover` sweeps the slab before the loop serves any frame or control message.
4. The heartbeat and the process's own sources start (`start`), then Ready tells the supervisor that the process works.

The shell is not in `ipc`, because that package lies below telemetry, whose clocks and logs a shell needs.  This package
is the lowest one above both that all processes share.  The caller builds the row: the status process settles no
records and does without the kernels.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from bruce_mp.ipc.control_messages import ConfigTaken, Drain, NewConfig, Ready, Stop
from bruce_mp.ipc.links import LAST_WORDS_MS, Links
from bruce_mp.ipc.loop import Loop
from bruce_mp.telemetry.clock import steady_ms, wall_ms
from bruce_mp.telemetry.logs import renew_logging

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.config.model import Config
    from bruce_mp.ipc.control_messages import Control, Word
    from bruce_mp.ipc.frames import Parcel
    from bruce_mp.ipc.loop import Timer
    from bruce_mp.ipc.start import Start
    from bruce_mp.slab.rows import ProcessRow

__all__ = ["FRAMES_A_ROUND", "Output", "ProcessShell"]

FRAMES_A_ROUND: Final = 64
"""Frames of one link that a round of the loop serves, so that other sources are served between."""
_FLUSH_EVERY_S: Final = 0.5
"""Time for which an output gathers reports before it is flushed."""


class Output(Protocol):
    """A collector of reports for the status process, such as discards, copies or sums."""

    @property
    def pending(self) -> bool:
        """True if reports wait for `flush`."""

    def flush(self) -> None:
        """Send the waiting reports."""


_Frame = TypeVar("_Frame")
_Output = TypeVar("_Output", bound=Output)


class ProcessShell:
    """The base class of a process's program; `main` builds one and calls `run`."""

    def __init__(self, start: Start, control: Control, row: ProcessRow) -> None:
        self._name = start.name
        self._config = start.config
        self._row = row
        self._incarnation = row.begin(os.getpid(), wall_ms())
        self._links = Links(start.run_dir)
        self._loop = Loop()
        self._control = control
        self._loop.watch(control, lambda _: self._on_control())
        self._outputs: list[Output] = []
        self._is_flush_due = False
        self._alarm: Timer | None = None
        self._alarm_ms = 0

    # --- hooks -------------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Sweep the slab for a predecessor's records, before the process serves any source."""

    def start(self) -> None:
        """Start the process's own sources, timers and threads, before it sends Ready."""

    def after_round(self, now_ms: int) -> int | None:
        """Do the work that is due at `now_ms`, and send the output of a round.

        Return the steady time of the next work that needs no event; None without any.
        """
        del now_ms
        return None

    def apply_config(self, config: Config, before: Config) -> None:
        """Apply a reloaded config.  Settings that need a restart keep their old values."""

    def drain(self, _: Drain) -> None:
        """Send all held messages at once, because no new work follows."""

    def stop(self) -> None:
        """End at once: the slab keeps the messages that the process holds."""
        self._loop.stop()

    def make_way(self) -> None:
        """End because the supervisor is gone: its successor starts this process's successor."""
        self.stop()

    def on_control(self, word: Word) -> None:
        """Handle a control message without a hook of its own."""

    def close(self) -> int:
        """Close the process's own parts; return the time, in ms, in which links may deliver their last frames."""
        return LAST_WORDS_MS

    # --- services of the hooks ---------------------------------------------------------------------------------------

    def send(self, word: Word) -> None:
        """Send the supervisor a control message."""
        self._control.send(word)

    def flush_soon(self, output: _Output) -> _Output:
        """Flush an output, and return it: 0.5 s after a round that leaves reports pending, and at the end."""
        self._outputs.append(output)
        return output

    def serve_frames(self, link: str, on_frame: Callable[[list[Parcel]], None]) -> None:
        """Bind a link, and call `on_frame` with the parcels of each frame."""
        receiver = self._links.receiver(link)
        self._loop.watch(receiver.socket, lambda _: _serve(receiver.receive, on_frame))

    def serve_bytes(self, link: str, on_bytes: Callable[[bytes], None]) -> Callable[[], None]:
        """Bind a link, and call `on_bytes` with each frame.  Return a function that serves the waiting frames."""
        receiver = self._links.receiver(link)
        self._loop.watch(receiver.socket, lambda _: _serve(receiver.receive_bytes, on_bytes))
        return lambda: _serve(receiver.receive_bytes, on_bytes)

    def repeat(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call now, and again `seconds` after each call."""

        def call() -> None:
            callback()
            self._loop.call_later(seconds, call)

        call()

    # --- life --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until `stop` or the end of the supervisor."""
        self.recover()
        self._row.start_heartbeat(self._loop.call_later, wall_ms)
        self.start()
        self.send(Ready())
        self._end_round()
        self._loop.run(self._end_round)
        self._flush_outputs()
        self._links.close(self.close())

    def _on_control(self) -> None:
        word = self._control.receive()
        if isinstance(word, NewConfig):
            self._renew(word)
        elif isinstance(word, Drain):
            self.drain(word)
        elif isinstance(word, Stop):
            self.stop()
        elif word is None:
            self.make_way()
        else:
            self.on_control(word)

    def _renew(self, word: NewConfig) -> None:
        before, self._config = self._config, word.config
        renew_logging(before.logging, word.config.logging, self._name)
        self.apply_config(word.config, before)
        self.send(ConfigTaken(word.number))

    def _end_round(self) -> None:
        due_ms = self.after_round(steady_ms())
        if due_ms is not None and (self._alarm is None or due_ms < self._alarm_ms):
            self._set_alarm(due_ms)
        if self._is_flush_due:
            return
        for output in self._outputs:
            if output.pending:
                self._is_flush_due = True
                self._loop.call_later(_FLUSH_EVERY_S, self._flush_outputs)
                return

    def _set_alarm(self, due_ms: int) -> None:
        """Replace the timer that ends the wait for events; the hooks find the work that is due."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_ms = due_ms
        self._alarm = self._loop.call_later(max(0, due_ms - steady_ms()) / 1000, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None

    def _flush_outputs(self) -> None:
        self._is_flush_due = False
        for output in self._outputs:
            output.flush()


def _serve(receive: Callable[[], _Frame], on_frame: Callable[[_Frame], None]) -> None:
    """Receive and handle the frames that wait at a link, at most `FRAMES_A_ROUND`."""
    for _ in range(FRAMES_A_ROUND):
        frame = receive()
        if not frame:
            return
        on_frame(frame)
