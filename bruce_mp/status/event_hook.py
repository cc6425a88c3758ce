"""Runs the operator's program `events.command` when partitions pause or flow again, and when the health changes.

A thread of the status process starts the program for one event at a time, and at most once in `events.interval_s`.
While an event waits, a later event of the same kind replaces it. So the program always gets the latest health, but the
partitions of a replaced event are only in the log. The program gets no input, and only a few harmless variables of the
daemon's environment. A failure of the program is logged, and affects nothing else.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from contextlib import suppress
from threading import Condition, Thread
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bruce_mp.config.sections import Events

__all__ = ["DaemonEvent", "EventHook"]

log = logging.getLogger(__name__)
_STOP_S: Final = 2.0
"""Longest wait for the end of a killed program, and of `stop` for the thread."""
_MAX_TEXT_BYTES: Final = 8192
"""Limit of an event's text, which the program gets in an environment variable.

The whole text is on `/healthz` if the kind of the event is `health`, else in the log.
"""


class DaemonEvent(NamedTuple):
    """An event for the operator. `kind` is `health`, or for a change of partitions `paused` or `flowing`.

    If `kind` is `health`, `state` is the new health: `problem`, `warning` or `healthy`. Otherwise `state` equals
    `kind`.
    """

    kind: str
    state: str
    text: str

    def environment(self) -> dict[str, str]:
        """Return the environment variables of the program."""
        text = self.text.encode("utf-8", "replace").replace(b"\0", b"")[:_MAX_TEXT_BYTES].decode("utf-8", "ignore")
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return inherited | {"BRUCE_EVENT": self.kind, "BRUCE_STATE": self.state, "BRUCE_TEXT": text}


class EventHook:
    """Queue of events, and a thread that runs the program for each. Of the public methods, only `stop` waits."""

    def __init__(self, config: Events) -> None:
        self._config = config
        self._pending: dict[str, DaemonEvent] = {}  # by kind
        self._changed = Condition()
        self._is_stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = Thread(target=self._run, name="events", daemon=True)

    @property
    def is_enabled(self) -> bool:
        return bool(self._config.command)

    def start(self) -> None:
        self._thread.start()

    def apply_config(self, config: Events) -> None:
        """Use a reloaded config for the next events. A new interval also applies to a wait that has begun."""
        with self._changed:
            self._config = config
            self._changed.notify()

    def post(self, event: DaemonEvent) -> None:
        """Queue an event, in place of an event of the same kind that still waits in the queue."""
        with self._changed:
            if self._config.command and not self._is_stopped:
                self._pending.pop(event.kind, None)
                self._pending[event.kind] = event
                self._changed.notify()

    def stop(self) -> None:
        """Drop the waiting events, kill a running program, and end the thread."""
        with self._changed:
            self._is_stopped = True
            self._pending.clear()
            self._changed.notify()
            if self._process is not None:
                _kill_group(self._process)
        if self._thread.is_alive():
            self._thread.join(_STOP_S)

    def _run(self) -> None:
        while (event := self._await_event()) is not None:
            started_s = time.monotonic()
            self._execute(event)
            self._await_interval(started_s)

    def _await_event(self) -> DaemonEvent | None:
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._is_stopped)
            return None if self._is_stopped else self._pending.pop(next(iter(self._pending)))

    def _await_interval(self, started_s: float) -> None:
        """Wait until `events.interval_s` have passed since `started_s`, or until `stop`."""
        with self._changed:
            while not self._is_stopped and (rest_s := started_s + self._config.interval_s - time.monotonic()) > 0:
                self._changed.wait(rest_s)

    def _execute(self, event: DaemonEvent) -> None:
        command, timeout_s = self._config.command, self._config.timeout_s
        if not command:
            return
        try:
            process = self._start(command, event.environment())
        except OSError as error:
            _warn(command, f"cannot be started: {error.strerror}")
            return
        if process is None:
            return
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            outcome = _kill_group(process)
            with suppress(subprocess.TimeoutExpired):  # even a killed program may hang in a system call
                process.wait(_STOP_S)
            _warn(command, f"did not end within {timeout_s} s, and {outcome}")
        else:
            if code and not self._is_stopped:
                _warn(command, f"ended with code {code}")
        with self._changed:
            self._process = None

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
        """Start the program. Return None if the hook has stopped."""
        null = subprocess.DEVNULL
        with self._changed:  # so that `stop` comes before the start, or sees the process and kills it
            if self._is_stopped:
                return None
            self._process = subprocess.Popen(  # noqa: S603 - the operator's own program
                command, stdin=null, stdout=null, stderr=null, env=environment, start_new_session=True
            )
            return self._process


def _kill_group(process: subprocess.Popen[bytes]) -> str:
    """Kill the program and its children, unless it has ended; return the end of a sentence that says so."""
    try:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # the program ended after `poll`
    except PermissionError:
        return "runs on, because it has changed its user"
    return "was killed"


def _warn(command: Sequence[str], failure: str) -> None:
    text = f"events.command ({command[0]}) {failure}"
    # `about` limits the repetitions of this text in the log.
    log.warning("%s. Run it as the daemon's user to see why. Delivery goes on.", text, extra={"about": text})
