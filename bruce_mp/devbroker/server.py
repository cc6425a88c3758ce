"""The embedded brokers on the event loop: listening sockets, connections, waits, and the execution of faults.

Each connection serves one request at a time, as a real broker does, so a slow response delays later requests on the
same connection. This module has only sockets, tasks and times. All other state is in `cluster`, `log`, `faults` and
`statistics`, which do no input or output.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bruce_mp.devbroker.apis import APIS, Context, api_versions
from bruce_mp.devbroker.codes import ApiKey
from bruce_mp.devbroker.faults import FaultAction, FaultBook, TriggeredFaults
from bruce_mp.devbroker.statistics import Statistics
from bruce_mp.devbroker.wire import FRAME_LENGTH, Incoming, decode, encode, frame_length
from bruce_mp.errors import RemoteProtocolError

if TYPE_CHECKING:
    from bruce_mp.devbroker.cluster import Cluster

__all__ = ["HOST", "ChangeSignal", "DevServer"]

HOST: Final = "127.0.0.1"
READ_AHEAD_BYTES: Final = 1 << 20  # limit of asyncio's read buffer of a connection

log = logging.getLogger(__name__)


def bind_port(port: int) -> socket.socket:
    """Return a socket that is bound to the port (0: any) and does not listen. Raise OSError if the port is in use.

    A broker has two such sockets: one listens, and one never listens but reserves the port while the broker is down.
    Otherwise the kernel could assign the port to another socket, even to that of a client that tries to connect to it.
    """
    bound = socket.socket()
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((HOST, port))
    except OSError:
        bound.close()
        raise
    return bound


class ChangeSignal:
    """Signal that wakes all tasks that wait for a change of state. Each task then checks its condition."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None  # completed by the next `notify`; None if no task waits

    def notify(self) -> None:
        """Wake all tasks that wait."""
        if self._next is not None:
            self._next.set_result(None)
            self._next = None

    async def wait(self, seconds: float) -> None:
        """Return at the next call of `notify`, or after `seconds`."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # unlike `wait_for` of Python 3.11, it never hides a cancellation
                await asyncio.shield(self._next)


class DevServer:
    """All brokers of the cluster, each with its own port on the loopback interface."""

    def __init__(self, cluster: Cluster, *, ack_delay_ms: int = 0) -> None:
        self.cluster = cluster
        self.faults = FaultBook()
        self.changes = ChangeSignal()
        """Signal for waiting Fetch requests: logs or leaders may have changed."""
        self.counts = ChangeSignal()
        """Signal for the command `wait_until`: the statistics have changed."""
        self.ack_delay_ms = ack_delay_ms
        self._statistics = Statistics()
        self._listeners = {broker: Listener(broker, self) for broker in cluster.broker_ids}

    async def start(self, first_port: int = 0) -> None:
        """Start all brokers: the first on `first_port` (0: any), the others on any port.

        Raise OSError if `first_port` is in use.
        """
        for broker in self.cluster.broker_ids:
            await self.broker_up(broker, first_port if broker == self.cluster.broker_ids[0] else 0)

    async def close(self) -> None:
        """Close all brokers and release their ports."""
        for listener in self._listeners.values():
            await listener.close()
            listener.release_port()

    async def broker_up(self, broker: int, port: int | None = None) -> int:
        """Start or restart a broker, and return its port.

        It listens on `port`: 0 is any port, None the broker's old port. Raise OSError if the port is in use; a broker
        that is up then stays up on its old port.
        """
        listener = self._listeners[self.cluster.check_broker_id(broker)]
        listener.reserve_port(port)
        await listener.close()
        opened_port = listener.open()
        self.cluster.register(broker, HOST, opened_port)
        return opened_port

    async def broker_down(self, broker: int, *, elect: bool = False) -> None:
        """Close the broker's listening socket and connections at once. `elect`: see `Cluster.unregister`."""
        self.cluster.unregister(broker, elect=elect)
        await self._listeners[broker].close()

    @property
    def statistics(self) -> Statistics:
        """Return the counters, to be read or increased."""
        retention = self.cluster.retention
        self._statistics.dropped_batches, self._statistics.held_bytes = retention.dropped_batches, retention.held_bytes
        return self._statistics

    def count_request(self, incoming: Incoming, triggered: TriggeredFaults) -> None:
        """Count the request, and the faults that it triggered, in the statistics."""
        self._statistics.requests[incoming.api.name] += 1
        if incoming.client_id is not None:
            self._statistics.client_ids[incoming.client_id] += 1
        for fault in triggered.faults:
            self._statistics.faults[fault.action] += 1
        self.counts.notify()


