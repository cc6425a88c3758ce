"""The datagram input: receives messages, validates them, appends them to the slab and publishes the runs.

The input never waits for a later stage, except for room in the slab if `when_full` is "block".  It hands over every
message that the operating system accepted from a sender, or counts the message as discarded.  The supervisor ends the
input with the control messages Drain and Stop:

* Drain, if the supervisor created the socket: the socket refuses senders already.  The input receives the waiting
  messages until none is left.  If `when_full` is "block", it also waits for room.
* Drain, if the socket stays open, for example because a service manager created it: the input receives messages in one
  more round.  The next daemon receives the others.
* Stop: the input receives the waiting messages even if there is no room for them, so that it counts each discard.
"""

from __future__ import annotations

import logging
from socket import MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, SO_PASSCRED, SOL_SOCKET
from typing import TYPE_CHECKING, Final

from bruce_mp.input.backpressure import MAX_PAUSE_S, Allowance, Backpressure
from bruce_mp.input.datagram_admission import DatagramAdmission
from bruce_mp.input.input_shell import InputShell
from bruce_mp.input.receive_coalescing import coalescing_for
from bruce_mp.input.sender_quotas import rules_for_datagrams
from bruce_mp.input.timestamps import wall_offset_ms, windows_for_datagrams
from bruce_mp.slab.landing_zone import SO_TIMESTAMP
from bruce_mp.slab.topic_thresholds import TRIAL_MESSAGES
from bruce_mp.telemetry.clock import steady_ms

if TYPE_CHECKING:
    from bruce_mp.config.model import Config
    from bruce_mp.ipc.control_messages import Control, Drain
    from bruce_mp.ipc.start import Start
    from bruce_mp.slab.file import Slab

__all__ = ["main", "prepare"]

log = logging.getLogger(__name__)
_MAX_TURNS: Final = 8
"""Maximum number of turns (calls of `_receive_turn`) in a round (a call of `_on_datagrams`).

Between two rounds, the loop serves its timers and other sources.  A round has several turns, because the messages of
slow senders cost less CPU time if the loop does not run between two ticks of their batches.
"""
_MAX_ROUND_MS: Final = 600
"""Longest duration of a round; the loop's timers may be late by as much."""
_MAX_WAIT_MS: Final = 200
"""Longest wait for messages in a turn.  A message of the supervisor waits at most as long: then the round ends."""
_MIN_WAIT_MS: Final = 50
"""A round ends early if less time than this remains, because a short wait for messages costs as much as a new round."""
_MAX_BATCHES_AT_STOP: Final = 2048
"""Maximum number of batches after Stop; without it, senders that go on sending could keep the input running."""
_ERROR_PAUSE_S: Final = 1.0
"""Pause after an error of the socket, so that a lasting error costs no CPU time."""
_PEEK: Final = MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT
"""Flags that make `recv` return the length of the first datagram and leave it in the queue."""


def prepare(slab: Slab) -> None:
    """Map the slab's pages into this process, while the predecessor may still work."""
    slab.populate()


def main(start: Start, slab: Slab, control: Control) -> None:
    _DatagramInput(start, slab, control).run()


