"""Stream clients whose daemon refuses each connection, or closes it at once as for a sender with too many of them."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Final

import pytest

from support.processes import time_limit
from support.stream_daemon import closing_at_once

if TYPE_CHECKING:
    from pathlib import Path

    from support.client_programs import ConformanceProgram

pytestmark = pytest.mark.process

FLUSH_MS: Final = 1500
LONG_MS: Final = 60_000
SHORTEST_PAUSE_S: Final = 0.025
"""The first pause of 50 ms, less the random part."""


def test_a_flush_pauses_between_connections_that_end_at_once(program: ConformanceProgram, tmp_path: Path) -> None:
    with closing_at_once(tmp_path / "in") as connections:
        program.open_stream(tmp_path / "in")
        began_s = time.monotonic()
        assert program.flush(FLUSH_MS).error == "TIMED_OUT"
        took_s = time.monotonic() - began_s
        assert 2 <= len(connections) <= took_s / SHORTEST_PAUSE_S + 2
        began_s = time.monotonic()
        assert program.close_stream(LONG_MS) == ["ok"]  # there is nothing to wait for
        assert time.monotonic() - began_s < time_limit(1)


def test_a_message_waits_for_pauses_between_connections_that_end_at_once(
    program: ConformanceProgram, tmp_path: Path
) -> None:
    """A message that was written before the end of its connection is uncertain, and ends the flush."""
    with closing_at_once(tmp_path / "in") as connections:
        program.open_stream(tmp_path / "in")
        began_s = time.monotonic()
        while (took_s := time.monotonic() - began_s) < FLUSH_MS / 1000:
            program.send_stream("t", range(1), 20)
            program.flush(20)
        assert 2 <= len(connections) <= took_s / SHORTEST_PAUSE_S + 2
        program.close_stream(0)


def test_a_refused_connection_over_tcp_does_not_count(program: ConformanceProgram) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # without `listen`, it refuses
        program.open_stream(unused.getsockname()[1])
        assert program.flush(200).error == "TIMED_OUT"
        assert program.stream_stats()["connections"] == 0
    program.close_stream(0)