class Listener:
    """One broker: its listening socket, its connections, and the end of a SILENCE fault.

    The class accepts connections without `asyncio.Server`. A server that is closed forgets a connection that it has
    accepted but not yet given to its handler, and leaves that connection open, so the client would wait forever.
    """

    def __init__(self, broker: int, server: DevServer) -> None:
        self._broker = broker
        self._server = server
        self._socket: socket.socket | None = None
        self._reserved: socket.socket | None = None
        """A bound socket that keeps the port while the broker is down (see `bind_port`); None before the start."""
        self._connections: dict[asyncio.Task[None], socket.socket] = {}
        self._silent_until = 0.0  # time on the event loop's clock at which a SILENCE fault ends

    def reserve_port(self, port: int | None) -> None:
        """Choose the port of the next `open`, and release the old one.

        0 is any port. None is the old port, or any port at the first start. Raise OSError if the port is in use; the
        old port then stays reserved.
        """
        if self._reserved is not None and port in (None, self._reserved.getsockname()[1]):
            return
        reserved = bind_port(port or 0)
        self.release_port()
        self._reserved = reserved

    def open(self) -> int:
        """Listen on the reserved port, and return the port."""
        assert self._reserved is not None
        number: int = self._reserved.getsockname()[1]
        self._socket = bind_port(number)
        self._socket.listen()
        asyncio.get_running_loop().add_reader(self._socket, self._accept, self._socket)
        self._silent_until = 0.0  # a restarted broker is not silent
        return number

    def release_port(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    async def close(self) -> None:
        """Stop listening, and close all connections. Repeated calls are harmless."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        connections = dict(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        for connection in connections.values():
            connection.close()  # a task that was canceled before its first line has not closed it

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, ConnectionError):
            return  # the client has disconnected before the accept
        connection.setblocking(False)
        self._server.statistics.connections += 1
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._connections[task] = connection
        task.add_done_callback(self._connections.pop)

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=READ_AHEAD_BYTES)
        try:
            await self._serve_requests(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client is gone
        except RemoteProtocolError as error:
            log.warning("Broker %d closes a connection: %s", self._broker, error)
        except asyncio.CancelledError:
            writer.transport.abort()  # the broker goes down: unsent data is discarded
            raise
        finally:
            writer.close()

    async def _serve_requests(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve the requests of a connection until a fault closes it. Raise an exception if the connection fails."""
        client_ip = writer.get_extra_info("peername")[0]
        must_close = False
        while not must_close:
            await self._wait_out_silence()
            frame = await reader.readexactly(frame_length(await reader.readexactly(FRAME_LENGTH.size)))
            incoming = decode(frame)
            targets = partial(incoming.api.targets, incoming.request)
            triggered = self._server.faults.trigger_faults(incoming.api.key, self._broker, client_ip, targets)
            must_close = triggered.closes
            response_bytes = await self._answer(incoming, triggered)
            if response_bytes:
                writer.write(response_bytes)
                await writer.drain()

    async def _answer(self, incoming: Incoming, triggered: TriggeredFaults) -> bytes:
        """Execute the request, wait until the response is due, and return the bytes to send, perhaps none."""
        server = self._server
        server.count_request(incoming, triggered)
        now = asyncio.get_running_loop().time()
        self._silent_until = max(self._silent_until, now + triggered.total_ms(FaultAction.SILENCE) / 1000)
        await self._wait_out_silence()
        response = await self._respond(incoming, triggered) if triggered.is_executed else None
        server.counts.notify()  # the execution may have counted records, duplicates and errors
        if incoming.api.key is not ApiKey.FETCH:  # a Fetch request is no change for which others wait
            server.changes.notify()
        if response is None:
            return b""
        frame = encode(response, incoming.correlation_id, triggered.total_ms(FaultAction.THROTTLE))
        ack_delay_ms = server.ack_delay_ms if incoming.api.key is ApiKey.PRODUCE else 0
        await asyncio.sleep((ack_delay_ms + triggered.total_ms(FaultAction.DELAY)) / 1000)
        await self._wait_out_silence()
        return triggered.mangle(frame)

    async def _respond(self, incoming: Incoming, triggered: TriggeredFaults) -> Any:
        """Return the response object, as soon as it is sufficient or the maximum wait of the request has passed.

        Only a Fetch request has a maximum wait: it may wait for records.
        """
        if incoming.request is None:
            return api_versions.unsupported_version_response()
        server, api = self._server, incoming.api
        context = Context(APIS, server.cluster, server.statistics, self._broker, incoming.version, triggered)
        response = api.handle(incoming.request, context)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + api.max_wait_s(incoming.request)
        while not api.is_sufficient(incoming.request, response) and loop.time() < deadline:
            await server.changes.wait(deadline - loop.time())
            response = api.handle(incoming.request, context)
        return response

    async def _wait_out_silence(self) -> None:
        """Wait until no SILENCE fault stops the broker."""
        loop = asyncio.get_running_loop()
        while loop.time() < self._silent_until:  # noqa: ASYNC110  another request may move the end of the silence
            await asyncio.sleep(self._silent_until - loop.time())
