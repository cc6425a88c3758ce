"""The allow list and the quotas of one input process: its *rules*.

If the input requests it, the kernel stores the credentials of each sender beside the datagram in the landing zone.  An
input without rules requests credentials only to find senders with wrong clocks (`timestamps.py`).  If an input dies,
its successor applies its own rules to the datagrams that it finds in the landing zone, with the stored credentials.
Datagrams that the dead input had appended to lanes stay admitted.
"""

from __future__ import annotations

import logging
from collections import Counter
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
"""Interval for the sums on the status page if there is no quota; otherwise the quota's interval is used."""


class SenderRules(NamedTuple):
    """The rules of an input; `section` is the name of the configuration section that has the allow list.

    `allow_list` is None if all users are allowed; `limits` is None if there are no quotas.
    """

    section: str
    allow_list: AllowList | None
    limits: QuotaLimits | None

    @property
    def is_active(self) -> bool:
        return self.allow_list is not None or self.limits is not None


def rules_for_datagrams(config: Input) -> SenderRules:
    return SenderRules("input.unix_datagram", allow_list_of(config.unix_datagram), quota_limits(config.quota))


def rules_for_streams(config: Input) -> SenderRules:
    return SenderRules("input.unix_stream", allow_list_of(config.unix_stream), quota_limits(config.quota))


class SenderQuotas:
    """The rules of the input with row `owner`, and its counts of messages by user.

    A user's quota is for all inputs together; `input_rows` has their rows.  Times are in ms of the steady clock.
    """

    def __init__(self, rules: SenderRules, slab: Slab, owner: int, input_rows: Sequence[int]) -> None:
        self.apply_config(rules)
        self._table = SenderTable(slab, owner, input_rows)

    def apply_config(self, rules: SenderRules) -> None:
        self.rules = rules
        self.is_active = rules.is_active

    def admits(self, uid: int, gids: Iterable[int]) -> bool:
        return self.rules.allow_list is None or self.rules.allow_list.admits(uid, gids)

    def remaining(self, user: int, now_ms: int) -> int | None:
        """Return the number of further messages that a user's quota allows in this interval; None = no limit."""
        limit = None if self.rules.limits is None else self.rules.limits.limit_for(user)
        return None if limit is None else max(0, limit - self._table.received_in(user, self._interval_index(now_ms)))

    def next_interval_start_ms(self, now_ms: int) -> int:
        return (self._interval_index(now_ms) + 1) * self._interval_ms

    def record_received(self, user: int, count: int, now_ms: int) -> None:
        """Count received messages in the user's quota and on the status page."""
        self._table.record_received(user, self._interval_index(now_ms), count)
        self.add_sums(user, SenderSums(received=count), now_ms)

    def add_sums(self, user: int, sums: SenderSums, now_ms: int) -> None:
        """Add to a user's sums on the status page, which do not count toward the quota."""
        self._table.add(user, self._interval_index(now_ms), sums)

    def _interval_index(self, now_ms: int) -> int:
        return now_ms // self._interval_ms

    @property
    def _interval_ms(self) -> int:
        return _DEFAULT_INTERVAL_MS if self.rules.limits is None else self.rules.limits.interval_ms

    def warn_refused(self, uid: int, pid: int, subject: str) -> None:
        """Log that the allow list refuses a user; `subject` is "A datagram" or "A connection"."""
        section = self.rules.section
        text = "%s of user %d (process %d) was refused: %s.allow_users and %s.allow_groups do not name the user."
        log.warning(text, subject, uid, pid, section, section, extra={"about": (section, uid)})

    def warn_over_quota(self, user: int, consequence: str) -> None:
        """Log that a user exceeds its quota; `consequence` is the end of the log line."""
        sender = "TCP connections" if user == TCP_USER else f"user {user}"
        log.warning(
            "There are more messages of %s than input.quota allows: %s.", sender, consequence, extra={"about": user}
        )


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    """The refused datagrams of a batch, and the counts of the others; `senders` is None if there are no credentials."""

    senders: landing_zone.DatagramSenders | None = None
    refused: dict[int, DiscardReason] = field(default_factory=dict)
    """The reason for each refused datagram, by slot of the landing zone."""
    admitted_counts: Counter[int] = field(default_factory=Counter)
    """The number of admitted datagrams of each user."""

    def peer_of(self, slot: int) -> PeerCredentials | None:
        return None if self.senders is None else PeerCredentials(self.senders.pids[slot], self.senders.uids[slot])

    def record(self, quotas: SenderQuotas, now_ms: int) -> None:
        """Count the datagrams of the batch in the quotas and on the status page."""
        for uid, count in self.admitted_counts.items():
            quotas.record_received(uid, count, now_ms)
        uids = [] if self.senders is None else self.senders.uids
        for (uid, reason), count in Counter((uids[slot], reason) for slot, reason in self.refused.items()).items():
            is_over_quota = reason is DiscardReason.OVER_QUOTA
            not_allowed, over_quota = (0, count) if is_over_quota else (count, 0)
            sums = SenderSums(received=count, not_allowed=not_allowed, over_quota=over_quota)
            quotas.add_sums(uid, sums, now_ms)


def decide_admission(
    quotas: SenderQuotas, slab: Slab, count: int, now_ms: int, skip: Collection[int] = ()
) -> AdmissionDecision:
    """Apply the rules to the first `count` datagrams of the landing zone, except for the slots in `skip`.

    Datagrams without credentials are admitted, because the input received them before it had rules.
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
    """Return the landing slots of the datagrams of each (user, group), in ascending order, without `skip`."""
    _, uids, gids = senders
    if not skip and len(set(uids)) == len(set(gids)) == 1:  # the usual case: a single account
        return {(uids[0], gids[0]): range(count)}
    accounts: dict[tuple[int, int], list[int]] = {}
    for slot in range(count):
        if slot not in skip:
            accounts.setdefault((uids[slot], gids[slot]), []).append(slot)
    return dict(accounts)


def _apply_quota(
    quotas: SenderQuotas, decision: AdmissionDecision, uid: int, slots: Sequence[int], now_ms: int
) -> None:
    """Admit the first datagrams of `slots`, up to the user's quota, and refuse the others."""
    remaining = quotas.remaining(uid, now_ms)
    allowed_count = len(slots)
    if remaining is not None:
        # `remaining` does not include the user's datagrams with another group that this batch has admitted.
        allowed_count = min(max(0, remaining - decision.admitted_counts[uid]), len(slots))
    if allowed_count:
        decision.admitted_counts[uid] += allowed_count
    if allowed_count < len(slots):
        decision.refused.update(dict.fromkeys(slots[allowed_count:], DiscardReason.OVER_QUOTA))
        quotas.warn_over_quota(uid, "datagrams are discarded until the next interval")
