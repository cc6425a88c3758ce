"""Connections to scripted servers on this host, and to unreachable addresses."""

from __future__ import annotations

import errno
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event as Flag
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp.ipc.loop import Loop
from bruce_mp.network import broker_socket
from bruce_mp.network.broker_socket import BrokerSocket
from bruce_mp.network.connection_security import Security
from bruce_mp.protocol.kafka.connection_events import Closed, ConnectionReady, Failed, FailureCause
from bruce_mp.protocol.kafka.kafka_types import PartitionData
from bruce_mp.protocol.kafka.sasl import Plain
from support.kafka_answers import versions
from support.ports import ReservedPort

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from contextlib import ExitStack

    from bruce_mp.network.resolver import Address
    from bruce_mp.protocol.kafka.connection_events import Event

TIMEOUT_S: Final = 10.0
SHORT_S: Final = 0.2
ANSWER_S: Final = 0.6
"""A time limit that a server of the tests keeps on a busy machine."""


class Names:
    """A substitute of the resolver: every name has the same addresses at once."""

    def __init__(self, *addresses: Address, error: str = "") -> None:
        self._answer = (list(addresses), error)

    def resolve(self, _host: str, _port: int, callback: Callable[[list[Address], str], None]) -> None:
        callback(*self._answer)


class Server:
    """A listening socket with a script for each connection."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._listener.settimeout(TIMEOUT_S)
        self._thread = ThreadPoolExecutor(1)
        stack.callback(self._thread.shutdown)
        self.address: Address = (socket.AF_INET, "127.0.0.1", self._listener.getsockname()[1])

    def play(self, script: Callable[[socket.socket], Any]) -> Future[Any]:
        """Play a script to the next connection in a thread; the connection stays open until the script or the test
        ends.
        """
        return self._thread.submit(self._play, script)

    def _play(self, script: Callable[[socket.socket], Any]) -> Any:
        peer, _ = self._listener.accept()
        self._stack.enter_context(peer)
        peer.settimeout(TIMEOUT_S)
        return script(peer)


class Logins:
    """A substitute of the SASL sessions, whose credentials the test supplies."""

    def __init__(self) -> None:
        self.requests: list[Callable[[Plain | None, str], None]] = []

    def request(self, _host: str, callback: Callable[[Plain | None, str], None]) -> None:
        self.requests.append(callback)


class Client:
    """A connection with its own loop, and its recorded events."""

    def __init__(
        self,
        stack: ExitStack,
        names: Names,
        timeout_s: float = TIMEOUT_S,
        logins: Logins | None = None,
    ) -> None:
        self.loop = Loop()
        idle, other = socket.socketpair()
        stack.enter_context(idle)
        stack.enter_context(other)
        self.loop.watch(idle, lambda _: None)  # so that it sleeps while there is no connection
        self.events: list[Event] = []
        self.closes_at_once = False
        self.socket = BrokerSocket(
            self.loop,
            names,  # type: ignore[arg-type]
            host="kafka",
            port=9092,
            client_id="test",
            timeout_s=timeout_s,
            on_event=self._on_event,
            security=Security(logins=logins),  # type: ignore[arg-type]
            renews_login=True,
        )
        stack.callback(self.socket.close)
        self.socket.open()

    def _on_event(self, event: Event) -> None:
        self.events.append(event)
        if self.closes_at_once:
            self.socket.close()

    def run_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, self.events
            self.run_for(0.02)

    def run_for(self, seconds: float) -> int:
        """Run the loop and return the number of rounds."""
        rounds: list[None] = []
        self.loop.call_later(seconds, self.loop.stop)
        self.loop.run(lambda: rounds.append(None))
        return len(rounds)

    def next_event(self) -> Event:
        """Return the next event; no second event may follow it."""
        self.run_until(lambda: bool(self.events))
        (event,) = self.events
        self.events.clear()
        return event

    def wait_ready(self) -> None:
        assert isinstance(self.next_event(), ConnectionReady)

    def send_produce(self, size: int, acks: int = -1) -> bytes:
        """Send a Produce request with `size` bytes of records and return its bytes."""
        data = [PartitionData(b"t", 0, b"r" * size)]
        sent = self.socket.connection.request_produce(data, time.monotonic(), acks=acks, timeout_ms=1000)
        self.socket.send(sent.buffers)
        return b"".join(sent.buffers)


@pytest.fixture
def server(stack: ExitStack) -> Server:
    return Server(stack)


@pytest.fixture
def dead_address() -> Iterator[Address]:
    """Yield the address of a port without a listener."""
    port = ReservedPort()
    yield socket.AF_INET, "127.0.0.1", port.number
    port.release()


@pytest.fixture
def silent_address(stack: ExitStack) -> Address:
    """Return the address of a port that neither accepts nor refuses connections: its queue is full."""
    listener = stack.enter_context(socket.socket())
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    address = listener.getsockname()
    for _ in range(4):
        filler = stack.enter_context(socket.socket())
        filler.setblocking(False)
        assert filler.connect_ex(address) in {0, errno.EINPROGRESS}
    return socket.AF_INET, "127.0.0.1", address[1]


def read_exactly(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = peer.recv(min(size - len(data), 1 << 16))
        assert piece, "the client closed the connection"
        data += piece
    return data


def read_request(peer: socket.socket) -> bytes:
    size = read_exactly(peer, 4)
    return size + read_exactly(peer, struct.unpack(">i", size)[0])


def agree_on_versions(peer: socket.socket) -> None:
    """Answer the request for versions like a recent broker."""
    (correlation_id,) = struct.unpack_from(">i", read_request(peer), 8)
    peer.sendall(versions({0: (0, 9), 3: (0, 9), 18: (0, 3), 22: (0, 4)}, correlation_id))


# --- connecting ------------------------------------------------------------------------------------------------------


def test_a_connection_negotiates_versions(stack: ExitStack, server: Server) -> None:
    played = server.play(agree_on_versions)
    client = Client(stack, Names(server.address))
    client.wait_ready()
    played.result()


def test_a_response_in_single_bytes_is_assembled(stack: ExitStack, server: Server) -> None:
    def script(peer: socket.socket) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(read_request(peer))
            agree_on_versions(ours)
            answer = theirs.recv(1 << 16)
        for at in range(len(answer)):
            peer.sendall(answer[at : at + 1])

    server.play(script)
    Client(stack, Names(server.address)).wait_ready()


def test_a_refused_connection_fails_with_the_reason(stack: ExitStack, dead_address: Address) -> None:
    client = Client(stack, Names(dead_address))
    event = client.next_event()
    assert isinstance(event, Failed)
    assert str(event.error) == "Broker kafka:9092 cannot be reached: Connection refused."
    assert (event.cause, event.unanswered) == (FailureCause.CLOSED_BY_BROKER, ())


def test_a_name_without_an_address_fails_with_the_reason(stack: ExitStack) -> None:
    client = Client(stack, Names(error="Name or service not known"))
    event = client.next_event()
    assert isinstance(event, Failed)
    assert str(event.error) == "Broker kafka:9092 cannot be reached: Name or service not known."


def test_all_addresses_are_tried(stack: ExitStack, server: Server, dead_address: Address) -> None:
    server.play(agree_on_versions)
    client = Client(stack, Names(dead_address, dead_address, server.address))
    client.wait_ready()


@pytest.mark.parametrize(
    "bad",
    [
        (socket.AF_INET, "127.0.0.1", 70_000),
        (socket.AF_INET, "127.0.0.1", -1),
        (999, "127.0.0.1", 9092),
        (socket.AF_INET, "::1", 9092),
        (socket.AF_INET, "255.255.255.255", 9092),
    ],
    ids=["port too large", "port negative", "unknown family", "other family", "broadcast"],
)
def test_an_invalid_address_is_skipped(stack: ExitStack, server: Server, bad: Address) -> None:
    server.play(agree_on_versions)
    Client(stack, Names(bad, server.address)).wait_ready()
    alone = Client(stack, Names(bad))
    event = alone.next_event()
    assert isinstance(event, Failed)
    assert str(event.error).startswith("Broker kafka:9092 cannot be reached: ")


def test_a_silent_address_leaves_time_for_the_others(stack: ExitStack, server: Server, silent_address: Address) -> None:
    server.play(agree_on_versions)
    start = time.monotonic()
    Client(stack, Names(*[silent_address] * 4, server.address), timeout_s=5 * ANSWER_S).wait_ready()
    assert time.monotonic() - start >= 4 * ANSWER_S


def test_a_slow_resolution_leaves_time_for_all_addresses(
    stack: ExitStack, server: Server, silent_address: Address
) -> None:
    server.play(agree_on_versions)
    waiting: list[Callable[[list[Address], str], None]] = []
    names = Names()
    names.resolve = lambda _host, _port, callback: waiting.append(callback)  # type: ignore[method-assign]
    client = Client(stack, names, timeout_s=4 * ANSWER_S)
    client.run_for(2 * ANSWER_S)
    waiting[0]([silent_address, server.address], "")
    client.wait_ready()


def test_an_established_connection_outlives_the_connect_timeout(
    stack: ExitStack, server: Server, dead_address: Address
) -> None:
    def script(peer: socket.socket) -> bytes:
        agree_on_versions(peer)
        return read_request(peer)

    played = server.play(script)
    client = Client(stack, Names(server.address, dead_address), timeout_s=ANSWER_S)
    client.wait_ready()
    client.run_for(ANSWER_S)
    assert client.events == []
    sent = client.send_produce(10)
    client.run_until(played.done)
    assert played.result() == sent


def test_an_unaccepted_connection_times_out(stack: ExitStack, silent_address: Address) -> None:
    start = time.monotonic()
    event = Client(stack, Names(silent_address), timeout_s=SHORT_S).next_event()
    assert isinstance(event, Failed)
    assert event.cause is FailureCause.TIMED_OUT
    assert "did not accept a connection within 0.2 s" in str(event.error)
    assert SHORT_S <= time.monotonic() - start < TIMEOUT_S


def test_credentials_that_do_not_come_time_out(stack: ExitStack, server: Server) -> None:
    logins = Logins()
    client = Client(stack, Names(server.address), SHORT_S, logins)
    failed = client.next_event()
    assert isinstance(failed, Failed)
    assert failed.cause is FailureCause.NO_CREDENTIALS
    assert "No credentials came within 0.2 s. Check the KDC, or kafka.sasl.token_command." in str(failed.error)
    [answer] = logins.requests
    answer(Plain("alice", "late"), "")
    client.run_for(0.1)
    assert not client.events


def test_credentials_in_time_lead_to_a_login(stack: ExitStack, server: Server) -> None:
    logins, request = Logins(), server.play(read_request)
    client = Client(stack, Names(server.address), ANSWER_S, logins)
    logins.requests[0](Plain("alice", "secret"), "")
    client.run_until(request.done)
    assert request.result()


def test_a_renewal_without_credentials_is_tried_again(
    stack: ExitStack, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broker_socket, "_MIN_RETRY_S", 0.1)
    logins = Logins()
    client = Client(stack, Names(server.address), SHORT_S, logins)
    client.socket._schedule_renewal(0.1, 0.08)
    client.socket._credentials_timer.cancel()  # type: ignore[union-attr] # the first login, which this test does not need
    client.run_until(lambda: len(logins.requests) == 3)
    assert "will expire. No credentials came within 0.2 s." in caplog.text


def test_a_silent_broker_times_out(stack: ExitStack, server: Server) -> None:
    server.play(read_request)
    event = Client(stack, Names(server.address), timeout_s=SHORT_S).next_event()
    assert isinstance(event, Failed)
    assert event.cause is FailureCause.TIMED_OUT


# --- traffic ---------------------------------------------------------------------------------------------------------


def test_a_large_request_is_written_in_parts_and_in_order(stack: ExitStack, server: Server) -> None:
    """The request exceeds the kernel's buffer, in many parts, while the broker reads slowly."""
    go = Flag()

    def script(peer: socket.socket) -> list[bytes]:
        agree_on_versions(peer)
        assert go.wait(TIMEOUT_S)
        return [read_request(peer) for _ in range(8)]

    played = server.play(script)
    client = Client(stack, Names(server.address))
    client.wait_ready()
    sent = [client.send_produce(2_000_000 + number) for number in range(5)]
    sent += [client.send_produce(number) for number in range(3)]
    assert client.socket.is_blocked
    go.set()
    client.run_until(lambda: played.done() and not client.socket.is_blocked)
    assert played.result() == sent
    assert client.events == []


