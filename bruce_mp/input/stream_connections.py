"""The connections of a stream worker: accepting, reading, answering and pausing them.

A worker has all its connections in one epoll set, which is one source of the process's loop.  In a round the worker
reads each readable connection once into a common buffer, and admits all the data together.  The kernel reports the
ready connections in turns, so no connection starves another.  The worker keeps the received bytes of an unfinished
message within the limits of `unfinished_limits.py`, and allocates no memory for the missing bytes.  The *intake*
(`StreamIntake`) reads *plain* connections (`StreamAdmission.is_plain`) and appends their messages itself.

If the slab has no room for a client's message, the worker pauses the client.  While such a client waits and no chunk is
free, the worker reads no client at all.
"""

from __future__ import annotations

import logging
import mmap
import select
import socket
from collections import Counter as Tally  # `Counter` is the enum of telemetry
from typing import TYPE_CHECKING, Final

from bruce_mp.input.fenced_attempts import NOT_ALLOWED, SHUTDOWN, UNREAD, Ending
from bruce_mp.input.listeners import Listeners
from bruce_mp.input.paused_connections import PausedConnections
from bruce_mp.input.peer_credentials import admit_peer, describe_origin, origin_of, peer_of, set_tcp_options
from bruce_mp.input.stream_batch import Portion
from bruce_mp.input.stream_client import TCP, UNIX, Connection, StreamClientState, has_input
from bruce_mp.input.timestamps import wall_offset_ms
from bruce_mp.input.unfinished_limits import MIN_READ, ReadDecision, UnfinishedLimits, UnfinishedMessages
from bruce_mp.kernels import StreamCounters, StreamIntake, StreamSource
from bruce_mp.telemetry.clock import steady_ms
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bruce_mp.config.inputs import Input
    from bruce_mp.discards.reporter import PeerCredentials
    from bruce_mp.input.barriers import Barriers
    from bruce_mp.input.flush_groups import FlushGroups
    from bruce_mp.input.sender_quotas import SenderQuotas
    from bruce_mp.input.stream_admission import StreamAdmission
    from bruce_mp.ipc.loop import Loop
    from bruce_mp.kernels import Coalescing, Lanes, StreamIntakeResult, UncountedBatch
    from bruce_mp.slab.chunks import ChunkPool
    from bruce_mp.slab.rows import ProcessRow

__all__ = ["STREAM_COUNTERS", "StreamConnections"]

log = logging.getLogger(__name__)
_KINDS: Final = (UNIX, TCP)  # in the order of each pair of counters below
STREAM_COUNTERS: Final = StreamCounters(
    Counter.MsgReceived,
    Counter.InputAgentProcessAnyPartitionMsg,
    Counter.InputAgentProcessPartitionKeyMsg,
    forwarded=(UNIX.forwarded, TCP.forwarded),
    reads=(UNIX.reads, TCP.reads),
    got_data=(UNIX.got_data, TCP.got_data),
)
_MAX_WAIT_MS: Final = 100
"""Longest call of the intake, because the loop reads the supervisor's control messages only between two calls."""
_BUFFER_BYTES: Final = 1 << 20
"""Size of the common buffer, which begins at a page for the reason in docs/decisions/measurements.md."""
_MAX_READ: Final = 256 << 10
"""Maximum number of bytes in one read, so that a fast client leaves room for others."""
_MAX_EVENTS: Final = 512
"""Maximum number of ready connections in a round; the next round serves the others."""
_IDLE_CHECK_S: Final = 1.0
"""Interval of the search for clients that have stopped inside a message."""
_MAX_OUTGOING: Final = 64 << 10
"""Maximum number of bytes of unsent answers; a client that reads no answers exceeds it, and is disconnected."""


