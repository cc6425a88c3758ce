from __future__ import annotations

import errno
import os
import select
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

from bruce_mp.input.listeners import Listeners
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.telemetry.counters import Counter
from support.slabs import INPUT_ROW, new_slab

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class Timers:
    """Stands in for the loop, and keeps the calls for later."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_later(self, _: float, call: Callable[[], None]) -> None:
        self.calls.append(call)


def test_two_listeners_without_descriptors_pause_and_resume_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: socket.socket) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    timers = Timers()
    accepted: list[socket.socket] = []
    with ExitStack() as stack:
        slab = stack.enter_context(new_slab())
        epoll = stack.enter_context(select.epoll())
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        row = ProcessRow(slab, INPUT_ROW)
        listeners = Listeners(servers, epoll, timers, row, accepted.append)  # type: ignore[arg-type]
        listeners.listen()
        for server in servers:
            stack.enter_context(socket.create_connection(server.getsockname()))
        ready = [descriptor for descriptor, _ in epoll.poll(10)]
        with monkeypatch.context() as exhausted:
            exhausted.setattr(socket.socket, "accept", refuse)
            for server in servers:
                listeners.accept(server.fileno())
        assert len(ready) == 2
        assert epoll.poll(0) == []
        assert row.counters[Counter.AcceptExhausted] == 2
        [resume] = timers.calls
        resume()
        for descriptor, _ in epoll.poll(10):
            listeners.accept(descriptor)
        assert len(accepted) == 2
        for connection in accepted:
            connection.close()