def test_a_connection_sleeps_after_a_slow_write(stack: ExitStack, server: Server) -> None:
    """The connection must not poll for writability without unsent bytes."""

    def script(peer: socket.socket) -> None:
        agree_on_versions(peer)
        read_request(peer)

    played = server.play(script)
    client = Client(stack, Names(server.address))
    client.wait_ready()
    client.send_produce(8_000_000)
    client.run_until(played.done)
    assert client.run_for(0.2) <= 2


def test_an_idle_connection_closed_by_the_broker_is_no_failure(stack: ExitStack, server: Server) -> None:
    def script(peer: socket.socket) -> None:
        agree_on_versions(peer)
        peer.close()

    server.play(script)
    client = Client(stack, Names(server.address))
    client.run_until(lambda: len(client.events) == 2)
    assert isinstance(client.events[0], ConnectionReady)
    assert isinstance(client.events[1], Closed)


@pytest.mark.parametrize("how", ["orderly", "reset"])
def test_a_connection_lost_with_a_request_in_flight_names_it(stack: ExitStack, server: Server, how: str) -> None:
    def script(peer: socket.socket) -> None:
        agree_on_versions(peer)
        read_request(peer)
        if how == "reset":
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            peer.send(b"\0\0")  # half a size
        peer.close()

    server.play(script)
    client = Client(stack, Names(server.address))
    client.wait_ready()
    client.send_produce(100)
    event = client.next_event()
    assert isinstance(event, Failed)
    assert event.cause is FailureCause.CLOSED_BY_BROKER
    assert len(event.unanswered) == 1


