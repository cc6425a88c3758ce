"""Writes the message counts of each minute to the history file, and reads series from the file for the pages.

A separate thread opens and writes the file, because a disk may block, and the rest of the process must go on. The
thread also counts the held messages by topic, from which `TopicTotals` computes the received messages. One count in a
full slab of many GB takes seconds, so the thread spends at most `_COUNT_RATIO` of its time with counting.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import deque
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import SlabError
from bruce_mp.slab.private_directory import create_private_directory
from bruce_mp.status.history.history_file import (
    PERIODS,
    READ_TIMEOUT_S,
    WHOLE,
    HistoryError,
    HistoryFile,
    StepAmounts,
    fault_of,
    merge_amounts,
    step_start,
)
from bruce_mp.status.history.rates import series_of
from bruce_mp.status.pages.text import topic_bytes
from bruce_mp.telemetry.clock import steady_ms, wall_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from bruce_mp.status.history.rates import CounterSample, RateHistory, Series
    from bruce_mp.status.history.topic_totals import TopicTotal, TopicTotals
    from bruce_mp.status.history.topic_traffic import TrafficTable
    from bruce_mp.status.pages.held import HeldPage

__all__ = ["HistoryRecorder", "open_history"]

log = logging.getLogger(__name__)
FILE: Final = "history.sqlite"
OTHER: Final = b"(other)"
"""Name for the sum of all topics without a series on `/metrics`. Kafka allows no topic with this name."""
MAX_TOPICS: Final = 100
"""Limit of the topics that a write records; it records the topics with the most messages."""
_MINUTE_S: Final = 60
_MAX_UNWRITTEN: Final = 60
"""Number of minutes that are kept in memory while the file cannot be written, for example on a full disk."""
_COUNT_RATIO: Final = 1 / 30
_NO_AMOUNTS: Final = StepAmounts(0, 0, 0, 0, 0, None, None)
_STOP_S: Final = 2.0
"""Longest wait for the last write at the end of the process."""
_OPEN_S: Final = 2.0
"""Longest wait of a reader for the file, which the thread opens while the process starts."""


def open_history(directory: Path, run_dir: Path, slab: Path) -> HistoryFile | None:
    """Open the file in `directory`.

    If this directory is not usable, open the file in `run_dir`, which a reboot may empty. Return None if neither
    directory is usable.
    """
    try:
        create_private_directory(directory, "http.history_dir", slab)
        return HistoryFile(directory / FILE)
    except SlabError as error:
        reason = str(error)
    except (OSError, sqlite3.Error) as error:
        reason = (
            f"{directory}: {_reason_of(error)}. Set http.history_dir to a directory in which the daemon may create one."
        )
    try:
        file = HistoryFile(run_dir / FILE)
    except (OSError, sqlite3.Error) as error:
        log.error("The status page has no history until its next start. %s %s: %s.", reason, run_dir, _reason_of(error))
        return None
    log.warning("The status page keeps its history in %s, perhaps only until the next boot. %s", run_dir, reason)
    return file


def _reason_of(error: OSError | sqlite3.Error) -> str:
    return fault_of(error) if isinstance(error, sqlite3.Error) else error.strerror or str(error)


class HistoryRecorder:
    """Recorder of the counters that `rates` reads, and of the `totals` of topics.

    `open_file` returns the file, or None if no file can be opened; then `hour_series` has only the time since the last
    full minute. `read_held` counts the held messages and updates `totals`. `now_ms` is a monotonic clock. The parameter
    `now_s` of each method is the present time in seconds since the epoch.
    """

    def __init__(
        self,
        open_file: Callable[[], HistoryFile | None],
        rates: RateHistory,
        totals: TopicTotals,
        traffic: TrafficTable,
        read_held: Callable[[], HeldPage],
        *,
        now_ms: Callable[[], int] = steady_ms,
    ) -> None:
        self._open_file = open_file
        self._file: HistoryFile | None = None
        self._opened = Event()
        self._rates, self._totals, self._traffic = rates, totals, traffic
        self._read_held, self._now_ms = read_held, now_ms
        self._held: Mapping[bytes, int] = {}
        """The number of held messages by topic, from the last count."""
        self._next_count_s = 0.0
        """The time of `time.monotonic()` at which the next count of held messages is due."""
        self._file_lock = Lock()
        """Held during a write of the file and of `_last_sample`, and by readers that need the two to agree."""
        self._lock = Lock()
        """Guards `_last_sample` and `_hour_steps`, for readers that do not wait for a disk."""
        self._last_sample = rates.read(now_ms())
        """The counters at the last write."""
        self._last_totals: dict[bytes, TopicTotal] = {}
        """The totals of topics at the last write."""
        self._hour_steps: dict[int, StepAmounts] = {}
        """The daemon's steps of the last hour by their start, as they were in the file after the last write."""
        self._unwritten: deque[tuple[int, Mapping[bytes, StepAmounts]]] = deque(maxlen=_MAX_UNWRITTEN)
        """(end of the minute, amounts by topic) of each minute that is not in the file yet."""
        self._is_failing = False
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let the thread write the counts since the last full minute, and end."""
        self._stopped.set()
        self._thread.join(_STOP_S)

    def open(self) -> None:
        self._file = self._open_file()
        self._opened.set()
        self._hour_steps = self._read_hour(wall_ms() // 1000)

    def _run(self) -> None:
        self.open()
        while not self._stopped.wait(_MINUTE_S - time.time() % _MINUTE_S):  # until the next full minute
            self.write(wall_ms() // 1000)
        self.write(wall_ms() // 1000)
        if self._file is not None:
            self._file.close()

    # --- writing -----------------------------------------------------------------------------------------------------

    def write(self, now_s: int) -> None:
        """Write the amounts since the last call, after earlier amounts that could not be written."""
        now_ms = self._now_ms()
        sample = self._rates.read(now_ms)
        amounts = {
            WHOLE: sample.amounts_since(self._last_sample),
            **self._by_topic(now_ms, sample.at_ms - self._last_sample.at_ms),
        }
        self._unwritten.append((now_s, amounts))
        with self._file_lock:
            self._write_unwritten()
            hour_steps = self._read_hour(now_s)
            with self._lock:
                self._last_sample, self._hour_steps = sample, hour_steps

    def _write_unwritten(self) -> None:
        try:
            while self._file is not None and self._unwritten:
                self._file.add(*self._unwritten[0])
                self._unwritten.popleft()
        except (OSError, sqlite3.Error) as error:
            if not self._is_failing:
                text = "The history of the status page lacks its newest minutes, which wait for up to an hour: %s."
                log.warning(text, _reason_of(error))
            self._is_failing = True
        else:
            self._is_failing = False

    def _by_topic(self, now_ms: int, interval_ms: int) -> dict[bytes, StepAmounts]:
        """Return the amounts since the last write, `interval_ms` ago, of the topics with the most messages."""
        held = dict(self._count_held_if_due())
        topics, other = self._totals.read()
        held[OTHER] = sum(message_count for name, message_count in held.items() if name not in topics)
        before, self._last_totals = self._last_totals, {**topics, OTHER: other}
        traffic = self._traffic.by_topic(now_ms)
        amounts = {}
        for name, total in self._last_totals.items():
            change = total.increase_since(before.get(name))
            recent = traffic.get(name)
            percentiles = (recent.p50_ms, recent.p99_ms) if recent and change.delivered else (None, None)
            amounts[name] = StepAmounts(
                interval_ms / 1000, change.received, change.delivered, change.discarded, held.get(name, 0), *percentiles
            )
        busy = [
            name for name, each in amounts.items() if any((each.received, each.delivered, each.discarded, each.held))
        ]
        busy.sort(key=lambda name: -(amounts[name].delivered + amounts[name].discarded + amounts[name].held))
        return {name: amounts[name] for name in busy[:MAX_TOPICS]}

    def _count_held_if_due(self) -> Mapping[bytes, int]:
        """Return the number of held messages of each topic, by a new count or by the last one if none is due."""
        started_s = time.monotonic()
        if started_s >= self._next_count_s:
            try:
                self._held = {topic_bytes(line.topic): line.messages for line in self._read_held().topics}
            except SlabError:  # the slab changed too fast; the next minute tries again
                self._held = {}
            ended_s = time.monotonic()
            self._next_count_s = ended_s + (ended_s - started_s) / _COUNT_RATIO
        return self._held

    def _read_hour(self, now_s: int) -> dict[int, StepAmounts]:
        try:
            return self._read("hour", WHOLE, now_s)
        except HistoryError:
            return self._hour_steps

    # --- reading -----------------------------------------------------------------------------------------------------

    def hour_series(self, now_s: int) -> Series:
        """Return the daemon's series over the last hour, without reading the file: no caller waits for a disk."""
        with self._lock:
            steps, last_sample = dict(self._hour_steps), self._last_sample
        return _series("hour", self._with_pending("hour", steps, last_sample, now_s), now_s)

    def series(self, period: str, topic: bytes, now_s: int) -> Series:
        """Return the series of a topic, or of the daemon if `topic` is `WHOLE`, over a period. Raise HistoryError."""
        with self._between_writes():
            last_sample = self._last_sample
            whole = self._read(period, WHOLE, now_s)
            steps = whole if topic == WHOLE else self._read(period, topic, now_s)
        if topic == WHOLE:
            return _series(period, self._with_pending(period, whole, last_sample, now_s), now_s)
        # The file has no row for a step in which the topic had no messages. So take the steps, and the time in which
        # messages were counted, from the daemon's rows.
        topic_steps = {
            start: steps.get(start, _NO_AMOUNTS)._replace(seconds=each.seconds) for start, each in whole.items()
        }
        return _series(period, topic_steps, now_s)

    @contextmanager
    def _between_writes(self) -> Iterator[None]:
        """Wait for the file, and let the thread write nothing within the `with` block. Raise HistoryError."""
        self._opened.wait(_OPEN_S)
        if not self._file_lock.acquire(timeout=READ_TIMEOUT_S):
            raise HistoryError("The history cannot be read now: it is being written. Ask again.")
        try:
            yield
        finally:
            self._file_lock.release()

    def _read(self, period: str, topic: bytes, now_s: int) -> dict[int, StepAmounts]:
        if self._file is None:
            raise HistoryError("There is no history: its file is not open. If this stays so, see the daemon's log.")
        return self._file.read(PERIODS[period], topic, now_s)

    def _with_pending(
        self, period: str, steps: dict[int, StepAmounts], last_sample: CounterSample, now_s: int
    ) -> dict[int, StepAmounts]:
        """Return the daemon's `steps` from the file, plus the amounts since `last_sample`, which the file lacks."""
        pending = self._rates.read(self._now_ms()).amounts_since(last_sample)
        start = step_start(now_s, PERIODS[period].step_s)
        return {**steps, start: merge_amounts(steps[start], pending) if start in steps else pending}


def _series(period: str, steps: Mapping[int, StepAmounts], now_s: int) -> Series:
    step_s, length_s = PERIODS[period]
    rows = [(float(max(0, now_s - start - step_s)), each) for start, each in steps.items() if each.seconds > 0]
    return series_of(step_s, length_s, rows)
