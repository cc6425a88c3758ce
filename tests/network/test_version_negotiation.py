"""Connections to brokers that do not report their API versions, and to brokers that only seem so."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event as Flag
from typing import TYPE_CHECKING, Final

import pytest
from kafka.protocol.metadata import MetadataResponse

from bruce_mp.ipc.loop import Loop
from bruce_mp.network.broker_socket import BrokerSocket
from bruce_mp.protocol.kafka import broker_connection
from bruce_mp.protocol.kafka.api_versions import BEFORE_API_VERSIONS, BrokerCapabilities
from bruce_mp.protocol.kafka.connection_events import ConnectionReady, Failed, FailureCause
from bruce_mp.protocol.kafka.version_negotiation import NegotiationCache
from support.kafka_answers import framed, versions

if TYPE_CHECKING:
    from bruce_mp.network.resolver import Address
    from bruce_mp.protocol.kafka.connection_events import Event

TIMEOUT_S: Final = 10.0
VERSIONS_TIMEOUT_S: Final = 0.6
"""Longer than the tests' servers need to answer on a busy machine."""
VERSIONS, METADATA = 18, 3
Reaction = Callable[[socket.socket, bytes], None]
"""The reaction to a request; its second argument is the four bytes of the correlation id."""


def closes(peer: socket.socket, _: bytes) -> None:
    peer.close()


def resets(peer: socket.socket, _: bytes) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def is_silent(_peer: socket.socket, _: bytes) -> None:
    pass


def answers(frame: bytes) -> Reaction:
    return lambda peer, number: peer.sendall(frame[:4] + number + frame[8:])


BROKER: Final = MetadataResponse.MetadataResponseBroker(node_id=1, host="b1", port=9092)
gives_metadata: Final = answers(framed(MetadataResponse[0](brokers=[BROKER], topics=[]), 0))
says_versions: Final = answers(versions({0: (0, 9), 3: (0, 9), 22: (0, 4)}))

Script = list[dict[int, Reaction]]
"""For each connection, the expected requests in order, and the reactions."""


def old_broker(reaction: Reaction) -> Script:
    """Return the script of a broker that reacts with `reaction` to the request for versions."""
    return [{VERSIONS: reaction}, {METADATA: gives_metadata, VERSIONS: reaction}, {METADATA: gives_metadata}]


class Numbers:
    """A substitute of the resolver: all names are addresses."""

    def resolve(self, host: str, port: int, callback: Callable[[list[Address], str], None]) -> None:
        callback([(socket.AF_INET, host, port)], "")


class Server:
    """A broker that plays a script."""

    def __init__(self, script: Script) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(TIMEOUT_S)
        self.port: int = self._listener.getsockname()[1]
        self._over = Flag()
        self.asked: list[list[int]] = []
        """The API keys of each connection's requests."""
        self._thread = ThreadPoolExecutor(1)
        self._played = self._thread.submit(self._play, script)

    def _play(self, script: Script) -> None:
        with ExitStack() as open_connections:
            for reactions in script:
                peer, _ = self._listener.accept()
                open_connections.enter_context(peer)
                peer.settimeout(TIMEOUT_S)
                self._serve(peer, reactions)
            self._over.wait(TIMEOUT_S)

    def _serve(self, peer: socket.socket, reactions: dict[int, Reaction]) -> None:
        self.asked.append([])
        for key, reaction in reactions.items():
            size = int.from_bytes(peer.recv(4, socket.MSG_WAITALL), "big")
            request = peer.recv(size, socket.MSG_WAITALL)
            self.asked[-1].append(int.from_bytes(request[:2], "big"))
            assert self.asked[-1][-1] == key
            reaction(peer, request[4:8])

    def close(self) -> None:
        self._over.set()
        self._thread.shutdown()
        self._listener.close()
        self._played.result()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_connection, "VERSIONS_TIMEOUT_S", VERSIONS_TIMEOUT_S)


def serve(stack: ExitStack, script: Script) -> Server:
    server = Server(script)
    stack.callback(server.close)
    return server


def connect(stack: ExitStack, server: Server, negotiation_cache: NegotiationCache | None = None) -> list[Event]:
    """Open a connection and wait for its first event."""
    loop = Loop()
    events: list[Event] = []

    def on_event(event: Event) -> None:
        events.append(event)
        loop.stop()

    connection = BrokerSocket(
        loop,
        Numbers(),  # type: ignore[arg-type]
        host="127.0.0.1",
        port=server.port,
        client_id="test",
        timeout_s=TIMEOUT_S,
        on_event=on_event,
        negotiation_cache=negotiation_cache,
    )
    stack.callback(connection.close)
    connection.open()
    loop.run()
    return events


@pytest.mark.parametrize("reaction", [closes, resets, is_silent])
def test_an_old_broker_is_detected(stack: ExitStack, reaction: Reaction) -> None:
    server = serve(stack, old_broker(reaction))
    assert connect(stack, server) == [ConnectionReady(BEFORE_API_VERSIONS)]
    assert server.asked == [[VERSIONS], [METADATA, VERSIONS], [METADATA]]


def test_a_detected_version_skips_the_probe_on_the_next_connection(stack: ExitStack) -> None:
    server = serve(stack, [*old_broker(closes), {METADATA: gives_metadata}])
    negotiation_cache = NegotiationCache()
    connect(stack, server, negotiation_cache)
    assert connect(stack, server, negotiation_cache) == [ConnectionReady(BEFORE_API_VERSIONS)]
    assert server.asked[3:] == [[METADATA]]


@pytest.mark.parametrize("reaction", [closes, is_silent])
def test_a_current_broker_is_not_mistaken_for_an_old_one(stack: ExitStack, reaction: Reaction) -> None:
    server = serve(stack, [{VERSIONS: reaction}, {METADATA: gives_metadata, VERSIONS: says_versions}])
    assert connect(stack, server) == [ConnectionReady(BrokerCapabilities(9, 9, 4))]


def test_a_stopping_broker_is_not_mistaken_for_an_old_one(stack: ExitStack) -> None:
    server = serve(stack, [{VERSIONS: closes}, {METADATA: closes}])
    (event,) = connect(stack, server)
    assert isinstance(event, Failed)
    assert event.cause is FailureCause.CLOSED_BY_BROKER
    assert server.asked == [[VERSIONS], [METADATA]]


def test_an_upgraded_broker_is_probed_again(stack: ExitStack) -> None:
    server = serve(stack, [*old_broker(closes), {METADATA: closes}, {VERSIONS: says_versions}])
    negotiation_cache = NegotiationCache()
    connect(stack, server, negotiation_cache)
    (event,) = connect(stack, server, negotiation_cache)
    assert isinstance(event, Failed)
    assert connect(stack, server, negotiation_cache) == [ConnectionReady(BrokerCapabilities(9, 9, 4))]


def test_a_configured_release_is_not_probed(stack: ExitStack) -> None:
    server = serve(stack, [{METADATA: gives_metadata}])
    assert connect(stack, server, NegotiationCache("0.9.0.1")) == [ConnectionReady(BEFORE_API_VERSIONS)]
