"""Lingers of stream clients: a flush, a close, a full write and a small buffer that fills end them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest

from support.client_programs import LANGUAGES, ConformanceProgram, build, param
from support.stream_daemon import StreamDaemon

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

LINGER_MS: Final = 300_000
"""Longer than all time limits of the tests."""
LIMIT_MS: Final = 20_000
LINGERS_S: Final = 0.1
"""Time in which the writer begins to linger."""
WITH_LINGER: Final = pytest.mark.parametrize(
    "name", [param(name) for name, language in LANGUAGES.items() if language.has_linger]
)


@WITH_LINGER
def test_messages_that_fill_a_write_end_a_linger(name: str, tmp_path: Path) -> None:
    with StreamDaemon(tmp_path / "in") as daemon, ConformanceProgram(build(name), name) as program:
        program.open_stream(tmp_path / "in", linger_ms=LINGER_MS)
        program.send_stream("t", range(70), 1000)
        daemon.wait(50)
        program.close_stream(LIMIT_MS)


@WITH_LINGER
def test_a_buffer_smaller_than_a_write_ends_a_linger_when_it_fills(name: str, tmp_path: Path) -> None:
    with StreamDaemon(tmp_path / "in"), ConformanceProgram(build(name), name) as program:
        program.open_stream(tmp_path / "in", 10_000, LINGER_MS)
        accepted_count, end = 0, time.monotonic() + LIMIT_MS / 1000
        while accepted_count < 30:
            accepted_count += program.send_stream("t", range(1), 1000)
            assert time.monotonic() < end, accepted_count
        program.close_stream(LIMIT_MS)


@WITH_LINGER
def test_a_flush_and_a_close_end_a_linger(name: str, tmp_path: Path) -> None:
    with StreamDaemon(tmp_path / "in") as daemon, ConformanceProgram(build(name), name) as program:
        program.open_stream(tmp_path / "in", linger_ms=LINGER_MS)
        program.send_stream("t", range(1), 20)
        time.sleep(LINGERS_S)
        assert program.flush(LIMIT_MS).received == 1
        program.send_stream("t", range(1), 20)
        time.sleep(LINGERS_S)
        assert program.close_stream(LIMIT_MS) == ["ok"]
        assert len(daemon.wait(2)) == 2
