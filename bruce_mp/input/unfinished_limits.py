"""Limits on the memory for unfinished messages of stream clients, in total and for each user.

A message is *unfinished* while the worker has received only its beginning.  A message longer than `MIN_READ` needs a
*grant* of memory for its whole size before the worker reads more of it.  A message with a grant can always be
completed, because it needs no further memory.  If the limits leave no room for a grant, the worker does not read the
connection until they do; the client that has waited longest comes first.  A message without a grant takes memory only
for the bytes of one read.  Limits of the same size apply to these bytes; the worker closes a connection that would
exceed such a limit.  It also closes a connection if no byte of an unfinished message comes for `timeout_ms`.

An unfinished message does not count as received, so closing its connection loses no accepted message.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum, auto, unique
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from bruce_mp.config.inputs import Input
    from bruce_mp.input.stream_client import StreamClientState

__all__ = ["MIN_READ", "ReadDecision", "UnfinishedLimits", "UnfinishedMessages"]

MIN_READ: Final = 64 << 10
"""Room in bytes that the common buffer must have before the worker reads a connection into it.

If the buffer has less room, the worker first admits the messages in it.  A longer message is not read into the buffer.
"""


@unique
class ReadDecision(Enum):
    """What the worker does with the connection of an unfinished message."""

    READ = auto()
    WAIT = auto()
    """Do not read the connection before `grant_waiting` returns its client."""
    CLOSE = auto()


class UnfinishedLimits(NamedTuple):
    """The limits of one worker: bytes in total, bytes for each user, and ms without a received byte."""

    total: int
    per_user: int
    timeout_ms: int

    @classmethod
    def of(cls, config: Input) -> UnfinishedLimits:
        """Divide the configured sizes among the workers; each limit allows at least one message of the largest size."""
        streams, largest = config.streams, config.max_stream_size + 4  # 4 bytes for the field Size
        total = max(largest, streams.max_unfinished_size // streams.worker_count)
        per_user = max(largest, streams.max_unfinished_size_per_user // streams.worker_count)
        return cls(total, per_user, streams.unfinished_timeout_s * 1000)


@dataclass(slots=True)
class _Usage:
    """The memory of an unfinished message: with a grant, `size` is that of the whole message, else of its beginning."""

    size: int
    is_granted: bool
    last_byte_ms: int
    """Time of the last received byte."""


class UnfinishedMessages:
    """The unfinished messages of a worker's clients, except for paused clients, which have whole messages."""

    def __init__(self, limits: UnfinishedLimits) -> None:
        self._limits = limits
        self._usages: dict[StreamClientState, _Usage] = {}
        self._waiting: dict[StreamClientState, None] = {}
        """Clients that wait for a grant, the longest wait first.  A dictionary is used as an ordered set."""
        self._totals: Counter[bool] = Counter()
        """Number of bytes with a grant (key True), and without (key False)."""
        self._by_origin: Counter[tuple[bool, int | str]] = Counter()
        """The same for each `StreamClientState.origin`; the keys are (has a grant, origin)."""

    def apply_config(self, limits: UnfinishedLimits) -> list[StreamClientState]:
        """Apply reloaded limits, and return the waiting clients whose messages are too long for any grant now.

        The caller must close their connections: in the queue, they would block the clients behind them without end.
        """
        self._limits = limits
        return [client for client in self._waiting if client.full_size > min(limits.total, limits.per_user)]

    def update(self, client: StreamClientState, now_ms: int) -> ReadDecision:
        """Record the bytes that have arrived of a client's unfinished message, and decide about its connection."""
        usage = self._usages.get(client)
        if not client.unprocessed or client.is_paused:  # there is no unfinished message
            if usage is not None:
                self.remove(client)
            return ReadDecision.READ
        if usage is not None and usage.is_granted and usage.size == client.full_size:  # the grant is for this message
            usage.last_byte_ms = now_ms
            return ReadDecision.READ
        self.remove(client)
        if client.full_size > MIN_READ and self._add(client, client.full_size, now_ms, is_granted=True):
            return ReadDecision.READ
        if not self._add(client, len(client.unprocessed), now_ms, is_granted=False):
            return ReadDecision.CLOSE
        if client.full_size <= MIN_READ:
            return ReadDecision.READ
        self._waiting[client] = None
        return ReadDecision.WAIT

    def remove(self, client: StreamClientState) -> None:
        """Forget the unfinished message of a client, for example because it is complete."""
        self._waiting.pop(client, None)
        usage = self._usages.pop(client, None)
        if usage is not None:
            self._totals[usage.is_granted] -= usage.size
            key = usage.is_granted, client.origin
            self._by_origin[key] -= usage.size
            if not self._by_origin[key]:
                del self._by_origin[key]

    def grant_waiting(self, now_ms: int) -> list[StreamClientState]:
        """Give grants to waiting clients as far as the limits allow, and return these clients.

        If a user has reached its limit, clients of other users still get grants.
        """
        granted = []
        for client in list(self._waiting):
            if self._totals[True] + client.full_size > self._limits.total:
                break  # no later client may overtake, because small messages could starve a large one
            if self._fits(client, client.full_size, is_granted=True):
                self.remove(client)
                self._add(client, client.full_size, now_ms, is_granted=True)
                granted.append(client)
        return granted

    def find_idle(self, now_ms: int) -> list[StreamClientState]:
        """Return the clients that have sent no byte of their unfinished message for `timeout_ms`.

        Clients that wait for a grant are not included, because the worker does not read their connections.
        """
        earliest_ms = now_ms - self._limits.timeout_ms
        return [
            client
            for client, usage in self._usages.items()
            if usage.last_byte_ms < earliest_ms and client not in self._waiting
        ]

    def _add(self, client: StreamClientState, size: int, now_ms: int, *, is_granted: bool) -> bool:
        """Record the memory of a client's message; record nothing, and return False, if the memory exceeds a limit."""
        if not self._fits(client, size, is_granted=is_granted):
            return False
        self._usages[client] = _Usage(size, is_granted, now_ms)
        self._totals[is_granted] += size
        self._by_origin[is_granted, client.origin] += size
        return True

    def _fits(self, client: StreamClientState, size: int, *, is_granted: bool) -> bool:
        fits_user = self._by_origin[is_granted, client.origin] + size <= self._limits.per_user
        return fits_user and self._totals[is_granted] + size <= self._limits.total
