"""The HTTP server in its threads."""

from __future__ import annotations

import errno
import http.client
import logging
import os
import socket
import time
from contextlib import ExitStack, contextmanager
from threading import Event
from typing import TYPE_CHECKING

import pytest
from flask import Flask
from waitress.trigger import trigger

from bruce_mp.status.server import HttpLimits, HttpServer
from support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TIMEOUT_S = 20.0
LARGE = b"x" * (64 << 20)


@contextmanager
def serving(
    limits: HttpLimits = HttpLimits(),  # noqa: B008 - immutable
    listener: socket.socket | None = None,
    on_accept_exhausted: Callable[[], None] = lambda: None,
    page: Callable[[], str] = lambda: "here",
) -> Iterator[tuple[HttpServer, socket.socket]]:
    app = Flask(__name__)
    app.add_url_rule("/", "page", page)
    app.add_url_rule("/large", "large", lambda: LARGE)
    with listener or socket.create_server(("127.0.0.1", 0)) as opened:
        server = HttpServer(app, opened, limits, on_accept_exhausted)
        server.start()
        yield server, opened
        server.stop()


def http_client(listener: socket.socket) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", listener.getsockname()[1], timeout=TIMEOUT_S)


def test_the_server_stops_while_a_client_stays_connected() -> None:
    with serving() as (server, listener):
        client = http_client(listener)
        assert server.is_alive()
        client.request("GET", "/")
        assert client.getresponse().read() == b"here"
    assert not server.is_alive()
    client.close()


def test_the_server_answers_pending_requests_before_it_stops() -> None:
    begun = Event()
    stopping = Event()

    def slow() -> str:
        begun.set()
        assert stopping.wait(TIMEOUT_S)
        return "done"

    with serving(page=slow) as (_, listener):
        client = http_client(listener)
        client.request("GET", "/")
        assert begun.wait(TIMEOUT_S)
        stopping.set()
    assert client.getresponse().read() == b"done"
    client.close()


def test_the_server_stops_although_its_thread_wakes_before_the_byte_that_wakes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pull = trigger._physical_pull

    def pull_late(self: trigger) -> None:
        time.sleep(0.1)
        pull(self)

    with serving() as (server, listener):
        client = http_client(listener)
        monkeypatch.setattr(trigger, "_physical_pull", pull_late)
        client.request("GET", "/")  # its worker wakes the server thread 0.1 s after the response
        assert client.getresponse().read() == b"here"
    assert not server.is_alive()
    client.close()


def connect(listener: socket.socket) -> socket.socket:
    client = socket.socket(listener.family)
    client.settimeout(TIMEOUT_S)
    client.connect(listener.getsockname())
    return client


def ask(listener: socket.socket) -> bytes:
    """Return the first bytes of the answer to a new client."""
    with connect(listener) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return client.recv(12)


def is_closed(client: socket.socket) -> bool:
    """Return True once the server has closed the connection; before that, send another byte of the request."""
    try:
        client.send(b"a")
        client.settimeout(0)
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("beginning", [b"", b"GET / HTTP/1.1\r\nX-Slow: "])
def test_server_answers_a_new_client_at_once_when_slow_clients_hold_every_place(beginning: bytes) -> None:
    with ExitStack() as stack, serving() as (_, listener):
        for _ in range(150):
            slow = stack.enter_context(connect(listener))
            slow.sendall(beginning)
        began = time.monotonic()
        for _ in range(20):
            assert ask(listener) == b"HTTP/1.0 200"
        assert time.monotonic() - began < 2


def test_server_closes_a_request_over_its_time_limit_when_bytes_still_arrive() -> None:
    with serving(HttpLimits(request_s=0.3)) as (server, listener), connect(listener) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
        server.enforce_limits()

        def is_over() -> bool:
            server.enforce_limits()
            return is_closed(slow)

        began = time.monotonic()
        wait_until(is_over, "the end of the slow request", 5)
        assert time.monotonic() - began > 0.25


def test_server_closes_a_response_over_its_time_limit_when_the_client_still_reads() -> None:
    with serving(HttpLimits(response_s=0.3)) as (server, listener), connect(listener) as slow:
        slow.sendall(b"GET /large HTTP/1.0\r\n\r\n")
        received = 0

        def is_over() -> bool:
            nonlocal received
            server.enforce_limits()
            got = slow.recv(1 << 20)
            received += len(got)
            return not got

        began = time.monotonic()
        wait_until(is_over, "the end of the slow response", 15)
        assert time.monotonic() - began > 0.25
        assert received < len(LARGE)


def test_server_keeps_an_idle_client_when_no_limit_is_exceeded() -> None:
    with serving(HttpLimits(request_s=0.01, response_s=0.01)) as (server, listener):
        client = http_client(listener)
        for _ in range(3):
            client.request("GET", "/")
            assert client.getresponse().read() == b"here"
            for _ in range(3):
                server.enforce_limits()
                time.sleep(0.02)
        client.close()


class ExhaustedListener(socket.socket):
    """A listening socket without free descriptors until `is_exhausted` is False."""

    is_exhausted = True
    attempts = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.attempts += 1
        if self.is_exhausted:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_server_pauses_accepting_when_descriptors_are_exhausted(caplog: pytest.LogCaptureFixture) -> None:
    reports: list[None] = []
    listener = ExhaustedListener()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    with (
        serving(listener=listener, on_accept_exhausted=lambda: reports.append(None)) as (server, _),
        connect(listener) as it,
    ):
        it.sendall(b"GET / HTTP/1.0\r\n\r\n")
        wait_until(lambda: bool(reports), "the report")
        time.sleep(0.1)  # a server that spins would report thousands of times
        assert (len(reports), listener.attempts) == (1, 1)
        listener.is_exhausted = False
        server.enforce_limits()
        assert it.recv(12) == b"HTTP/1.0 200"
    assert "A connection to the status pages cannot be accepted: Too many open files" in caplog.text


def test_lines_of_the_library_are_dropped_or_explained(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serving():
        library = logging.getLogger("waitress")
        library.info("Client disconnected while serving %s", "/")
        library.warning("server accept() threw an exception")
        library.error("Exception while serving %s", "/healthz")
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("waitress")]
    assert lines == ["The server of the status pages failed in a request. This is a bug: please report it."]
