"""Threads that share a client: a flush keeps none of them from sending, and none beyond its time limit.

If the connection breaks while several of them flush, each flush fails.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

import pytest

from support.client_programs import LANGUAGES, ConformanceProgram, build, param, run_tool
from support.stream_daemon import StreamDaemon

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

BOTH_WAIT_S: Final = 1.0
"""Time after the first barrier in which the other thread begins its flush, too."""
RUBY: Final = """
require './bruce'
client = Bruce::StreamClient.new(path: ARGV[0])
flush = lambda do |seconds|
  client.flush(timeout: seconds).delivered
rescue Bruce::FlushError => e
  e.code
end
first = Thread.new { flush.call(60) }
Thread.pass while client.stats.connections.zero?
sent = client.send('t', 'v')
second = flush.call(0.2)
is_waiting = first.alive?
client.close
puts [sent, second, is_waiting, first.value, flush.call(60)].join(' ')
"""


@pytest.mark.parametrize("name", [param("ruby")])
def test_a_thread_sends_flushes_and_closes_while_another_one_flushes(name: str, tmp_path: Path) -> None:
    build(name)
    with StreamDaemon(tmp_path / "in") as daemon:
        daemon.answering = False
        said = run_tool(name, ("ruby", "-e", RUBY, "--", str(tmp_path / "in")))
        assert said.split() == ["true", "timed_out", "true", "closed", "closed"]
        daemon.wait(1)


@pytest.mark.parametrize("name", [param(name) for name in LANGUAGES if name != "php"])  # it has no threads
def test_each_flush_that_waits_during_a_break_fails(name: str, tmp_path: Path) -> None:
    def cut() -> None:
        daemon.wait_barrier()
        time.sleep(BOTH_WAIT_S)
        daemon.answering = True
        daemon.cut()

    with StreamDaemon(tmp_path / "in") as daemon, ConformanceProgram(build(name), name) as program:
        daemon.answering = False
        program.open_stream(tmp_path / "in")
        program.send_stream("t", range(3), 20)
        cutting = threading.Thread(target=cut)
        cutting.start()
        assert program.ask("stream-flush-twice") == ["error", "BROKEN", "3"] * 2
        cutting.join()
        assert program.flush(20_000).error is None
        program.close_stream(1000)
