"""Limits on the memory for unfinished messages of stream clients, in total and for each user.

A message is *unfinished* while the worker has received only its beginning.  A message longer than `MIN_READ` needs a
*grant* of memory for its whole size before the worker reads more of it.  A message with a grant can always be
completed, because it needs no further memory.  If there is no room for a grant, the worker does not read the connection
until its turn comes.  A message without a grant takes memory only for the bytes of one read.  These bytes have separate
limits, of the same size; the worker closes a connection that would exceed one.  It also closes a connection that stops
in the middle of a message.

An unfinished message does not count as received, so closing its connection loses no accepted message.
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
"""The worker reads a connection only if the common buffer has this much room, in bytes.

If the buffer has less room, the worker first admits the messages in it.  A longer message bypasses the buffer.
"""


@unique
class ReadDecision(Enum):
    """The treatment of a connection until its unfinished message is complete."""

    READ = auto()
    WAIT = auto()
    """Do not read the connection before `grant_waiting` returns its client."""
    CLOSE = auto()


class UnfinishedLimits(NamedTuple):
    """The limits of one worker, in bytes and ms."""

    total: int
    per_user: int
    timeout_ms: int

    @classmethod
    def of(cls, config: Input) -> UnfinishedLimits:
        """Divide the configured sizes among the workers; each limit has room for one message of the largest size."""
        streams, largest = config.streams, config.max_stream_size + 4  # 4 bytes for the size field
        total = max(largest, streams.max_unfinished_size // streams.worker_count)
        per_user = max(largest, streams.max_unfinished_size_per_user // streams.worker_count)
        return cls(total, per_user, streams.unfinished_timeout_s * 1000)


@dataclass(slots=True)
class _Usage:
    """The memory of an unfinished message.  `size` is that of the whole message with a grant, else of its beginning."""

    size: int
    is_granted: bool
    last_byte_ms: int
    """Time of the last received byte."""


class UnfinishedMessages:
    """The unfinished messages of a worker's clients.

    A client with `is_blocked` is not included, because its messages are whole and wait for something else.
    """

    def __init__(self, limits: UnfinishedLimits) -> None:
        self._limits = limits
        self._usages: dict[StreamClientState, _Usage] = {}
        self._waiting: dict[StreamClientState, None] = {}
        """Clients that wait for a grant, the longest wait first; a dictionary, because sets have no order."""
        self._totals: Tally[bool] = Tally()
        """Bytes with a grant (key True), and bytes without a grant (key False)."""
        self._by_origin: Tally[tuple[bool, int | str]] = Tally()
        """The same by user, or address of a TCP client; the key is (has a grant, user or address)."""

    def apply_config(self, limits: UnfinishedLimits) -> None:
        self._limits = limits

    def update(self, client: StreamClientState, now_ms: int) -> ReadDecision:
        """Record the bytes that a client has sent of its unfinished message, and decide about its connection."""
        known = self._usages.get(client)
        if not client.unprocessed or client.is_blocked:  # no unfinished message, or whole messages that wait
            if known is not None:
                self.remove(client)
            return ReadDecision.READ
        if known is not None and known.is_granted and known.size == client.wanted:  # the grant is for this message
            known.last_byte_ms = now_ms
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
        """Give grants to waiting clients, and return these clients.

        A client that exceeds the limit of its user stops no clients of other users.
        """
        granted = []
        for client in list(self._waiting):
            if self._totals[True] + client.wanted > self._limits.total:
                break  # do not skip this client, because small messages could then starve a large one
            if self._fits(client, client.wanted, is_granted=True):
                self.remove(client)
                self._add(client, client.wanted, now_ms, is_granted=True)
                granted.append(client)
        return granted

    def find_idle(self, now_ms: int) -> list[StreamClientState]:
        """Return the clients with a message that has not grown for longer than the time limit.

        Clients that wait for a grant are not included, because the worker does not read their connections.
        """
        limit_ms = now_ms - self._limits.timeout_ms
        return [
            client
            for client, usage in self._usages.items()
            if usage.last_byte_ms < limit_ms and client not in self._waiting
        ]

    def _add(self, client: StreamClientState, size: int, now_ms: int, *, is_granted: bool) -> bool:
        """Record the memory of a client's message; return False, and record nothing, if that exceeds a limit."""
        if not self._fits(client, size, is_granted=is_granted):
            return False
        self._usages[client] = _Usage(size, is_granted, now_ms)
        self._totals[is_granted] += size
        self._by_origin[is_granted, client.origin] += size
        return True

    def _fits(self, client: StreamClientState, size: int, *, is_granted: bool) -> bool:
        fits_user = self._by_origin[is_granted, client.origin] + size <= self._limits.per_user
        return fits_user and self._totals[is_granted] + size <= self._limits.total
