"""Unique attempts: the daemon remembers their names, and completes only one attempt of each name and user.

A worker stores in the registry (`slab/attempt_registry.py`) that an attempt is *prepared* (about to complete), then
*completed*, and at last *settled* (all its messages have outcomes).  A client sends an *inquiry* to learn the outcome
of an attempt by name, and the worker answers it from the registry.  The messages of a unique attempt are a flush group.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from bruce_mp.errors import SlabError
from bruce_mp.pipeline.stream_recovery import resolve_unique_attempts
from bruce_mp.protocol.client.fence import EndReason
from bruce_mp.protocol.client.inquiry import (
    AttemptOutcome,
    InquiryAnswer,
    decode_inquiry,
    encode_inquiry_answer,
)
from bruce_mp.slab.attempt_registry import AttemptState, RememberedAttempt

if TYPE_CHECKING:
    from bruce_mp.input.flush_groups import FlushGroup, FlushGroupOwner, FlushGroups, OutcomeCounter
    from bruce_mp.ipc.loop import Loop
    from bruce_mp.protocol.client.fence import AttemptBegin
    from bruce_mp.protocol.client.inquiry import Inquiry
    from bruce_mp.slab.attempt_registry import AttemptId
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.spill import SpillDirectory

__all__ = ["SettlementTimer", "UniqueAttempts"]

log = logging.getLogger(__name__)
_FEATURES: Final = frozenset({"headers", "unique"})
"""The optional parts of the protocol that this daemon supports; the answer to an inquiry lists them."""
_MIN_INTERVAL_S: Final = 0.01
_MAX_INTERVAL_S: Final = 0.5
"""Bounds of the interval between two checks for settled attempts."""
_UNREADABLE_SINCE_MS: Final = 2**63 - 1
"""Value of `InquiryAnswer.since_ms` if the registry cannot be read: the daemon then remembers no attempt."""
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

    `limits` has `largest_message` and `largest_payload` for the answers to inquiries (see `InquiryAnswer`).
    """

    def __init__(
        self,
        slab: Slab,
        row: int,
        directory: SpillDirectory,
        outcome_counter: OutcomeCounter,
        flush_groups: FlushGroups,
        *,
        limits: tuple[int, int],
    ) -> None:
        self._slab = slab
        self._row = row
        self._directory = directory
        self._slab_id = directory.slab_id
        self._registry = directory.registry
        self._outcome_counter = outcome_counter
        self._flush_groups = flush_groups
        self._limits = limits
        self._unsettled: dict[AttemptId, FlushGroup] = {}
        """The completed attempts that have messages without outcomes."""
        self.has_resolved = False
        """True after the registry has the outcomes of the attempts of a dead predecessor; recovery sets it."""
        self._unstored: AttemptId | None = None
        """The last completed attempt, if the registry has only that it is prepared."""

    def apply_limits(self, limits: tuple[int, int]) -> None:
        self._limits = limits

    @property
    def must_poll(self) -> bool:
        """Return True if `settle_finished` has to be called again."""
        return bool(self._unsettled) or not self.has_resolved

    # --- begin and end -----------------------------------------------------------------------------------------------

    def on_begin(self, client: FlushGroupOwner, begin: AttemptBegin) -> None:
        """Start a flush group for the attempt alone, if it is unique."""
        if begin.is_unique:
            self._flush_groups.start_next(client)

    def prepare(self, client: FlushGroupOwner, attempt: NamedAttempt) -> tuple[EndReason, str] | None:
        """Store that a unique attempt is about to complete; call this also before another attempt completes.

        Return None if the attempt may complete; if the daemon must end it instead, return (reason, explanation).  An
        attempt without messages is not stored, because its repetition does no harm.
        """
        try:
            self._store_overdue()
            if not attempt.is_unique or not attempt.flush_group.received:
                return None
            key, received = _key_of(client, attempt.name), attempt.flush_group.received
            prepared = RememberedAttempt(key, self._id_of(attempt), AttemptState.PREPARED, received)
            earlier = self._registry.prepare(prepared)
        except (OSError, SlabError) as error:
            return EndReason.SPILL_FAILED, f"the registry of unique attempts cannot be written: {error}".rstrip(".")
        if earlier is None:
            return None
        explanation = (
            f"an earlier attempt of this name with {earlier.message_count} messages is complete. An inquiry returns "
            "its outcome"
        )
        return EndReason.NAME_IN_USE, explanation

    def on_completed(self, client: FlushGroupOwner, attempt: NamedAttempt) -> None:
        """Store that a unique attempt is completed, and begin to wait for the outcomes of its messages."""
        if not attempt.is_unique or not attempt.flush_group.received:
            return
        self._flush_groups.start_next(client)
        self._unsettled[self._id_of(attempt)] = attempt.flush_group
        self._unstored = self._id_of(attempt)
        # If this fails, `settle_finished` or `prepare` stores the attempt later; after a crash, recovery finds in the
        # row that the attempt was completed.
        with suppress(OSError, SlabError):
            self._store_overdue()

    def _store_overdue(self) -> None:
        """Store what the registry lacks: outcomes for the predecessor, and that the last attempt is completed.

        No further attempt may complete before: it would replace the last number in the row, and recovery would find
        that the attempt of this number was never completed.
        """
        if not self.has_resolved:
            resolve_unique_attempts(self._slab, self._row, self._directory)
            self.has_resolved = True
        if self._unstored is not None:
            self._registry.store(self._unstored, AttemptState.COMPLETED)
            self._unstored = None

    def settle_finished(self) -> bool:
        """Store the counts of the attempts with outcomes for all messages, and what could not be stored earlier.

        Return True if there were such attempts, and all of them could be stored.
        """
        self._outcome_counter.count_outcomes()
        finished = [(attempt, group) for attempt, group in self._unsettled.items() if not group.outstanding_count]
        try:
            self._store_overdue()
            for attempt, group in finished:
                self._registry.store(attempt, AttemptState.SETTLED, group.delivered, group.discards)
                del self._unsettled[attempt]
        except (OSError, SlabError) as error:
            _log_error("written", error)
            return False
        return bool(finished)

    def _id_of(self, attempt: NamedAttempt) -> AttemptId:
        return self._slab_id, self._row, attempt.number

    # --- inquiries ---------------------------------------------------------------------------------------------------

    def answer(self, client: FlushGroupOwner, data: bytes) -> bytes | None:
        """Return the answer to an inquiry; None for a malformed one."""
        inquiry = decode_inquiry(data)
        if inquiry is None:
            return None
        try:
            answer = self._look_up(client, inquiry)
        except (OSError, SlabError) as error:
            _log_error("read", error)
            answer = self._empty_answer(inquiry, AttemptOutcome.UNAVAILABLE, _UNREADABLE_SINCE_MS)
        return encode_inquiry_answer(answer)

    def _look_up(self, client: FlushGroupOwner, inquiry: Inquiry) -> InquiryAnswer:
        found = self._registry.find(_key_of(client, inquiry.name)) if inquiry.name else None
        answer = self._empty_answer(inquiry, AttemptOutcome.NONE, self._registry.no_entry_missing_since_ms())
        if found is None:
            return answer
        outcome = AttemptOutcome.LOST if self._registry.is_lost(found) else _OUTCOME_OF_STATE[found.state]
        return replace(
            answer, outcome=outcome, received=found.message_count, delivered=found.delivered, reasons=found.discards
        )

    def _empty_answer(self, inquiry: Inquiry, outcome: AttemptOutcome, since_ms: int) -> InquiryAnswer:
        """Return an answer without counts of messages."""
        return InquiryAnswer(inquiry.token, outcome, since_ms, *self._limits, features=_FEATURES)