class _DatagramInput(InputShell):
    def __init__(self, start: Start, slab: Slab, control: Control) -> None:
        assert start.listener is not None
        super().__init__(start, slab, control, windows_for=windows_for_datagrams, rules_for=rules_for_datagrams)
        self._socket = start.listener
        self._queue_length = start.queue_length
        self._slab = slab
        self._backpressure = Backpressure(
            self._pool, max_size=slab.geometry.landing_slot_size, max_batch=slab.geometry.landing_slots
        )
        self._admission = DatagramAdmission(
            slab,
            self._row,
            self._lanes,
            self._reporter,
            max_size=start.config.input.max_datagram_size,
            quotas=self._quotas,
        )
        self._socket.setblocking(True)  # a service manager's socket may be non-blocking; MSG_DONTWAIT is set per call
        self._socket.setsockopt(SOL_SOCKET, SO_PASSCRED, 1)
        self._socket.setsockopt(SOL_SOCKET, SO_TIMESTAMP, 0)  # a timestamp would fill the space for the credentials
        self._is_draining = False
        self._apply_input(start.config)

    def recover(self) -> None:
        self._lanes.wall_offset_ms = wall_offset_ms()
        self._publisher.publish(self._admission.recover(self._pool.owner, steady_ms()))

    def start(self) -> None:
        self._watch_socket()
        super().start()

    def apply_config(self, config: Config, before: Config) -> None:
        super().apply_config(config, before)
        self._apply_input(config)

    def _apply_input(self, config: Config) -> None:
        senders_wait = config.input.unix_datagram.when_full == "block"
        self._senders_wait = self._backpressure.senders_wait = self._thresholds.blocks = senders_wait
        self._admission.apply_config(coalescing_for(config, self._queue_length))

    def drain(self, message: Drain) -> None:
        """Receive messages in one round, and end if the socket stays open; else end once the socket is empty."""
        self._is_draining = True
        self._on_datagrams()
        if message.stays_open:
            self._finish()

    def stop(self) -> None:
        """Receive the waiting messages in at most `_MAX_BATCHES_AT_STOP` batches, and end."""
        for _ in range(_MAX_BATCHES_AT_STOP):
            if not self._receive(self._slab.geometry.landing_slots):
                break
        self._finish()

    # --- the socket --------------------------------------------------------------------------------------------------

    def _on_datagrams(self) -> None:
        """Receive the messages of a round; end the round early if a pause is due, or the supervisor sends a message."""
        may_wait = not (self._is_draining or self._senders_wait)
        end_ms = steady_ms() + _MAX_ROUND_MS
        for _ in range(_MAX_TURNS):
            pause_s = self._receive_turn(min(end_ms, steady_ms() + _MAX_WAIT_MS) if may_wait else 0)  # 0 = do not wait
            if pause_s is None:
                if self._is_draining:
                    self._finish()
                return
            if pause_s:
                self._pause(pause_s)
                return
            if self._control.has_message or (may_wait and steady_ms() > end_ms - _MIN_WAIT_MS):
                return

    def _receive_turn(self, until_ms: int) -> float | None:
        """Receive the messages of a turn; if there are none, wait for some until `until_ms`; 0 = do not wait.

        Return the pause after the turn in seconds; None if there were no messages.
        """
        next_size = self._peek_size() if self._senders_wait else 0
        if next_size is None:
            return None
        allowance = self._next_allowance(next_size)
        if allowance.message_count and not self._receive(allowance.message_count, until_ms):
            return None
        return allowance.pause_s

    def _next_allowance(self, next_size: int) -> Allowance:
        """Return the allowance for the next turn.

        `next_size` is the size of the first waiting datagram, or 0 if senders do not wait: it is not needed then.
        """
        if not self._senders_wait:
            return self._backpressure.next_allowance(next_size)
        if self._thresholds.must_pause(steady_ms()):
            return Allowance(0, MAX_PAUSE_S)
        allowance = self._backpressure.next_allowance(next_size)
        if not self._thresholds.is_on_trial:
            return allowance
        # No topic over its threshold has messages that are being delivered, so waiting alone makes no room.  Receive
        # only a few messages between pauses: some of them may be of other topics.
        return Allowance(min(allowance.message_count, TRIAL_MESSAGES), MAX_PAUSE_S)

    def _pause(self, seconds: float) -> None:
        self._loop.unwatch(self._socket)
        self._loop.call_later(seconds, self._watch_socket)

    def _watch_socket(self) -> None:
        self._loop.watch(self._socket, lambda _: self._on_datagrams())

    def _peek_size(self) -> int | None:
        """Return the length of the first waiting datagram; None if none waits."""
        try:
            return self._socket.recv_into(bytearray(1), 1, _PEEK)
        except BlockingIOError:
            return None
        except OSError as error:
            self._on_socket_error(error)
            return None

    def _receive(self, limit: int, until_ms: int = 0) -> bool:
        """Receive up to `limit` messages, if necessary after a wait until `until_ms`; return False if none came."""
        self._lanes.wall_offset_ms = wall_offset_ms()
        try:
            count = self._admission.receive(self._socket.fileno(), limit, steady_ms(), until_ms)
        except OSError as error:
            self._on_socket_error(error)
            return False
        now_ms = steady_ms()
        self._lanes.close_due(now_ms)
        self._publisher.publish_ready(now_ms)
        return count > 0

    def _on_socket_error(self, error: OSError) -> None:
        log.error("The datagram socket cannot be read: %s. The input retries in a second.", error.strerror)
        self._pause(_ERROR_PAUSE_S)