class StreamConnections:
    """Serves the listening sockets and the connections.

    `admit(buffer, portions)` appends the received data; then `on_admitted()` is called.
    """

    def __init__(
        self,
        listeners: Iterable[socket.socket | None],
        loop: Loop,
        row: ProcessRow,
        pool: ChunkPool,
        *,
        admission: StreamAdmission,
        admit: Callable[[memoryview, list[Portion]], None],
        on_admitted: Callable[[], None],
        barriers: Barriers,
        flush_groups: FlushGroups,
        quotas: SenderQuotas,
        lanes: Lanes,
        config: Input,
    ) -> None:
        self._loop = loop
        self._row = row
        self._pool = pool
        self._admission = admission
        self._admit_portions = admit
        self._on_admitted = on_admitted
        self._barriers = barriers
        self._flush_groups = flush_groups
        self._quotas = quotas
        self._connections: dict[int, Connection] = {}  # by descriptor
        self._descriptors: dict[StreamClientState, int] = {}
        self._closing: set[int] = set()
        """Descriptors of the connections with `is_closing`."""
        self._buffer = memoryview(mmap.mmap(-1, _BUFFER_BYTES, mmap.MAP_PRIVATE))
        self._epoll = select.epoll()
        self._listeners = Listeners(listeners, self._epoll, loop, row, self._add_connection)
        self._paused = PausedConnections(loop, self._retry)
        self._lanes = lanes
        self._intake = StreamIntake(lanes, pool, row, self._buffer, counters=STREAM_COUNTERS)
        self._is_reading = True
        self._count_by_origin: Tally[int | str] = Tally()  # of connections
        self._unfinished = UnfinishedMessages(UnfinishedLimits.of(config))
        self._max_per_user = config.streams.max_connections_per_user
        self._store_connection_count()

    def start(self) -> None:
        self._listeners.listen()
        self._loop.watch(self._epoll, lambda _: self._on_wakeup())
        self._loop.call_later(_IDLE_CHECK_S, self._close_idle)

    def stop_reading(self) -> None:
        """Stop accepting and reading; the worker still answers pending barriers."""
        self._is_reading = False
        self._loop.unwatch(self._epoll)

    def apply_limits(self, coalescing: Coalescing, max_size: int, *, senders_wait: bool) -> None:
        """Apply the settings of coalescing and the size limit of messages; if `senders_wait`, clients wait for room."""
        self._intake.apply_config(coalescing, max_size, clients_wait=senders_wait)

    def apply_config(self, config: Input) -> None:
        """Apply reloaded limits and quotas, and close the connections of users that the allow list no longer names.

        The admission must have the new limit of a message's size: it refuses messages that exceed it while they wait.
        """
        self._max_per_user = config.streams.max_connections_per_user
        for client in self._unfinished.apply_config(UnfinishedLimits.of(config)):
            self._admit_rest(self._descriptors[client])
        self._resume_waiting()
        for descriptor, connection in list(self._connections.items()):
            if not self._admit_peer(connection.socket):
                self._end_attempt(descriptor, NOT_ALLOWED)
                self._close(descriptor)
        self._paused.retry_soon()

    def abandon_attempts(self) -> None:
        """End all open attempts, because the worker ends."""
        for descriptor in self._connections:
            self._end_attempt(descriptor, SHUTDOWN)

    def _end_attempt(self, descriptor: int, ending: Ending) -> None:
        """End the attempt of a connection, if it has one, and tell its client."""
        connection = self._connections[descriptor]
        self._intake.discard(descriptor)  # it has the lanes of the attempt
        self._admission.abandon(connection.client, ending)
        connection.send_final_frame()

    # --- accepting ---------------------------------------------------------------------------------------------------

    def _add_connection(self, connection: socket.socket) -> None:
        if self._flush_groups.is_full:  # outcomes for the client could not be counted
            connection.close()
            return
        peer = peer_of(connection)
        origin = origin_of(connection, peer)
        if not self._admit_peer(connection) or self._refuse_over_limit(origin, peer):
            connection.close()
            return
        connection.setblocking(False)
        if peer is None:
            set_tcp_options(connection)
            client = StreamClientState(TCP, self._flush_groups.open(), origin=origin)
        else:
            client = StreamClientState(UNIX, self._flush_groups.open(), peer, peer.uid, origin)
        self._row.add(Counter.NewTcpClient if peer is None else Counter.NewUnixClient)
        self._count_by_origin[origin] += 1
        self._connections[connection.fileno()] = Connection(connection, client)
        self._descriptors[client] = connection.fileno()
        self._epoll.register(connection, select.EPOLLIN)
        self._store_connection_count()

    def _admit_peer(self, connection: socket.socket) -> bool:
        """Return True if the allow list admits the peer; else count the refusal."""
        is_admitted = admit_peer(connection, self._quotas, steady_ms())
        if not is_admitted:
            self._row.add(Counter.UnixStreamInputNotAllowed)
        return is_admitted

    def _refuse_over_limit(self, origin: int | str, peer: PeerCredentials | None) -> bool:
        """Return True, and log and count the refusal, if a user or address has as many connections as it may."""
        if self._count_by_origin[origin] < self._max_per_user:
            return False
        self._row.add(Counter.StreamConnectionOverLimit)
        text = "A connection of %s was closed: it has %d at this worker (input.streams.max_connections_per_user)."
        log.warning(text, describe_origin(origin, peer), self._max_per_user, extra={"about": origin})  # see logs.py
        return True

    def _close(self, descriptor: int) -> None:
        """Close a connection, discard its open attempt, and forget the client."""
        connection = self._connections.pop(descriptor)
        self._intake.discard(descriptor)
        self._admission.abandon(connection.client)
        connection.send_final_frame()
        self._paused.discard(descriptor)
        self._closing.discard(descriptor)
        del self._descriptors[connection.client]
        self._barriers.remove_client(connection.client)
        connection.socket.close()
        origin = connection.client.origin
        self._count_by_origin[origin] -= 1
        if not self._count_by_origin[origin]:
            del self._count_by_origin[origin]
        self._unfinished.remove(connection.client)
        self._resume_waiting()
        self._store_connection_count()

    def _store_connection_count(self) -> None:
        self._row.counters[Counter.StreamConnections] = len(self._connections)

    # --- answers -----------------------------------------------------------------------------------------------------

    def answer(self, client: StreamClientState, data: bytes) -> None:
        """Send a client the answer to a barrier, unless its connection has ended."""
        descriptor = self._descriptors.get(client)
        if descriptor is not None:
            connection = self._connections[descriptor]
            connection.outgoing += data
            self._write(descriptor)

    def _write(self, descriptor: int) -> None:
        """Send unsent answers without waiting; close the connection if more than `_MAX_OUTGOING` bytes remain."""
        connection = self._connections[descriptor]
        try:
            sent = connection.socket.send(connection.outgoing, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            del connection.outgoing[:sent]
        except BlockingIOError:
            pass
        except OSError:
            connection.outgoing.clear()  # the next read of this connection reports the error
        if len(connection.outgoing) > _MAX_OUTGOING:
            log.warning("A client sends barriers and does not read the answers: the worker closes its connection.")
            connection.outgoing.clear()
            self._end_attempt(descriptor, UNREAD)
            self._close_when_answered(descriptor)
        self._update_events(descriptor)

    def _close_when_answered(self, descriptor: int) -> None:
        """Stop reading the connection, and close it once all answers are sent."""
        self._connections[descriptor].is_closing = True
        self._unfinished.remove(self._connections[descriptor].client)
        self._closing.add(descriptor)
        self._update_events(descriptor)

    def _update_events(self, descriptor: int) -> None:
        if descriptor not in self._paused:
            self._epoll.modify(descriptor, self._connections[descriptor].events)

    def close_finished(self) -> None:
        """Close the connections with `is_closing` that have no pending barrier and no unsent answer."""
        if not self._closing:
            return
        waiting = self._barriers.clients
        for descriptor in list(self._closing):
            connection = self._connections[descriptor]
            if not connection.outgoing and connection.client not in waiting:
                self._close(descriptor)

    # --- reading -----------------------------------------------------------------------------------------------------

    def _on_wakeup(self) -> None:
        """Let the intake serve the plain connections, then handle the data and events that it leaves."""
        self._lanes.wall_offset_ms = wall_offset_ms()
        now_ms, timeout_ms = steady_ms(), self._loop.timeout_ms()
        wait_ms = _MAX_WAIT_MS if timeout_ms is None else min(_MAX_WAIT_MS, timeout_ms)
        served = self._intake.run(self._epoll, now_ms, now_ms + wait_ms)
        if served.leftovers or served.uncounted is not None:
            self._finish_round(served)
        if served.unhandled_events:
            self._serve_events(served.unhandled_events)

    def _finish_round(self, served: StreamIntakeResult) -> None:
        """Count the batch that the intake has not counted, then admit the bytes that it has not processed."""
        for source, data in served.leftovers:
            self._connections[source.socket.fileno()].client.unprocessed = bytearray(data)
        if served.uncounted is not None:
            self._count_intake_batch(served.uncounted)
        for source, _ in served.leftovers:
            descriptor = source.socket.fileno()
            if descriptor in self._connections and not self._connections[descriptor].client.is_paused:
                self._admit_rest(descriptor)

    def _count_intake_batch(self, uncounted: UncountedBatch) -> None:
        """Count a batch of the intake with rejected messages, messages without room or replaced timestamps."""
        descriptors = [source.socket.fileno() for source, _ in uncounted.parts]
        clients = [self._connections[descriptor].client for descriptor in descriptors]
        parts = list(zip(clients, [extents for _, extents in uncounted.parts], strict=True))
        self._admission.count_intake_batch(self._buffer, parts, uncounted.ingested, steady_ms())
        for descriptor in descriptors:
            self._update_after_admission(descriptor)

    def serve(self) -> None:
        """Handle each waiting epoll event once, and admit the received data."""
        self._serve_events(self._epoll.poll(0, _MAX_EVENTS))

    def _serve_events(self, ready: list[tuple[int, int]]) -> None:
        portions: list[Portion] = []
        descriptors: list[int] = []
        fill = 0  # number of bytes of the buffer that the portions take
        for descriptor, events in ready:
            if descriptor in self._listeners:
                self._listeners.accept(descriptor)
                continue
            if descriptor not in self._connections:
                continue  # the handling of an earlier event has closed it
            if not self._write_or_close(descriptor, events):
                continue
            if fill + MIN_READ + len(self._connections[descriptor].client.unprocessed) > _BUFFER_BYTES:
                self._admit(self._buffer, portions, descriptors)
                portions, descriptors, fill = [], [], 0
            portion = self._read(descriptor, fill)
            if portion is not None:
                portions.append(portion)
                descriptors.append(descriptor)
                fill = portion.end
        self._admit(self._buffer, portions, descriptors)

    def _write_or_close(self, descriptor: int, events: int) -> bool:
        """Write or close a connection as its events require; return True if the worker should read it."""
        if events & select.EPOLLOUT:
            self._write(descriptor)
        if not self._connections[descriptor].is_closing:
            return bool(events & ~select.EPOLLOUT)
        if events & (select.EPOLLHUP | select.EPOLLERR):
            self._close(descriptor)
        else:
            self.close_finished()
        return False

    def _read(self, descriptor: int, fill: int) -> Portion | None:
        """Read a connection once, and return its portion, which begins at offset `fill` of the common buffer.

        The portion has the client's `unprocessed` bytes, then the bytes just read.  Return None if no data came, or if
        the data belongs to a long message, which `_read_long` handles.
        """
        client = self._connections[descriptor].client
        if client.full_size > MIN_READ:
            self._read_long(descriptor, fill)
            return None
        begin = fill + len(client.unprocessed)
        count = self._receive(descriptor, self._buffer[begin : begin + _MAX_READ])
        if not count:
            return None
        self._buffer[fill:begin] = client.unprocessed
        return Portion(client, fill, begin + count)

    def _read_long(self, descriptor: int, fill: int) -> None:
        """Read a message longer than `MIN_READ` into `unprocessed`, which grows with the received bytes."""
        client = self._connections[descriptor].client
        room = self._buffer[fill : fill + min(_MAX_READ, client.full_size - len(client.unprocessed))]
        count = self._receive(descriptor, room)
        if count:
            client.unprocessed += room[:count]
            if len(client.unprocessed) >= client.full_size:
                self._admit_rest(descriptor)
            else:
                self._limit_unfinished(descriptor)

    def _receive(self, descriptor: int, room: memoryview) -> int:
        """Receive once, and return the number of bytes; 0 if there were none, or if the connection ended."""
        connection = self._connections[descriptor]
        client = connection.client
        self._row.add(client.kind.reads)
        try:
            count = connection.socket.recv_into(room)
        except BlockingIOError:
            return 0
        except OSError as error:
            log.warning("A stream connection failed: %s.", error.strerror, extra={"about": error.errno})
            self._row.add(client.kind.socket_error)
            self._close(descriptor)
            return 0
        if count:
            self._row.add(client.kind.got_data)
        else:
            self._on_end_of_stream(descriptor)
        return count

    def _on_end_of_stream(self, descriptor: int) -> None:
        """Handle the end of a client's data; close the connection once all answers are sent."""
        connection = self._connections[descriptor]
        self._admission.on_disconnect(connection.client)
        if connection.outgoing or connection.client in self._barriers.clients:
            self._close_when_answered(descriptor)
        else:
            self._close(descriptor)

    def _admit(self, buffer: memoryview, portions: list[Portion], descriptors: list[int]) -> None:
        if not portions:
            return
        self._admit_portions(buffer, portions)
        for descriptor in descriptors:
            self._update_after_admission(descriptor)
        self._on_admitted()

    def _admit_rest(self, descriptor: int) -> None:
        """Admit the `unprocessed` bytes of a client."""
        client = self._connections[descriptor].client
        data, client.unprocessed = memoryview(client.unprocessed), bytearray()
        self._admit(data, [Portion(client, 0, len(data))], [descriptor])

    def _update_after_admission(self, descriptor: int) -> None:
        """Close, pause or resume a connection as the state of its client requires, and offer it to the intake."""
        connection = self._connections[descriptor]
        if connection.client.must_close and not connection.is_closing:  # else `close_finished` closes it
            self._close(descriptor)
        elif connection.client.is_paused and descriptor not in self._paused:
            self._paused.add(descriptor, connection.client)
            self._epoll.unregister(descriptor)
            self._schedule_retry()
        elif not connection.client.is_paused and descriptor in self._paused:
            self._paused.discard(descriptor)
            self._epoll.register(descriptor, connection.events)
        if descriptor in self._connections and not connection.is_closing and self._limit_unfinished(descriptor):
            self._offer_to_intake(connection)

    def _offer_to_intake(self, connection: Connection) -> None:
        """Let the intake serve a connection if the connection is plain."""
        client = connection.client
        if self._admission.is_plain(client):
            lanes = None if client.attempt is None else client.attempt.lanes
            kind, start = _KINDS.index(client.kind), bytes(client.unprocessed)
            self._intake.add(StreamSource(connection.socket, client.flush_group, kind, start, lanes))
        else:
            self._intake.discard(connection.socket.fileno())

    # --- unfinished messages -----------------------------------------------------------------------------------------

    def _limit_unfinished(self, descriptor: int) -> bool:
        """Read, delay or close a connection, as `UnfinishedMessages` decides; return False if it is closed."""
        connection = self._connections[descriptor]
        decision = self._unfinished.update(connection.client, steady_ms())
        if decision is ReadDecision.CLOSE:
            self._close_unfinished(descriptor, "there is no memory for it (input.streams.max_unfinished_size_per_user)")
            return False
        if connection.awaits_grant != (decision is ReadDecision.WAIT):
            connection.awaits_grant = decision is ReadDecision.WAIT
            self._update_events(descriptor)
        self._resume_waiting()
        return True

    def _resume_waiting(self) -> None:
        """Read the connections again that get a grant of memory for their messages now."""
        for client in self._unfinished.grant_waiting(steady_ms()):
            descriptor = self._descriptors[client]
            self._connections[descriptor].awaits_grant = False
            self._update_events(descriptor)

    def _close_idle(self) -> None:
        """Close the connections that stopped inside a message and have no unread bytes in their sockets."""
        for client in self._unfinished.find_idle(steady_ms()):
            descriptor = self._descriptors[client]
            if not has_input(self._connections[descriptor].socket):
                self._close_unfinished(descriptor, "no byte of it came within input.streams.unfinished_timeout_s")
        self._loop.call_later(_IDLE_CHECK_S, self._close_idle)

    def _close_unfinished(self, descriptor: int, reason: str) -> None:
        client = self._connections[descriptor].client
        self._row.add(Counter.StreamUnfinishedMsgClosed)
        text = "A connection of %s was closed inside a message: %s."
        log.warning(text, describe_origin(client.origin, client.peer), reason, extra={"about": (client.origin, reason)})
        self._admission.on_disconnect(client)
        self._close(descriptor)

    # --- without room ------------------------------------------------------------------------------------------------

    def _schedule_retry(self) -> None:
        """Schedule a retry; stop reading all connections if one waits for room and no chunk is free."""
        self._paused.schedule_retry()
        if self._paused.any_waits_for_room and not self._pool.own_free_count:
            self._loop.unwatch(self._epoll)

    def _retry(self) -> None:
        """Retry the paused connections that are due; read connections again, unless one still waits for a chunk."""
        if not self._is_reading:
            return
        for descriptor in self._paused.rotate_due(steady_ms()):
            self._paused.retry_one(
                descriptor, lambda client: self._admission.may_resume(client, steady_ms()), self._admit_rest
            )
            if self._paused.waits_for_room(descriptor) and not self._pool.own_free_count:
                break  # no other client finds room either, and each search for room costs time
        self._paused.pause_stuck_topics(steady_ms())
        if len(self._paused):
            self._schedule_retry()
        if self._pool.own_free_count or not self._paused.any_waits_for_room:
            self._loop.watch(self._epoll, lambda _: self._on_wakeup())
