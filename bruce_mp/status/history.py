"""What the counters said lately: a reading each second for a minute, and one in ten seconds for an hour.

The main thread looks once a second; the threads that answer read.  Its memory is bounded, and what it knows ends with
the process.  Only counters are read: to count what is held would cost too much for a page that nobody may look at, so
here, and nowhere else, it is what was received and is neither delivered nor discarded.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from bruce_mp.errors import DiscardReason
from bruce_mp.status.windows import HOUR_MS, MINUTE_MS, Window, delay_ms, minus, per_s
from bruce_mp.telemetry.books import total
from bruce_mp.telemetry.counters import Counter, discarded
from bruce_mp.telemetry.delays import read_delays

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.slab.file import Slab

__all__ = ["History", "Latency", "Series", "Spell"]

_REASONS: Final = tuple(DiscardReason)


class _Reading(NamedTuple):
    """Counters as of `at_ms`: `discarded` by reason, `delays` by bucket."""

    at_ms: int
    delivered: int
    discarded: tuple[int, ...]
    delays: tuple[int, ...]
    received: int
    copies_lost: int

    @property
    def held(self) -> int:
        return max(0, self.received - self.delivered - sum(self.discarded))


class Latency(msgspec.Struct, frozen=True):
    """From the receipt to the ack of `messages` messages: the time in ms that 50, 90 and 99 % did not exceed."""

    messages: int
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None


class Spell(NamedTuple):
    """What happened in `ms`: rates per second, discards by reason, and the delays of what was delivered."""

    ms: int
    received: float
    delivered: float
    discarded: float
    reasons: dict[DiscardReason, int]
    latency: Latency


class Series(msgspec.Struct, frozen=True):
    """Columns of equal length, the oldest first: what happened up to `age_s` ago, since the reading before.

    Rates are messages per second; `held` is as of then; `p50_ms` and `p99_ms` are None where nothing was delivered.
    """

    step_s: int
    span_s: int
    age_s: list[float]
    received: list[float]
    delivered: list[float]
    discarded: list[float]
    held: list[int]
    p50_ms: list[float | None]
    p99_ms: list[float | None]


class History:
    """See the module's text.  `wall_now_ms` is when it begins; all other times are on a clock that does not jump."""

    def __init__(self, slab: Slab, wall_now_ms: int) -> None:
        self._slab = slab
        self._lock = Lock()
        self._minute: Window[_Reading] = Window(1000, MINUTE_MS)
        self._hour: Window[_Reading] = Window(10_000, HOUR_MS)
        self.since = wall_now_ms // 1000
        """In s since the epoch."""

    def look(self, now_ms: int) -> None:
        """Note the counters as of now."""
        reading = self._read(now_ms)
        with self._lock:
            self._minute.add(reading)
            self._hour.add(reading)

    def _read(self, now_ms: int) -> _Reading:
        """What was received is read last: no message may seem to be done with before."""
        return _Reading(
            now_ms,
            total(self._slab, Counter.MsgDelivered),
            self._discarded(),
            tuple(read_delays(self._slab)[0]),
            total(self._slab, Counter.MsgReceived),
            total(self._slab, Counter.MsgCopyLost),
        )

    def _discarded(self) -> tuple[int, ...]:
        return tuple(total(self._slab, discarded(reason)) for reason in _REASONS)

    def lost_lately(self) -> dict[DiscardReason, int]:
        """Messages discarded within the last minute, by reason; reasons without any are left out."""
        now = self._discarded()
        with self._lock:
            before = self._minute.first
        return _by_reason(minus(now, before.discarded if before else now))

    def copies_lost_lately(self) -> int:
        """Copies of messages that were not written within the last hour: their file lacks them for good."""
        now = total(self._slab, Counter.MsgCopyLost)
        with self._lock:
            before = self._hour.first
        return now - before.copies_lost if before else 0

    def last_seconds(self, now_ms: int, seconds: int) -> Spell:
        """What happened in so many seconds, at most a minute."""
        now = self._read(now_ms)
        with self._lock:
            befores = [before for before, _ in self._minute.pairs() if now_ms - before.at_ms <= 1000 * seconds]
            before = befores[0] if befores else self._minute.first
        return _since(before or now, now)

    def last_hour(self, now_ms: int) -> Spell:
        """What happened within the hour."""
        now = self._read(now_ms)
        with self._lock:
            before = self._hour.first
        return _since(before or now, now)

    def series(self, now_ms: int) -> dict[str, Series]:
        """The columns: `minute` and `hour`."""
        with self._lock:
            return {name: _series(window, now_ms) for name, window in (("minute", self._minute), ("hour", self._hour))}


def _by_reason(counts: Iterable[int]) -> dict[DiscardReason, int]:
    return {reason: count for reason, count in zip(_REASONS, counts, strict=True) if count > 0}


def _since(before: _Reading, now: _Reading) -> Spell:
    ms = now.at_ms - before.at_ms
    reasons = _by_reason(minus(now.discarded, before.discarded))
    delays = minus(now.delays, before.delays)
    return Spell(
        ms,
        per_s(now.received - before.received, ms),
        per_s(now.delivered - before.delivered, ms),
        per_s(sum(reasons.values()), ms),
        reasons,
        Latency(sum(delays), *(delay_ms(delays, share) for share in (0.5, 0.9, 0.99))),
    )


def _series(window: Window[_Reading], now_ms: int) -> Series:
    spells = [(now, _since(before, now)) for before, now in window.pairs()]
    return Series(
        step_s=window.step_ms // 1000,
        span_s=window.span_ms // 1000,
        age_s=[round((now_ms - now.at_ms) / 1000, 1) for now, _ in spells],
        received=[spell.received for _, spell in spells],
        delivered=[spell.delivered for _, spell in spells],
        discarded=[spell.discarded for _, spell in spells],
        held=[now.held for now, _ in spells],
        p50_ms=[spell.latency.p50_ms for _, spell in spells],
        p99_ms=[spell.latency.p99_ms for _, spell in spells],
    )