def test_a_broker_that_closes_during_a_large_write_fails_once(stack: ExitStack, server: Server) -> None:
    go = Flag()

    def script(peer: socket.socket) -> None:
        agree_on_versions(peer)
        assert go.wait(TIMEOUT_S)
        peer.recv(1000)
        peer.close()

    server.play(script)
    client = Client(stack, Names(server.address))
    client.wait_ready()
    for _ in range(3):
        client.send_produce(4_000_000)
    go.set()
    event = client.next_event()
    assert isinstance(event, Failed)
    assert len(event.unanswered) == 3
    assert not client.socket.is_blocked


def test_a_request_without_a_response_times_out(stack: ExitStack, server: Server) -> None:
    """A half-open connection: it stands, and the peer is gone."""
    server.play(agree_on_versions)
    client = Client(stack, Names(server.address), timeout_s=ANSWER_S)
    client.wait_ready()
    start = time.monotonic()
    client.send_produce(10)
    event = client.next_event()
    assert isinstance(event, Failed)
    assert event.cause is FailureCause.TIMED_OUT
    assert ANSWER_S <= time.monotonic() - start < TIMEOUT_S


def test_a_request_of_which_no_byte_is_accepted_times_out(stack: ExitStack, server: Server) -> None:
    """With acks = 0 there is no response to wait for.  A broker that reads slowly has more time."""

    def script(peer: socket.socket) -> None:
        agree_on_versions(peer)
        for _ in range(8):
            time.sleep(ANSWER_S / 4)
            read_exactly(peer, 1_000_000)

    played = server.play(script)
    client = Client(stack, Names(server.address), timeout_s=ANSWER_S)
    client.wait_ready()
    client.send_produce(40_000_000, acks=0)
    client.run_until(played.done)
    assert not client.events
    event = client.next_event()
    assert isinstance(event, Failed)
    assert event.cause is FailureCause.TIMED_OUT
    assert "accepted no bytes" in str(event.error)