def _log_error(participle: str, error: Exception) -> None:
    """Log that the registry cannot be "read" or "written"."""
    text = "The registry of attempts cannot be %s: %s."
    log.error(text, participle, str(error).rstrip("."), extra={"about": "attempt registry"})  # see telemetry/logs.py


def _key_of(client: FlushGroupOwner, name: bytes) -> str:
    """Return the registry's key for a name.  It contains the user, so that two users may use the same name."""
    return f"{client.user}:{name.decode('latin-1')}"


class SettlementTimer:
    """Polls for settled attempts, at intervals that double while no attempt is settled.

    The first poll, at the worker's start, resolves the attempts of a dead predecessor if recovery could not.
    """

    def __init__(self, loop: Loop, unique: UniqueAttempts) -> None:
        self._loop = loop
        self._unique = unique
        self._interval_s = _MIN_INTERVAL_S
        self._is_running = False

    def start(self) -> None:
        """Poll as long as an attempt has messages without outcomes, or the registry cannot be written."""
        self._interval_s = _MIN_INTERVAL_S
        if not self._is_running:
            self._schedule()

    def _poll(self) -> None:
        has_settled = self._unique.settle_finished()
        self._interval_s = _MIN_INTERVAL_S if has_settled else min(2 * self._interval_s, _MAX_INTERVAL_S)
        self._schedule()

    def _schedule(self) -> None:
        self._is_running = self._unique.must_poll
        if self._is_running:
            self._loop.call_later(self._interval_s, self._poll)
