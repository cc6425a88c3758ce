"""The datagram input: receives, validates, appends to the slab, publishes the runs.

It never waits for a later stage.

Every message that the kernel accepted from a sender is delivered or counted, also at the end.  After Drain, the input
continues until nothing waits at the socket, which is closed to senders then; where senders block instead of losing
messages, it waits for room.  A service manager's socket stays open: the input receives the messages that wait at that
moment, and the next daemon receives the others.  After Stop, the input receives waiting messages even without room, so
that each discard is at least counted.
"""

from __future__ import annotations

import logging
import os
from socket import MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, SO_PASSCRED, SOL_SOCKET
from typing import TYPE_CHECKING, Final

from bruce_mp.discards.settlement import ProcessReporter
from bruce_mp.input.backpressure import LONGEST_S, NOTHING, Allowance, Backpressure
from bruce_mp.input.datagrams import DatagramAdmission
from bruce_mp.input.linger import lingers_of
from bruce_mp.input.quotas import SenderQuotas, rules_for_datagrams
from bruce_mp.input.receive_coalescing import coalescing_for
from bruce_mp.input.run_publisher import RunPublisher
from bruce_mp.input.timestamps import clock_step_ms, windows_for_datagrams
from bruce_mp.ipc.control_messages import ConfigTaken, Drain, NewConfig, Ready, Stop
from bruce_mp.ipc.links import ROUTER_FROM_INPUTS, Links
from bruce_mp.ipc.loop import Loop
from bruce_mp.kernels import ChunkPool, Lanes, ProcessRow
from bruce_mp.slab.landing import SO_TIMESTAMP
from bruce_mp.slab.tables import TopicTable
from bruce_mp.slab.topic_shares import TRIAL_MESSAGES, TopicShares
from bruce_mp.telemetry.clock import steady_ms, wall_ms
from bruce_mp.telemetry.logs import renew_logging

if TYPE_CHECKING:
    from bruce_mp.config.model import Config
    from bruce_mp.ipc.control_messages import Control
    from bruce_mp.ipc.start import Start
    from bruce_mp.slab.file import Slab

__all__ = ["main", "prepare"]

_LOG: Final = logging.getLogger(__name__)
_TURNS_A_ROUND: Final = 4
"""Turns after which the loop serves its other sources, even if more messages wait at the socket."""
_LONGEST_ROUND_MS: Final = 100
"""Longest time between two reads of the supervisor's control socket."""
_LAST_BATCHES: Final = 2048
"""Largest number of batches after Stop, because senders may continue."""
_AFTER_ERROR_S: Final = 1.0
_LOOK: Final = MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT
"""Flags with which `recv` returns the length of a datagram and leaves it in the queue."""


def prepare(slab: Slab) -> None:
    """Do the slow set-up for a large slab, safely beside the processes that still use it."""
    slab.populate()


def main(start: Start, slab: Slab, control: Control) -> None:
    """Serve the datagram socket until told to drain or stop."""
    _Input(start, slab, control).run()


