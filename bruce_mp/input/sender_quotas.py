"""Allow lists and quotas of one input process.

`SenderQuotas` applies the rules and counts messages by user; `decide_admission` applies them to the datagrams in the
landing zone.  Without rules, the input requests credentials from the kernel only to find wrong clocks.  A reload
replaces the rules.

The kernel stores the credentials of a datagram's sender beside the datagram.  A successor that finds the datagram in
the landing zone applies its rules to the same credentials.  A datagram that a predecessor copied into a record stays
admitted.
"""

from __future__ import annotations

import logging
from collections import Counter as Tally
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.config.accounts import TCP_USER, allow_list_of, quota_limits
from bruce_mp.discards.reporter import PeerCredentials
from bruce_mp.errors import DiscardReason
from bruce_mp.slab import landing_zone
from bruce_mp.slab.sender_usage import SenderSums, SenderTable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from bruce_mp.config.accounts import AllowList, QuotaLimits
    from bruce_mp.config.inputs import Input
    from bruce_mp.slab.file import Slab

__all__ = [
    "AdmissionDecision",
    "SenderQuotas",
    "SenderRules",
    "decide_admission",
    "rules_for_datagrams",
    "rules_for_streams",
]

log = logging.getLogger(__name__)
_DEFAULT_INTERVAL_MS: Final = 1000
"""Interval of the status page's sums while no quota sets one."""


class SenderRules(NamedTuple):
    """The allow list and the quotas of a listener; `section` is its name in the configuration."""

    section: str
    allowed: AllowList | None
    limits: QuotaLimits | None

    @property
    def is_active(self) -> bool:
        return self.allowed is not None or self.limits is not None


def rules_for_datagrams(config: Input) -> SenderRules:
    return SenderRules("input.unix_datagram", allow_list_of(config.unix_datagram), quota_limits(config.quota))


def rules_for_streams(config: Input) -> SenderRules:
    return SenderRules("input.unix_stream", allow_list_of(config.unix_stream), quota_limits(config.quota))


class SenderQuotas:
    """Applies the rules of the input with row `owner`, if `is_active`.  Times are in ms of the steady clock.

    A user's quota is for all inputs together; `inputs` has their rows.
    """

    def __init__(self, rules: SenderRules, slab: Slab, owner: int, inputs: Sequence[int]) -> None:
        self.apply_config(rules)
        self._table = SenderTable(slab, owner, inputs)

    def apply_config(self, rules: SenderRules) -> None:
        self.rules = rules
        self.is_active = rules.is_active

    def admits(self, uid: int, gids: Iterable[int]) -> bool:
        return self.rules.allowed is None or self.rules.allowed.admits(uid, gids)

    def remaining(self, user: int, now_ms: int) -> int | None:
        """Return the number of further messages that a user's quota admits in this interval; None without a limit."""
        limit = None if self.rules.limits is None else self.rules.limits.limit_for(user)
        return None if limit is None else max(0, limit - self._table.received_in(user, self._interval_index(now_ms)))

    def next_interval_ms(self, now_ms: int) -> int:
        return (self._interval_index(now_ms) + 1) * self._interval_ms

    def record_received(self, user: int, count: int, now_ms: int) -> None:
        """Count received messages in the user's quota and on the status page."""
        self._table.record_received(user, self._interval_index(now_ms), count)
        self.add_sums(user, SenderSums(received=count), now_ms)

    def add_sums(self, user: int, sums: SenderSums, now_ms: int) -> None:
        """Add to a user's sums on the status page only."""
        self._table.add(user, self._interval_index(now_ms), sums)

    def _interval_index(self, now_ms: int) -> int:
        return now_ms // self._interval_ms

    @property
    def _interval_ms(self) -> int:
        return _DEFAULT_INTERVAL_MS if self.rules.limits is None else self.rules.limits.interval_ms

    def warn_refused(self, uid: int, pid: int, subject: str) -> None:
        """Log the refusal of a user that no allow list names; the log limits repetitions for each user."""
        section = self.rules.section
        text = "%s of user %d (process %d) was refused: %s.allow_users and %s.allow_groups do not name the user."
        log.warning(text, subject, uid, pid, section, section, extra={"about": (section, uid)})

    def warn_over_quota(self, user: int, consequence: str) -> None:
        """Log that a user exceeds its quota; the log limits repetitions for each user."""
        sender = "TCP connections" if user == TCP_USER else f"user {user}"
        log.warning(
            "There are more messages of %s than input.quota allows: %s.", sender, consequence, extra={"about": user}
        )


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    """The admitted and refused datagrams of a batch; `senders` is None without credentials."""

    senders: landing_zone.DatagramSenders | None = None
    refused: dict[int, DiscardReason] = field(default_factory=dict)
    """Reasons of refused datagrams by slot."""
    admitted: Tally[int] = field(default_factory=Tally)
    """Numbers of admitted datagrams by user."""

    def peer_of(self, slot: int) -> PeerCredentials | None:
        return None if self.senders is None else PeerCredentials(self.senders.pids[slot], self.senders.uids[slot])

    def record(self, quotas: SenderQuotas, now_ms: int) -> None:
        """Count a landed batch for its users."""
        for uid, count in self.admitted.items():
            quotas.record_received(uid, count, now_ms)
        uids = [] if self.senders is None else self.senders.uids
        for (uid, reason), count in Tally((uids[slot], reason) for slot, reason in self.refused.items()).items():
            is_over = reason is DiscardReason.OVER_QUOTA
            sums = SenderSums(received=count, not_allowed=0 if is_over else count, over_quota=count if is_over else 0)
            quotas.add_sums(uid, sums, now_ms)


