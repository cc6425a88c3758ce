"""Limits on the memory for unfinished messages of stream clients, in total and for each user.

A message longer than `MIN_READ` needs a grant for its whole size before the worker reads more of it. So a granted
message can always be completed: the holder of a grant needs no other one. If a grant finds no room, the connection
waits, unread, for its turn. Bytes without a grant, at most one read of each connection, have limits of the same size;
the worker closes a connection that exceeds one. It also closes a connection that stops in the middle of a message.

None of these messages is received yet, so no limit loses an accepted message.
"""

from __future__ import annotations

from collections import Counter as Tally
from dataclasses import dataclass
from enum import Enum, auto, unique
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from bruce_mp.config.inputs import Input
    from bruce_mp.input.stream_client import StreamClientState

__all__ = ["MIN_READ", "ReadDecision", "UnfinishedLimits", "UnfinishedMessages"]

MIN_READ: Final = 64 << 10
"""The least room in the common buffer for a read; with less, the worker first handles the messages in the buffer.

A message that is longer bypasses the buffer.
"""


@unique
class ReadDecision(Enum):
    """The treatment of a connection until its unfinished message is complete."""

    READ = auto()
    WAIT = auto()
    CLOSE = auto()


class UnfinishedLimits(NamedTuple):
    """The limits of one worker, in bytes and ms."""

    total: int
    per_user: int
    timeout_ms: int

    @classmethod
    def of(cls, config: Input) -> UnfinishedLimits:
        """Divide the configured sizes among the workers. One message of any size always fits."""
        streams, largest = config.streams, config.max_stream_size + 4  # with the size field
        total = max(largest, streams.max_unfinished_size // streams.worker_count)
        per_user = max(largest, streams.max_unfinished_size_per_user // streams.worker_count)
        return cls(total, per_user, streams.unfinished_timeout_s * 1000)


@dataclass(slots=True)
class _Usage:
    """The memory of an unfinished message: the whole message with a grant, else the received bytes."""

    size: int
    is_granted: bool
    active_ms: int
    """Time of the last received byte."""


class UnfinishedMessages:
    """The unfinished messages of a worker's clients, without clients that are blocked (`is_blocked`)."""

    def __init__(self, limits: UnfinishedLimits) -> None:
        self._limits = limits
        self._usages: dict[StreamClientState, _Usage] = {}
        self._waiting: dict[StreamClientState, None] = {}
        """Clients that wait for a grant, in order; a dictionary, because sets have no order."""
        self._totals: Tally[bool] = Tally()
        """Bytes with a grant (True), and without one (False)."""
        self._by_origin: Tally[tuple[bool, int | str]] = Tally()
        """Bytes with a grant (True) or without one (False), by user or address of a TCP client."""

    def apply_config(self, limits: UnfinishedLimits) -> None:
        self._limits = limits

    def update(self, client: StreamClientState, now_ms: int) -> ReadDecision:
        """Record the client's received bytes, and decide about its connection."""
        known = self._usages.get(client)
        if not client.unprocessed or client.is_blocked:  # no unfinished message, or whole messages that wait
            if known is not None:
                self.remove(client)
            return ReadDecision.READ
        if known is not None and known.is_granted and known.size == client.wanted:
            known.active_ms = now_ms
            return ReadDecision.READ
        self.remove(client)
        if client.wanted > MIN_READ and self._add(client, client.wanted, now_ms, is_granted=True):
            return ReadDecision.READ
        if not self._add(client, len(client.unprocessed), now_ms, is_granted=False):
            return ReadDecision.CLOSE
        if client.wanted <= MIN_READ:
            return ReadDecision.READ
        self._waiting[client] = None
        return ReadDecision.WAIT

    def remove(self, client: StreamClientState) -> None:
        """Remove a client with a complete message or a closed connection."""
        self._waiting.pop(client, None)
        usage = self._usages.pop(client, None)
        if usage is not None:
            self._totals[usage.is_granted] -= usage.size
            key = usage.is_granted, client.origin
            self._by_origin[key] -= usage.size
            if not self._by_origin[key]:
                del self._by_origin[key]

    def grant_waiting(self, now_ms: int) -> list[StreamClientState]:
        """Give grants to waiting clients, and return these clients; a user without room does not stop others."""
        granted = []
        for client in list(self._waiting):
            if self._totals[True] + client.wanted > self._limits.total:
                break  # in order, so that small messages cannot starve a large one
            if self._fits(client, client.wanted, is_granted=True):
                self.remove(client)
                self._add(client, client.wanted, now_ms, is_granted=True)
                granted.append(client)
        return granted

    def find_idle(self, now_ms: int) -> list[StreamClientState]:
        """Return the clients whose message has not grown within the time limit, except those that wait unread."""
        since_ms = now_ms - self._limits.timeout_ms
        return [
            client
            for client, usage in self._usages.items()
            if usage.active_ms < since_ms and client not in self._waiting
        ]

    def _add(self, client: StreamClientState, size: int, now_ms: int, *, is_granted: bool) -> bool:
        if not self._fits(client, size, is_granted=is_granted):
            return False
        self._usages[client] = _Usage(size, is_granted, now_ms)
        self._totals[is_granted] += size
        self._by_origin[is_granted, client.origin] += size
        return True

    def _fits(self, client: StreamClientState, size: int, *, is_granted: bool) -> bool:
        fits_user = self._by_origin[is_granted, client.origin] + size <= self._limits.per_user
        return fits_user and self._totals[is_granted] + size <= self._limits.total
