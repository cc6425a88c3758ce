"""Progress: a terminal gets one line that is rewritten, anything else a line every ten seconds at most."""

from __future__ import annotations

import io
import threading
import time
from typing import TYPE_CHECKING

import pytest

from bruce_mp.spark.pipelines import progress
from bruce_mp.spark.pipelines.progress import Progress, ProgressMeter

if TYPE_CHECKING:
    from collections.abc import Callable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = 1000.0

    def advance(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now)
    return advance


def test_a_file_gets_a_line_in_ten_seconds_at_most(clock: Callable[[float], None]) -> None:
    out = io.StringIO()
    display = Progress("audit", out)
    for second in range(25):
        display.show(str(second))
        clock(1)
    display.show_line("end")
    assert out.getvalue().splitlines() == ["audit: 0", "audit: 10", "audit: 20", "audit: end"]


def test_a_terminal_gets_one_line(clock: Callable[[float], None]) -> None:
    out = Terminal()
    display = Progress("audit", out)
    for text in ("a long text", "short"):
        display.show(text)
        clock(1)
    display.show_line("end")
    assert out.getvalue() == "\raudit: a long text\raudit: short      \raudit: end  \n"


def test_the_meter_tells_rows_percentage_rate_and_time_left(clock: Callable[[float], None]) -> None:
    meter = ProgressMeter("messages", done_before=0.2)
    clock(10)
    assert meter.describe(5_000, 0.4) == "5,000 messages, 40%, 500/s, 30 s left"
    assert meter.describe(5_000, None) == "5,000 messages, 500/s"
    assert meter.describe(5_000, 1.5) == "5,000 messages, 100%, 500/s"
    clock(100)
    assert meter.describe(5_000, 0.4) == "5,000 messages, 40%, 45/s, 5 min 30 s left"
    clock(10_000)
    assert meter.describe(5_000, 0.4) == "5,000 messages, 40%, 0/s, 8 h 25 min left"
    assert meter.summarize(5_000) == "5,000 messages, 0/s, 2 h 48 min"


def test_a_long_step_is_shown_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_REPEAT_INTERVAL_S", 0.001)
    calls, enough = [0], threading.Event()

    def text() -> str:
        calls[0] += 1
        if calls[0] == 3:
            enough.set()
        return "running"

    out = io.StringIO()
    with Progress("audit", out).repeat(text):
        assert enough.wait(30)
    after = calls[0]
    assert out.getvalue() == "audit: running\n"
    assert calls[0] == after
