"""The timestamp policy of an input, and warnings about clients with wrong clocks.

The per-message functions of `bruce_mp/kernels` compare and replace timestamps.  This module gives them the *window* of
each topic: how far a timestamp may lie before or after the arrival of its message.  It also counts the replaced
timestamps, and logs the senders.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.discards.reporter import command_of
from bruce_mp.kernels import TimestampWindow
from bruce_mp.slab.landing_zone import NO_USER
from bruce_mp.telemetry.clock import steady_ms, wall_ms
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.config.inputs import TimestampPolicy
    from bruce_mp.config.model import Config
    from bruce_mp.discards.reporter import PeerCredentials
    from bruce_mp.kernels import Lanes, TopicReplacements, WindowOfTopic
    from bruce_mp.slab.rows import ProcessRow

__all__ = ["ClockWatch", "wall_offset_ms", "warn_about_clock", "windows_for_datagrams", "windows_for_streams"]

log = logging.getLogger(__name__)
_SEARCH_MS: Final = 1000
"""Longest search for a sender with a wrong clock (see `ClockWatch`)."""
_SEARCH_INTERVAL_MS: Final = 30_000
"""Shortest time from the start of a search to the start of the next one."""


def windows_for_datagrams(config: Config) -> WindowOfTopic:
    return _windows(config, config.input.unix_datagram.timestamps)


def windows_for_streams(config: Config) -> WindowOfTopic:
    return _windows(config, config.input.streams.timestamps)


def _windows(config: Config, input_policy: TimestampPolicy | None) -> WindowOfTopic:
    by_policy: dict[TimestampPolicy, TimestampWindow | None] = {
        "client": None,  # replaces no timestamp
        "arrival": TimestampWindow(0, 0, is_clamp=False),  # replaces every timestamp
        "clamp": TimestampWindow(config.timestamps.before_max_ms, config.timestamps.after_max_ms, is_clamp=True),
    }
    return lambda topic: by_policy[config.timestamp_policy_for(topic, input_policy)]


def wall_offset_ms() -> int:
    """Return the time of the wall clock minus the time of the steady clock, in ms.

    The result changes when the wall clock is set, so callers do not keep it.
    """
    return wall_ms() - steady_ms()


def warn_about_clock(
    found: TopicReplacements, peer: PeerCredentials | None, *, unknown_sender: str = "a sender of datagrams"
) -> None:
    """Log that timestamps of a topic were replaced, and name the sender; `unknown_sender` is for a `peer` of None."""
    topic = found.topic.decode("utf-8", "backslashreplace")
    log.warning(
        "Timestamps of topic %s from %s are too far from the arrival of their messages, such as %d: %d messages get "
        "the time of their arrival. Correct the sender: a timestamp is the present time in ms since 1970. If older "
        'times are intended, set timestamps.topics."%s" = "client".',
        topic or "(various)", _Sender(peer, unknown_sender), found.timestamp, found.message_count, topic or "NAME",
        extra={"about": (found.topic, None if peer is None else peer.uid)},  # limits repetitions: see telemetry/logs.py
    )  # fmt: skip


class _Sender(NamedTuple):
    """A sender in a log line.  `logging` calls `__str__`, which reads a file in /proc, only if it writes the line."""

    peer: PeerCredentials | None
    unknown_sender: str
    """The text for a sender without credentials."""

    def __str__(self) -> str:
        if self.peer is None or self.peer.uid == NO_USER:
            return self.unknown_sender
        return f"process {self.peer.pid} ({command_of(self.peer.pid) or 'gone'}) of user {self.peer.uid}"


class ClockWatch:
    """Counts the replaced timestamps of datagrams, and finds a sender with a wrong clock.

    Credentials cost CPU time for each datagram, so the input requests them only during a search.  A search begins after
    a timestamp of an unknown sender was replaced.  It ends when the sender of such a timestamp is found, or after
    `_SEARCH_MS`.
    """

    def __init__(self, lanes: Lanes, row: ProcessRow) -> None:
        self._lanes = lanes
        self._row = row
        self._search_until_ms = 0
        """Time at which the present or last search ends."""
        self._next_search_ms = 0
        """Earliest time at which the next search begins."""

    def needs_credentials(self, now_ms: int) -> bool:
        """Return True if the input should receive the next datagrams with the credentials of their senders."""
        return now_ms < self._search_until_ms

    def record_replaced_timestamps(self, peer_of: Callable[[int], PeerCredentials | None], now_ms: int) -> None:
        """Count and log the timestamps that were replaced since the last call.

        `peer_of(arrival_number)` returns the sender of a message; None = unknown.
        """
        for found in self._lanes.drain_replaced():
            self._row.add(Counter.InputAgentReplaceTimestamp, found.message_count)
            peer = peer_of(found.arrival)
            warn_about_clock(found, peer)
            if peer is not None:
                self._search_until_ms = 0
            elif now_ms >= self._next_search_ms:
                self._search_until_ms, self._next_search_ms = now_ms + _SEARCH_MS, now_ms + _SEARCH_INTERVAL_MS
