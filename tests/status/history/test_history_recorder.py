"""The recorder: the counters of each minute, in the file and on the page `/history`."""

from __future__ import annotations

import logging
from threading import Event, Thread, Timer
from typing import TYPE_CHECKING, Any

import pytest

from bruce_mp.discards.events import DiscardEvent
from bruce_mp.errors import DiscardReason
from bruce_mp.slab.layout import RunState
from bruce_mp.status.history import history_recorder
from bruce_mp.status.history.history_file import PERIODS, WHOLE, HistoryError, HistoryFile
from bruce_mp.status.history.history_recorder import FILE, HistoryRecorder, open_history
from bruce_mp.telemetry.counters import Counter, discarded
from bruce_mp.telemetry.traffic import TrafficEvent
from support.filled_slab import NOW_MS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from bruce_mp.status.history.history_file import HistoryPeriod, StepAmounts
    from support.status_pages import OfflineStatusPages


def run_minute(daemon: OfflineStatusPages, received: int, delivered: int, lost: int = 0) -> None:
    """Let a minute pass in which all messages are of the topic news, and write it."""
    count_minute(daemon, received, delivered, lost)
    daemon.recorder.write(daemon.now_ms // 1000)


def count_minute(daemon: OfflineStatusPages, received: int, delivered: int, lost: int = 0) -> None:
    """Let a minute pass in which all messages are of the topic news."""
    daemon.now_ms += 60_000
    daemon.steady_ms += 60_000
    counted = {Counter.MsgReceived: received, Counter.MsgDelivered: delivered, discarded(DiscardReason.BUG): lost}
    daemon.filled.input.commit_landed(0, {**counted, Counter.AckDelayFirst + 3: delivered})
    traffic = TrafficEvent(b"news", delivered, 10 * delivered, {3: delivered}, 0, "")
    daemon.histories.traffic.record([traffic], daemon.steady_ms)
    daemon.histories.totals.record([traffic], daemon.steady_ms)
    if lost:
        event = DiscardEvent(DiscardReason.BUG, b"news", lost, 0, 0, (), -1, -1)
        daemon.histories.totals.record([event], daemon.steady_ms)


def ask(daemon: OfflineStatusPages, period: str, topic: str = "") -> Any:
    return daemon.json(f"/history/json?period={period}&topic={topic}")["series"]


def test_the_page_shows_each_period_of_the_daemon(daemon: OfflineStatusPages) -> None:
    run_minute(daemon, 120, 60)
    run_minute(daemon, 0, 30, lost=6)
    for period, step_s, rows in (("hour", 60, 2), ("day", 300, 1), ("month", 7200, 1)):
        series = ask(daemon, period)
        assert (series["step_s"], series["span_s"]) == (step_s, PERIODS[period].length_s)
        assert len(series["age_s"]) == rows
        assert series["held"][-1] == 24
        assert series["p99_ms"][-1] == pytest.approx(24.85)
    hour = ask(daemon, "hour")
    assert (hour["age_s"], hour["received"], hour["delivered"], hour["discarded"]) == (
        [60.0, 0.0], [2.0, 0.0], [1.0, 0.5], [0.0, 0.1],
    )  # fmt: skip


def test_the_running_minute_is_shown_before_it_is_written(daemon: OfflineStatusPages) -> None:
    daemon.now_ms += 30_000
    daemon.steady_ms += 30_000
    daemon.filled.input.commit_landed(0, {Counter.MsgReceived: 90})
    assert ask(daemon, "hour")["received"] == [3.0]
    assert daemon.json("/overview/json")["history"]["hour"] == ask(daemon, "hour")


def test_a_topic_has_its_own_chart_with_zeros_for_quiet_minutes(daemon: OfflineStatusPages) -> None:
    daemon.filled.receive(b"news", 12, RunState.ROUTED)
    run_minute(daemon, 60, 48)
    daemon.recorder._next_count_s = 0  # no machine is so slow that this scan took two seconds
    run_minute(daemon, 6, 0, lost=6)
    daemon.now_ms += 60_000
    daemon.steady_ms += 60_000
    daemon.recorder.write(daemon.now_ms // 1000)
    hour = ask(daemon, "hour", "news")
    assert hour["received"] == [1.0, 0.1, 0.0]
    assert (hour["delivered"], hour["discarded"]) == ([0.8, 0.0, 0.0], [0.0, 0.1, 0.0])
    assert hour["held"][:2] == [12, 12]
    assert hour["p50_ms"][1] is None
    assert ask(daemon, "day", "news")["delivered"] == [pytest.approx(48 / 180, abs=0.01)]
    assert ask(daemon, "day", "unheard-of")["delivered"] == [0.0]


def test_topics_without_a_series_share_one_with_their_held_messages(daemon: OfflineStatusPages) -> None:
    daemon.histories.totals.apply_limit(0)
    daemon.filled.receive(b"news", 12, RunState.ROUTED)
    daemon.filled.receive(b"unheard-of", 3, RunState.ROUTED)
    run_minute(daemon, 15, 0)
    assert ask(daemon, "hour", "(other)")["held"] == [15]


def test_an_unknown_span_is_refused(daemon: OfflineStatusPages) -> None:
    answer = daemon.client.get("/history/json?period=week")
    assert (answer.status_code, answer.get_data(as_text=True)) == (400, "period is one of hour, day, month.")


def test_a_series_that_begins_again_counts_from_zero(daemon: OfflineStatusPages) -> None:
    run_minute(daemon, 60, 60)
    daemon.histories.totals.apply_limit(0)
    daemon.histories.totals.apply_limit(100)
    run_minute(daemon, 6, 6)
    assert ask(daemon, "hour", "news")["delivered"] == [1.0, 0.1]


def test_minutes_of_a_failing_disk_are_logged_once_and_written_later(
    daemon: OfflineStatusPages, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.history_file._writer.execute("PRAGMA query_only = ON")
    run_minute(daemon, 60, 60)
    run_minute(daemon, 60, 60)
    (record,) = caplog.records
    assert record.getMessage().endswith("wait for up to an hour: there is no permission to write.")
    daemon.history_file._writer.execute("PRAGMA query_only = OFF")
    run_minute(daemon, 60, 30)
    assert ask(daemon, "hour")["delivered"] == [1.0, 1.0, 0.5]


@pytest.mark.parametrize(("topic", "delivered"), [(WHOLE, 0.5), (b"news", 0.0)])
def test_a_write_during_a_read_changes_no_amounts(
    daemon: OfflineStatusPages, monkeypatch: pytest.MonkeyPatch, topic: bytes, delivered: float
) -> None:
    run_minute(daemon, 60, 0)
    count_minute(daemon, 0, 60)
    now_s, read = daemon.now_ms // 1000, daemon.history_file.read
    writer = Thread(target=daemon.recorder.write, args=(now_s,))

    def read_late(period: HistoryPeriod, name: bytes, now_s: int) -> dict[int, StepAmounts]:
        if name == topic and writer.ident is None:
            writer.start()
            writer.join(0.2)
        return read(period, name, now_s)

    monkeypatch.setattr(daemon.history_file, "read", read_late)
    assert daemon.recorder.series("day", topic, now_s).delivered == [delivered]
    writer.join()
    assert daemon.recorder.series("day", topic, now_s).delivered == [0.5]


def test_a_read_during_a_write_counts_the_minute_once(
    daemon: OfflineStatusPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_minute(daemon, 60, 0)
    count_minute(daemon, 0, 60)
    now_s, add = daemon.now_ms // 1000, daemon.history_file.add
    found: list[list[float]] = []
    reader = Thread(target=lambda: found.append(daemon.recorder.series("day", WHOLE, now_s).delivered))

    def add_and_linger(now_s: int, amounts: Mapping[bytes, StepAmounts]) -> None:
        add(now_s, amounts)
        reader.start()
        reader.join(0.2)

    monkeypatch.setattr(daemon.history_file, "add", add_and_linger)
    daemon.recorder.write(now_s)
    reader.join()
    assert found == [[0.5]]


def test_a_write_that_hangs_fails_a_reader(daemon: OfflineStatusPages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_recorder, "READ_TIMEOUT_S", 0.0)
    monkeypatch.setattr(daemon.history_file, "add", lambda *_: ask_while_busy())

    def ask_while_busy() -> None:
        answer = daemon.client.get("/history/json?period=hour")
        assert (answer.status_code, "it is being written. Ask again." in answer.get_data(as_text=True)) == (503, True)

    run_minute(daemon, 60, 60)


# --- the place of the file --------------------------------------------------------------------------------------------
def test_the_file_is_in_a_private_directory(tmp_path: Path) -> None:
    file = open_history(tmp_path / "place", tmp_path, tmp_path / "x.slab")
    assert file is not None
    file.close()
    assert (tmp_path / "place").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "place" / FILE).exists()


@pytest.mark.parametrize("hostile", ["missing", "public", "file"])
def test_the_run_directory_takes_the_file_if_its_place_is_unusable(
    hostile: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "none" / "place" if hostile == "missing" else tmp_path / "place"
    if hostile == "public":
        place.mkdir()
        place.chmod(0o777)
    elif hostile == "file":
        place.write_text("")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with caplog.at_level(logging.WARNING):
        file = open_history(place, run_dir, tmp_path / "x.slab")
    assert isinstance(file, HistoryFile)
    assert file.read(PERIODS["hour"], WHOLE, NOW_MS // 1000) == {}
    file.close()
    assert (run_dir / FILE).exists()
    (record,) = caplog.records
    assert "http.history_dir" in record.getMessage()


def test_the_page_works_without_a_usable_directory(
    daemon: OfflineStatusPages, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "place").write_text("")
    assert open_history(tmp_path / "place", tmp_path / "none", tmp_path / "x.slab") is None
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "set http.history_dir to a directory in which" in record.getMessage()
    daemon.recorder._file = None
    run_minute(daemon, 60, 60)
    daemon.now_ms += 30_000
    daemon.steady_ms += 30_000
    daemon.filled.input.commit_landed(0, {Counter.MsgReceived: 90})
    assert daemon.json("/overview/json")["history"]["hour"]["received"] == [3.0]
    answer = daemon.client.get("/history/json?period=hour")
    assert (answer.status_code, "There is no history" in answer.get_data(as_text=True)) == (503, True)


def slow_recorder(daemon: OfflineStatusPages, goes_on: Event) -> HistoryRecorder:
    """Return a started recorder that opens its file when `goes_on` is set."""
    histories, began = daemon.histories, Event()

    def hang() -> HistoryFile:
        began.set()
        goes_on.wait(10)
        return daemon.history_file

    recorder = HistoryRecorder(hang, histories.rates, histories.totals, histories.traffic, daemon.view().held)
    recorder.start()
    began.wait()
    return recorder


def test_a_disk_that_hangs_does_not_delay_the_start(
    daemon: OfflineStatusPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_recorder, "_OPEN_S", 0.0)
    goes_on = Event()
    recorder = slow_recorder(daemon, goes_on)
    with pytest.raises(HistoryError, match="is not open"):
        recorder.series("hour", WHOLE, NOW_MS // 1000)
    recorder.hour_series(NOW_MS // 1000)
    goes_on.set()
    recorder.stop()


def test_a_reader_waits_until_the_file_is_open(daemon: OfflineStatusPages) -> None:
    goes_on = Event()
    recorder = slow_recorder(daemon, goes_on)
    Timer(0.1, goes_on.set).start()
    assert recorder.series("hour", WHOLE, NOW_MS // 1000).step_s == PERIODS["hour"].step_s
    recorder.stop()
