"""A stream worker: accept and read connections, pass the data to `StreamAdmission`, publish the runs.

Several workers share the listening sockets, and any idle worker accepts.  A worker has all its connections in one epoll
set, which is one source of the process's loop.  In a round the worker reads every readable connection once, so no
connection waits for another, and admits all the data together.  It keeps the bytes of an incomplete message and
allocates nothing for the rest, so a stalled client costs only the bytes that it sent.

A worker never blocks on the router.  Without room in the slab it stops reading the clients that wait for room; without
any free chunk of its own it reads no client.
"""

from __future__ import annotations

import logging
import resource
import select
import socket
import time
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM
from typing import TYPE_CHECKING, Final

from bruce_mp.input.barrier_watch import BarrierWatch
from bruce_mp.input.barriers import Barriers
from bruce_mp.input.clients import TCP, UNIX, StreamClientState
from bruce_mp.input.connection import Connection, is_allowed, peer_of, user_of
from bruce_mp.input.fenced_attempts import NOT_ALLOWED, SHUTDOWN, UNREAD, Ending
from bruce_mp.input.fencing import Fencing
from bruce_mp.input.input_shell import InputShell
from bruce_mp.input.outcomes import Outcomes, Sections
from bruce_mp.input.paused_connections import PausedConnections
from bruce_mp.input.quotas import rules_for_streams
from bruce_mp.input.stream_batch import Portion
from bruce_mp.input.streams import StreamAdmission
from bruce_mp.input.timestamps import clock_step_ms, windows_for_streams
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.recovery import sweep
from bruce_mp.telemetry.clock import steady_ms
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from bruce_mp.config.model import Config
    from bruce_mp.ipc.control_messages import Control, Drain
    from bruce_mp.ipc.start import Start
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

__all__ = ["main"]

_LOG: Final = logging.getLogger(__name__)
_BUFFER: Final = 1 << 20
_READ: Final = 256 << 10
_LEAST_READ: Final = 64 << 10
"""With less room than this in the buffer, admit its data first; a longer message gets a separate buffer."""
_ACCEPTS_A_ROUND: Final = 16
"""Connections that a worker accepts in a round; the kernel wakes other workers too."""
_EVENTS: Final = 512
_AFTER_ERROR_S: Final = 1.0
_DRAIN_LOOK_S: Final = 0.02
_MOST_OUTGOING: Final = 64 << 10
_DRAIN_S: Final = 1.5
"""Time for barriers at a drain; less than the supervisor waits for inputs to end."""
_EXHAUSTED: Final = frozenset({EMFILE, ENFILE, ENOBUFS, ENOMEM})