def decide_admission(
    quotas: SenderQuotas, slab: Slab, count: int, now_ms: int, skip: Collection[int] = ()
) -> AdmissionDecision:
    """Apply the rules to the first `count` datagrams of the landing zone, except for the slots in `skip`.

    Datagrams without credentials are admitted, because the input received them before it had rules.  The quota admits
    the first messages of a user in an interval.
    """
    senders = landing_zone.senders_of(slab, count)
    if senders is None:
        return AdmissionDecision()
    decision = AdmissionDecision(senders)
    for (uid, gid), slots in _slots_by_account(senders, count, skip).items():
        if quotas.admits(uid, (gid,)):
            _apply_quota(quotas, decision, uid, slots, now_ms)
        else:
            decision.refused.update(dict.fromkeys(slots, DiscardReason.SENDER_NOT_ALLOWED))
            quotas.warn_refused(uid, senders.pids[slots[0]], "A datagram")
    return decision


def _slots_by_account(
    senders: landing_zone.DatagramSenders, count: int, skip: Collection[int]
) -> dict[tuple[int, int], Sequence[int]]:
    """Return the slots of each user and group, in order."""
    _, uids, gids = senders
    if not skip and len(set(uids)) == len(set(gids)) == 1:
        return {(uids[0], gids[0]): range(count)}
    accounts: dict[tuple[int, int], list[int]] = {}
    for slot in range(count):
        if slot not in skip:
            accounts.setdefault((uids[slot], gids[slot]), []).append(slot)
    return dict(accounts)


def _apply_quota(
    quotas: SenderQuotas, decision: AdmissionDecision, uid: int, slots: Sequence[int], now_ms: int
) -> None:
    """Admit a user's first datagrams up to the quota, and refuse the others."""
    remaining = quotas.remaining(uid, now_ms)
    # The quota does not count this batch yet, in which datagrams of the user's other groups may be admitted already.
    allowed = len(slots) if remaining is None else min(max(0, remaining - decision.admitted[uid]), len(slots))
    if allowed:
        decision.admitted[uid] += allowed
    if allowed < len(slots):
        decision.refused.update(dict.fromkeys(slots[allowed:], DiscardReason.OVER_QUOTA))
        quotas.warn_over_quota(uid, "datagrams are discarded until the next interval")
