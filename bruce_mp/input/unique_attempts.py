"""Unique attempts: the daemon remembers their names, and completes no second attempt of a name.

A worker stores in the registry (`slab/attempt_registry.py`) that an attempt is prepared, completed and settled, and
answers the inquiries of clients from it.  A unique attempt has a separate flush group, which counts its outcomes.
Names of different users are different.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from bruce_mp.errors import SlabError
from bruce_mp.protocol.client.fence import EndReason
from bruce_mp.protocol.client.inquiry import (
    AttemptOutcome,
    InquiryAnswer,
    decode_inquiry,
    encode_inquiry_answer,
)
from bruce_mp.slab.attempt_registry import AttemptState, RememberedAttempt

if TYPE_CHECKING:
    from bruce_mp.input.flush_groups import FlushGroup, FlushGroupOwner, FlushGroups, Outcomes
    from bruce_mp.ipc.loop import Loop
    from bruce_mp.protocol.client.fence import AttemptBegin
    from bruce_mp.protocol.client.inquiry import Inquiry
    from bruce_mp.slab.attempt_registry import AttemptId
    from bruce_mp.slab.spill import SpillDirectory

__all__ = ["SettlementTimer", "UniqueAttempts"]

log = logging.getLogger(__name__)
_FEATURES: Final = frozenset({"headers", "unique"})
"""The optional parts of the protocol that this daemon understands; a client learns them from an answer."""
_MIN_INTERVAL_S: Final = 0.01
_MAX_INTERVAL_S: Final = 0.5
"""Interval of the check for settled attempts; it doubles while none settles."""
_UNREADABLE_SINCE_MS: Final = 2**63 - 1
"""The time in an answer since when attempts are remembered, if the registry cannot be read: then none is."""
_OUTCOME_OF_STATE: Final = {
    AttemptState.PREPARED: AttemptOutcome.PENDING,
    AttemptState.COMPLETED: AttemptOutcome.PENDING,
    AttemptState.SETTLED: AttemptOutcome.SETTLED,
    AttemptState.UNCOUNTED: AttemptOutcome.UNCOUNTED,
}


class NamedAttempt(Protocol):
    """The fields of a fenced attempt (`fenced_attempts.py`) that this module needs."""

    @property
    def name(self) -> bytes: ...
    @property
    def number(self) -> int: ...
    @property
    def flush_group(self) -> FlushGroup: ...
    @property
    def is_unique(self) -> bool: ...


class UniqueAttempts:
    """The unique attempts of the worker with this row.

    `limits` has the largest message with its size field, and the largest sum of key, value and headers, for answers.
    """

    def __init__(
        self,
        row: int,
        directory: SpillDirectory,
        outcomes: Outcomes,
        flush_groups: FlushGroups,
        limits: tuple[int, int],
    ) -> None:
        self._row = row
        self._slab_id = directory.slab_id
        self._registry = directory.registry
        self._outcomes = outcomes
        self._flush_groups = flush_groups
        self._limits = limits
        self._unsettled: dict[AttemptId, FlushGroup] = {}

    def apply_limits(self, limits: tuple[int, int]) -> None:
        self._limits = limits

    @property
    def has_unsettled(self) -> bool:
        """Return True if a completed attempt has messages without outcomes."""
        return bool(self._unsettled)

    # --- begin and end -----------------------------------------------------------------------------------------------

    def on_begin(self, client: FlushGroupOwner, begin: AttemptBegin) -> None:
        """Start a flush group for the attempt alone, if it is unique."""
        if begin.is_unique:
            self._flush_groups.start_next(client)

    def prepare(self, client: FlushGroupOwner, attempt: NamedAttempt) -> tuple[EndReason, str] | None:
        """Store that an attempt is about to complete; return (reason, explanation) if the daemon must end it instead.

        The registry stores no attempt without messages, because a repetition of an empty attempt does no harm.
        """
        if not attempt.is_unique or not attempt.flush_group.received:
            return None
        try:
            earlier = self._registry.prepare(
                RememberedAttempt(
                    _key(client, attempt.name), self._id(attempt), AttemptState.PREPARED, attempt.flush_group.received
                )
            )
        except (OSError, SlabError) as error:
            return EndReason.SPILL_FAILED, f"its name cannot be stored: {error}".rstrip(".")
        if earlier is None:
            return None
        explanation = (
            f"an earlier attempt of this name with {earlier.messages} messages is complete. An inquiry returns its "
            "outcome"
        )
        return EndReason.NAME_IN_USE, explanation

    def on_completed(self, client: FlushGroupOwner, attempt: NamedAttempt) -> None:
        """Store that an attempt is completed, and wait for the outcomes of its messages."""
        if not attempt.is_unique or not attempt.flush_group.received:
            return
        self._flush_groups.start_next(client)
        # A failure loses nothing: the settlement is stored later, and recovery finds the completion in the row.
        with suppress(OSError, SlabError):
            self._registry.store(self._id(attempt), AttemptState.COMPLETED)
        self._unsettled[self._id(attempt)] = attempt.flush_group

    def settle_finished(self) -> bool:
        """Store the counts of attempts whose messages have outcomes.

        Return True if there were such attempts and all are stored.
        """
        self._outcomes.count_outcomes()
        finished = [(attempt, group) for attempt, group in self._unsettled.items() if not group.outstanding]
        for attempt, group in finished:
            try:
                self._registry.store(attempt, AttemptState.SETTLED, group.delivered, group.discards)
            except (OSError, SlabError) as error:
                _log_error("written", error)
                return False
            del self._unsettled[attempt]
        return bool(finished)

    def _id(self, attempt: NamedAttempt) -> AttemptId:
        return self._slab_id, self._row, attempt.number

    # --- inquiries ---------------------------------------------------------------------------------------------------

    def answer(self, client: FlushGroupOwner, data: bytes) -> bytes | None:
        """Return the answer to an inquiry; None for a malformed one."""
        inquiry = decode_inquiry(data)
        if inquiry is None:
            return None
        try:
            answer = self._find(client, inquiry)
        except (OSError, SlabError) as error:
            _log_error("read", error)
            answer = self._empty_answer(inquiry, AttemptOutcome.UNAVAILABLE, _UNREADABLE_SINCE_MS)
        return encode_inquiry_answer(answer)

    def _find(self, client: FlushGroupOwner, inquiry: Inquiry) -> InquiryAnswer:
        found = self._registry.find(_key(client, inquiry.name)) if inquiry.name else None
        answer = self._empty_answer(inquiry, AttemptOutcome.NONE, self._registry.since_ms())
        if found is None:
            return answer
        outcome = AttemptOutcome.LOST if self._registry.is_lost(found) else _OUTCOME_OF_STATE[found.state]
        return replace(
            answer, outcome=outcome, received=found.messages, delivered=found.delivered, reasons=found.discards
        )

    def _empty_answer(self, inquiry: Inquiry, outcome: AttemptOutcome, since_ms: int) -> InquiryAnswer:
        return InquiryAnswer(inquiry.token, outcome, since_ms, *self._limits, features=_FEATURES)


def _log_error(act: str, error: Exception) -> None:
    log.error(  # for "about" see telemetry/logs.py
        "The registry of attempts cannot be %s: %s.", act, str(error).rstrip("."), extra={"about": "attempt registry"}
    )


def _key(client: FlushGroupOwner, name: bytes) -> str:
    """Return the key of a name in the registry: users cannot use up each other's names."""
    return f"{client.user}:{name.decode('latin-1')}"


class SettlementTimer:
    """Polls for the outcomes of unique attempts, at intervals that double while none is settled."""

    def __init__(self, loop: Loop, unique: UniqueAttempts) -> None:
        self._loop = loop
        self._unique = unique
        self._interval_s = _MIN_INTERVAL_S
        self._is_running = False

    def start(self) -> None:
        """Poll while an attempt has messages without outcomes."""
        self._interval_s = _MIN_INTERVAL_S
        if not self._is_running:
            self._schedule()

    def _poll(self) -> None:
        has_settled = self._unique.settle_finished()
        self._interval_s = _MIN_INTERVAL_S if has_settled else min(2 * self._interval_s, _MAX_INTERVAL_S)
        self._schedule()

    def _schedule(self) -> None:
        self._is_running = self._unique.has_unsettled
        if self._is_running:
            self._loop.call_later(self._interval_s, self._poll)