def main(start: Start, slab: Slab, control: Control) -> None:
    """Serve stream connections until the supervisor requests a drain or stop."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _Worker(start, slab, control).run()


class _Worker(InputShell):
    def __init__(self, start: Start, slab: Slab, control: Control) -> None:
        self._sections = Sections()
        self._outcomes = Outcomes(slab, self._sections)
        super().__init__(
            start,
            slab,
            control,
            windows_for=windows_for_streams,
            rules_for=rules_for_streams,
            watcher=self._outcomes,
        )
        config = start.config
        self._slab = slab
        self._barriers = Barriers(self._outcomes, self._sections, self._answer)
        self._fencing = Fencing(
            start,
            slab,
            self._row,
            pool=self._pool,
            topics=self._topics,
            lanes=self._lanes,
            shares=self._shares,
            reporter=self._reporter,
            sections=self._sections,
            loop=self._loop,
            publisher=self._publisher,
        )
        self._admission = StreamAdmission(
            self._row,
            self._lanes,
            self._pool,
            self._reporter,
            self._on_barrier,
            attempts=self._fencing.attempts,
            release=self._on_release,
            longest=config.input.max_stream_size + 4,
            blocks=config.input.streams.when_full == "block",
            senders=self._senders,
        )
        self._listeners = {each.fileno(): each for each in (start.unix_stream, start.tcp) if each is not None}
        self._connections: dict[int, Connection] = {}
        self._descriptors: dict[StreamClientState, int] = {}
        self._leaving: set[int] = set()
        self._barrier_watch = BarrierWatch(
            self._loop, self._barriers, self._outcomes, self._publisher, self._close_those_who_left
        )
        self._drain_until = 0.0
        self._buffer = memoryview(bytearray(_BUFFER))
        self._epoll = select.epoll()
        self._waiting = PausedConnections(self._loop, self._retry)

    def recover(self) -> None:
        self._fencing.recover()
        self._pool.release_seals()
        self._publisher.publish_due([found.segment for found in sweep(self._slab, {RunState.FILLED})])
        self._note_connections()

    def start(self) -> None:
        self._listen()
        self._loop.watch(self._epoll, lambda _: self._on_ready())
        super().start()
        self._fencing.start_feed()

    def apply_config(self, config: Config, before: Config) -> None:
        super().apply_config(config, before)
        streams = config.input.streams
        self._fencing.apply_config(streams)
        self._admission.apply_limits(config.input.max_stream_size + 4, blocks=streams.when_full == "block")
        self._close_those_not_let_in()
        self._waiting.retry_soon()

    def drain(self, _: Drain) -> None:
        """Stop reading, and give pending barriers 1.5 s to succeed before the end answers them."""
        self._on_ready()  # admit the data that arrived before the drain
        self._abandon_all()
        self._publisher.publish_all()
        self._loop.unwatch(self._epoll)
        if len(self._barriers):
            self._drain_until = time.monotonic() + _DRAIN_S
            self._loop.call_later(_DRAIN_LOOK_S, self._drained)
        else:
            self._finish()

    def make_way(self) -> None:
        self._on_ready()  # admit the data that arrived before the control link closed
        super().make_way()

    def _drained(self) -> None:
        if len(self._barriers) and time.monotonic() < self._drain_until:
            self._loop.call_later(_DRAIN_LOOK_S, self._drained)
        else:
            self._finish()

    def _on_release(self, runs: list[Segment]) -> None:
        """Publish the runs of a complete attempt, and start feeding its spill file."""
        self._publisher.publish_closed()
        self._publisher.publish_due(runs)
        self._fencing.start_feed()

    def _abandon_all(self) -> None:
        """End all open attempts, because the worker ends."""
        for descriptor in self._connections:
            self._end_attempt(descriptor, SHUTDOWN)

    def _end_attempt(self, descriptor: int, ending: Ending) -> None:
        """End the attempt of a connection, if it has one, and tell its client."""
        connection = self._connections[descriptor]
        self._admission.abandon(connection.client, ending)
        connection.say_farewell()

    def _finish(self) -> None:
        """End all attempts and barriers first; the connections end with the process."""
        self._abandon_all()
        self._barriers.answer_all()
        super()._finish()

    # --- connections -------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        for listener in self._listeners.values():
            listener.setblocking(False)
            self._epoll.register(listener, select.EPOLLIN | select.EPOLLEXCLUSIVE)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_A_ROUND):
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._on_accept_error(error)
                return
            self._welcome(connection)

    def _on_accept_error(self, error: OSError) -> None:
        """Pause accepting for a second if a resource is exhausted; ignore closed listeners and gone clients."""
        if error.errno in _EXHAUSTED:
            _LOG.error("A connection cannot be accepted: %s. It is tried again in a second.", error.strerror)
            for listener in self._listeners.values():
                self._epoll.unregister(listener)
            self._loop.call_later(_AFTER_ERROR_S, self._listen)

    def _welcome(self, connection: socket.socket) -> None:
        if self._sections.are_exhausted:  # a million sections have outstanding messages
            connection.close()
            return
        peer = peer_of(connection)
        if not self._is_let_in(connection):
            connection.close()
            return
        connection.setblocking(False)
        if peer is None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = StreamClientState(TCP if peer is None else UNIX, self._sections.open(), peer, user_of(peer))
        self._connections[connection.fileno()] = Connection(connection, client)
        self._descriptors[client] = connection.fileno()
        self._epoll.register(connection, select.EPOLLIN)
        self._note_connections()

    def _is_let_in(self, connection: socket.socket) -> bool:
        if not (may_send := is_allowed(connection, self._senders, steady_ms())):
            self._row.add(Counter.UnixStreamInputNotAllowed)
        return may_send

    def _close_those_not_let_in(self) -> None:
        """Close the connections of users that a reloaded allow list no longer names."""
        for descriptor, connection in list(self._connections.items()):
            if not self._is_let_in(connection.socket):
                self._end_attempt(descriptor, NOT_ALLOWED)
                self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        connection = self._connections.pop(descriptor)
        self._admission.abandon(connection.client)
        connection.say_farewell()
        self._waiting.discard(descriptor)
        self._leaving.discard(descriptor)
        del self._descriptors[connection.client]
        self._barriers.remove_client(connection.client)
        connection.socket.close()
        self._note_connections()

    def _note_connections(self) -> None:
        self._row.counters[Counter.StreamConnections] = len(self._connections)

    # --- barriers ----------------------------------------------------------------------------------------------------

    def _on_barrier(self, client: StreamClientState, data: bytes) -> None:
        self._row.add(Counter.StreamBarriers)
        self._barriers.on_barrier(client, data, steady_ms())

    def _answer(self, client: StreamClientState, data: bytes) -> None:
        descriptor = self._descriptors.get(client)
        if descriptor is not None:
            connection = self._connections[descriptor]
            connection.outgoing += data
            self._write(descriptor)

    def _write(self, descriptor: int) -> None:
        """Send pending answers without blocking; close the connection above 64 KiB of unread answers."""
        connection = self._connections[descriptor]
        try:
            sent = connection.socket.send(connection.outgoing, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            del connection.outgoing[:sent]
        except BlockingIOError:
            pass
        except OSError:
            connection.outgoing.clear()  # the next read of this connection reports the error
        if len(connection.outgoing) > _MOST_OUTGOING:
            _LOG.warning("A client asks for barriers and does not read the answers: its connection is closed.")
            connection.outgoing.clear()
            self._end_attempt(descriptor, UNREAD)
            self._let_leave(descriptor)
        self._set_events(descriptor)

    def _let_leave(self, descriptor: int) -> None:
        """Stop reading the connection, and close it once all answers are sent."""
        self._connections[descriptor].has_left = True
        self._leaving.add(descriptor)
        self._set_events(descriptor)

    def _set_events(self, descriptor: int) -> None:
        if descriptor not in self._waiting:
            self._epoll.modify(descriptor, self._connections[descriptor].events)

    def _close_those_who_left(self) -> None:
        """Close the leaving connections without pending barriers or unsent answers."""
        if not self._leaving:
            return
        waiting = self._barriers.clients
        for descriptor in list(self._leaving):
            connection = self._connections[descriptor]
            if not connection.outgoing and connection.client not in waiting:
                self._close(descriptor)

    # --- reading -----------------------------------------------------------------------------------------------------

    def _on_ready(self) -> None:
        """Handle each epoll event once, and admit the data that was read."""
        portions: list[Portion] = []
        read: list[int] = []
        fill = 0
        for descriptor, events in self._epoll.poll(0, _EVENTS):
            if descriptor in self._listeners:
                self._accept(self._listeners[descriptor])
                continue
            if descriptor not in self._connections:
                continue  # an earlier event in this round closed it
            if not self._wants_to_be_read(descriptor, events):
                continue
            if fill + _LEAST_READ + len(self._connections[descriptor].client.unprocessed) > _BUFFER:
                self._admit(self._buffer, portions, read)
                portions, read, fill = [], [], 0
            portion = self._read(descriptor, fill)
            if portion is not None:
                portions.append(portion)
                read.append(descriptor)
                fill = portion.end
        self._admit(self._buffer, portions, read)

    def _wants_to_be_read(self, descriptor: int, events: int) -> bool:
        """Handle events of a connection other than data; return True if it has data to read."""
        if events & select.EPOLLOUT:
            self._write(descriptor)
        if not self._connections[descriptor].has_left:
            return bool(events & ~select.EPOLLOUT)
        if events & (select.EPOLLHUP | select.EPOLLERR):
            self._close(descriptor)
        else:
            self._close_those_who_left()
        return False

    def _read(self, descriptor: int, fill: int) -> Portion | None:
        """Read a connection once, behind the client's `rest`, into the common buffer from `fill` on.

        Return None if no data came, or if the read of a long message handled the data.
        """
        client = self._connections[descriptor].client
        if client.wanted > _LEAST_READ:
            self._read_long(descriptor)
            return None
        begin = fill + len(client.unprocessed)
        count = self._receive(descriptor, self._buffer[begin : begin + _READ])
        if not count:
            return None
        self._buffer[fill:begin] = client.unprocessed
        return Portion(client, fill, begin + count)

    def _read_long(self, descriptor: int) -> None:
        """Read a message that is too long for the common buffer into `rest`, which grows with the received bytes."""
        client = self._connections[descriptor].client
        scratch = bytearray(min(_READ, client.wanted - len(client.unprocessed)))
        count = self._receive(descriptor, memoryview(scratch))
        if count:
            client.unprocessed += scratch[:count]
            if len(client.unprocessed) >= client.wanted:
                self._admit_rest(descriptor)

    def _receive(self, descriptor: int, room: memoryview) -> int:
        """Receive once, and return the number of bytes; 0 if there were none, or the connection ended."""
        connection = self._connections[descriptor]
        client = connection.client
        self._row.add(client.kind.reads)
        try:
            count = connection.socket.recv_into(room)
        except BlockingIOError:
            return 0
        except OSError as error:
            _LOG.warning("A stream connection failed: %s.", error.strerror, extra={"about": error.errno})
            self._row.add(client.kind.socket_error)
            self._close(descriptor)
            return 0
        if count:
            self._row.add(client.kind.got_data)
        else:
            self._hang_up(descriptor)
        return count

    def _hang_up(self, descriptor: int) -> None:
        """Handle the end of a client's data; the connection stays open while answers are due."""
        connection = self._connections[descriptor]
        self._admission.hang_up(connection.client)
        if connection.outgoing or connection.client in self._barriers.clients:
            self._let_leave(descriptor)
        else:
            self._close(descriptor)

    def _admit(self, buffer: memoryview, portions: list[Portion], read: list[int]) -> None:
        if not portions:
            return
        self._lanes.clock_step_ms = clock_step_ms()
        self._admission.admit(buffer, portions, steady_ms())
        self._publisher.publish_closed()
        for descriptor in read:
            self._look_after(descriptor)
        if self._barriers.are_new:
            self._barrier_watch.start()

    def _admit_rest(self, descriptor: int) -> None:
        """Admit the data in a client's `rest`."""
        client = self._connections[descriptor].client
        data, client.unprocessed = memoryview(client.unprocessed), bytearray()
        self._admit(data, [Portion(client, 0, len(data))], [descriptor])

    def _look_after(self, descriptor: int) -> None:
        connection = self._connections[descriptor]
        if connection.client.is_refused:
            self._close(descriptor)
        elif connection.client.is_blocked and descriptor not in self._waiting:
            self._waiting.add(descriptor, connection.client)
            self._epoll.unregister(descriptor)
            self._pause()
        elif not connection.client.is_blocked and descriptor in self._waiting:
            self._waiting.discard(descriptor)
            self._epoll.register(descriptor, connection.events)

    # --- without room ------------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        """Schedule a retry for paused connections.  Without a free chunk of its own, the worker stops reading."""
        self._waiting.pause()
        if self._waiting.any_for_room and not self._pool.own_free:
            self._loop.unwatch(self._epoll)

    def _retry(self) -> None:
        if self._drain_until:
            return
        for descriptor in self._waiting.due(steady_ms()):
            self._waiting.retry_one(
                descriptor, lambda client: self._admission.may_go_on(client, steady_ms()), self._admit_rest
            )
            if self._waiting.is_for_room(descriptor) and not self._pool.own_free:
                break  # no other client finds room either, and each search for room costs time
        self._waiting.hold_topics(steady_ms())
        if len(self._waiting):
            self._pause()
        if self._pool.own_free or not self._waiting.any_for_room:
            self._loop.watch(self._epoll, lambda _: self._on_ready())