class _Input:
    def __init__(self, start: Start, slab: Slab, control: Control) -> None:
        assert start.listener is not None
        self._socket = start.listener
        self._queue = start.queue
        self._slab = slab
        self._control = control
        self._row = ProcessRow(slab, start.row)
        self._row.begin(os.getpid(), wall_ms())
        self._row_index = start.row
        self._links = Links(start.run_dir)
        self._reporter = ProcessReporter(start.config, self._links, self._row)
        self._name = start.name
        self._config = config = start.config
        pool = ChunkPool(slab, start.row, start.inputs)
        topics = TopicTable(slab)
        self._shares = TopicShares(pool, topics, config.alpha_for)
        self._lanes = Lanes(slab, pool, topics, lingers_of(config), shares=self._shares)
        self._backpressure = Backpressure(
            pool, largest=slab.geometry.landing_slot_size, batch=slab.geometry.landing_slots
        )
        self._senders = SenderQuotas(rules_for_datagrams(config.input), slab, start.row, start.inputs)
        self._admission = DatagramAdmission(
            slab,
            self._row,
            self._lanes,
            self._reporter,
            longest=config.input.max_datagram_size,
            senders=self._senders,
        )
        self._socket.setblocking(True)  # a service manager's socket may differ; non-blocking calls say so themselves
        self._socket.setsockopt(SOL_SOCKET, SO_PASSCRED, 1)
        self._socket.setsockopt(SOL_SOCKET, SO_TIMESTAMP, 0)  # timestamps would take the credentials' place
        self._loop = Loop()
        router = self._links.sender(ROUTER_FROM_INPUTS)
        self._publisher = RunPublisher(self._loop, self._lanes, pool, router, self._reporter)
        self._draining = False
        self._is_replaced = False
        self.apply_config(config)

    def apply_config(self, config: Config) -> None:
        """Apply a reloaded config.  Settings that need a restart keep their old values."""
        renew_logging(self._config.logging, config.logging, self._name)
        self._config = config
        self._reporter.apply_config(config)
        self._lanes.apply_lingers(lingers_of(config))
        self._lanes.change_windows(windows_for_datagrams(config))
        self._shares.apply_config(config.alpha_for)
        self._blocks = self._backpressure.blocks = self._shares.blocks = config.input.unix_datagram.when_full == "block"
        self._admission.apply_config(coalescing_for(config, self._queue))
        self._senders.apply_config(rules_for_datagrams(config.input))

    def run(self) -> None:
        self._lanes.clock_step_ms = clock_step_ms()
        self._publisher.publish_due(self._admission.recover(self._row_index, steady_ms()))
        self._loop.watch(self._control, lambda _: self._on_control())
        self._watch_socket()
        self._row.start_heartbeat(self._loop.call_later, wall_ms)
        self._publisher.start_tidying()
        self._control.send(Ready())
        self._loop.run(self._publisher.after_round)
        self._publisher.close(self._links, has_router=not self._is_replaced)

    def _on_control(self) -> None:
        word = self._control.receive()
        if isinstance(word, Drain):
            self._draining = True
            self._on_datagrams()
            if word.goes_on:
                self._finish()
        elif isinstance(word, NewConfig):
            self.apply_config(word.config)
            self._control.send(ConfigTaken(word.number))
        elif isinstance(word, Stop):
            self._take_the_rest()
            self._finish()
        elif word is None:
            self._is_replaced = True  # a new supervisor's input receives the rest; the router is gone
            self._finish()

    def _on_datagrams(self) -> None:
        """Receive a bounded number of messages; rest when the slab fills up."""
        until_ms = 0 if self._draining or self._blocks else steady_ms() + _LONGEST_ROUND_MS
        for _ in range(_TURNS_A_ROUND):
            size = self._next_size() if self._blocks else 0
            allowed = NOTHING if size is None else self._allowance(size)
            if size is None or (allowed.messages and not self._receive(allowed.messages, until_ms)):
                if self._draining:
                    self._finish()
                return
            if allowed.rest_s:
                self._rest(allowed.rest_s)
                return
            if until_ms and steady_ms() >= until_ms:
                return

    def _allowance(self, size: int) -> Allowance:
        """Return the allowance for the next turn; it is last, so that nothing returns the room that it secures."""
        if not self._blocks:
            return self._backpressure.allowance(size)
        if self._shares.must_rest(steady_ms()):
            return Allowance(0, LONGEST_S)
        allowed = self._backpressure.allowance(size)
        if not self._shares.is_on_trial:
            return allowed
        return Allowance(min(allowed.messages, TRIAL_MESSAGES), LONGEST_S)

    def _rest(self, seconds: float) -> None:
        self._loop.unwatch(self._socket)
        self._loop.call_later(seconds, self._watch_socket)

    def _watch_socket(self) -> None:
        self._loop.watch(self._socket, lambda _: self._on_datagrams())

    def _next_size(self) -> int | None:
        """Return the length of the first waiting datagram; None without one."""
        try:
            return self._socket.recv_into(bytearray(1), 1, _LOOK)
        except BlockingIOError:
            return None
        except OSError as error:
            self._on_socket_error(error)
            return None

    def _receive(self, limit: int, until_ms: int = 0) -> bool:
        """Receive at most `limit` messages, waiting until `until_ms` at most; False when there were none."""
        self._lanes.clock_step_ms = clock_step_ms()
        try:
            count = self._admission.receive(self._socket.fileno(), limit, steady_ms(), until_ms)
        except OSError as error:
            self._on_socket_error(error)
            return False
        self._lanes.close_due(steady_ms())
        self._publisher.publish_closed()
        return count > 0

    def _on_socket_error(self, error: OSError) -> None:
        _LOG.error("The datagram socket cannot be read: %s. It is tried again in a second.", error.strerror)
        self._rest(_AFTER_ERROR_S)

    def _take_the_rest(self) -> None:
        """Receive the waiting messages, in a bounded number of batches."""
        for _ in range(_LAST_BATCHES):
            if not self._receive(self._slab.geometry.landing_slots):
                return

    def _finish(self) -> None:
        """Publish all runs and stop."""
        self._publisher.publish_all()
        self._loop.stop()