def test_garbage_from_the_broker_fails_the_connection(stack: ExitStack, server: Server) -> None:
    def script(peer: socket.socket) -> None:
        read_request(peer)
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    server.play(script)
    event = Client(stack, Names(server.address)).next_event()
    assert isinstance(event, Failed)
    assert event.cause is FailureCause.BAD_DATA


# --- closing ---------------------------------------------------------------------------------------------------------


def test_no_event_follows_close(stack: ExitStack, server: Server) -> None:
    """Two answers come at once; the owner closes at the first."""

    def script(peer: socket.socket) -> None:
        agree_on_versions(peer)
        peer.sendall(b"\x7f" * 100)

    server.play(script)
    client = Client(stack, Names(server.address))
    client.closes_at_once = True
    client.run_until(lambda: bool(client.events))
    client.run_for(0.1)
    assert [type(event) for event in client.events] == [ConnectionReady]


def test_close_while_connecting_reports_no_event(stack: ExitStack, silent_address: Address) -> None:
    client = Client(stack, Names(silent_address, silent_address), timeout_s=SHORT_S)
    client.socket.close()
    client.run_for(2 * SHORT_S)
    assert client.events == []


def test_close_before_name_resolution_reports_no_event(stack: ExitStack, server: Server) -> None:
    waiting: list[Callable[[list[Address], str], None]] = []
    names = Names()
    names.resolve = lambda _host, _port, callback: waiting.append(callback)  # type: ignore[method-assign]
    client = Client(stack, names)
    client.socket.close()
    waiting[0]([server.address], "")
    client.run_for(0.05)
    assert client.events == []


class OpenTls:
    """A TLS session whose handshake has just ended, without encryption."""

    is_open, has_ended = True, False

    def __init__(self) -> None:
        self._outgoing = b""

    def receive(self, data: bytes) -> bytes:
        return data

    def send(self, data: memoryview) -> None:
        self._outgoing += data

    def read_outgoing(self) -> bytes:
        outgoing, self._outgoing = self._outgoing, b""
        return outgoing


def test_data_behind_a_tls_handshake_is_ignored_if_the_first_request_cannot_be_sent(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names()
    monkeypatch.setattr(names, "resolve", lambda *_: None)  # the test connects
    client = Client(stack, names)
    ours, theirs = socket.socketpair()
    theirs.close()
    client.loop.watch(ours, lambda _: None)
    client.socket._socket, tls = ours, OpenTls()
    client.socket._tls = tls  # type: ignore[assignment]
    client.socket._on_tls_data(tls, b"data")  # type: ignore[arg-type]
    (failed,) = client.events
    assert isinstance(failed, Failed)
    assert failed.cause is FailureCause.CLOSED_BY_BROKER
