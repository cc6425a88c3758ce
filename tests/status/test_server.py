"""The HTTP server in its threads."""

from __future__ import annotations

import http.client
import socket
from threading import Event

from flask import Flask

from bruce_mp.status.server import HttpServer

TIMEOUT_S = 20.0


def test_the_server_stops_while_a_client_stays_connected() -> None:
    app = Flask(__name__)
    app.add_url_rule("/", "page", lambda: "here")
    listener = socket.create_server(("127.0.0.1", 0))
    client = http.client.HTTPConnection("127.0.0.1", listener.getsockname()[1], timeout=TIMEOUT_S)
    server = HttpServer(app, listener)
    server.start()
    assert server.is_alive()
    client.request("GET", "/")
    assert client.getresponse().read() == b"here"
    server.stop()
    assert not server.is_alive()
    client.close()


def test_the_server_answers_pending_requests_before_it_stops() -> None:
    begun = Event()
    stopping = Event()

    def slow() -> str:
        begun.set()
        assert stopping.wait(TIMEOUT_S)
        return "done"

    app = Flask(__name__)
    app.add_url_rule("/", "slow", slow)
    listener = socket.create_server(("127.0.0.1", 0))
    client = http.client.HTTPConnection("127.0.0.1", listener.getsockname()[1], timeout=TIMEOUT_S)
    server = HttpServer(app, listener)
    server.start()
    client.request("GET", "/")
    assert begun.wait(TIMEOUT_S)
    stopping.set()
    server.stop()
    assert client.getresponse().read() == b"done"
    client.close()
