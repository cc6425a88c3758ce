"""Allow lists and quotas, as one input process applies them.

`SenderQuotas` decides and counts; `decide_admission` applies it to the datagrams in the landing zone.  Without rules,
the input does not ask the kernel for senders.  The rules are values made from the configuration and can be replaced at
any time.

The input judges a datagram by the credentials that the kernel stored beside it.  A successor that finds the datagram in
the landing zone judges it by the same credentials.  A datagram that a predecessor had copied into a record stays
admitted under any later quota.
"""

from __future__ import annotations

import logging
from collections import Counter as Tally
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.config.accounts import TCP_USER, allow_list_of, limits_of
from bruce_mp.discards.reporter import PeerCredentials
from bruce_mp.errors import DiscardReason
from bruce_mp.slab import landing
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

_LOG: Final = logging.getLogger(__name__)
_NO_WINDOW_MS: Final = 1000


class SenderRules(NamedTuple):
    """The allow list and the quotas of a listener; `section` is its name in the configuration."""

    section: str
    allowed: AllowList | None
    limits: QuotaLimits | None

    @property
    def any(self) -> bool:
        """Report if there is any rule, so that the sender matters."""
        return self.allowed is not None or self.limits is not None


def rules_for_datagrams(config: Input) -> SenderRules:
    return SenderRules("input.unix_datagram", allow_list_of(config.unix_datagram), limits_of(config.quota))


def rules_for_streams(config: Input) -> SenderRules:
    return SenderRules("input.unix_stream", allow_list_of(config.unix_stream), limits_of(config.quota))


class SenderQuotas:
    """Applies rules for the input of row `owner`.  Times are in ms of the steady clock.

    `matter` is True with rules; without them the input need not ask the kernel for senders.
    """

    def __init__(self, rules: SenderRules, slab: Slab, owner: int, inputs: Sequence[int]) -> None:
        self.apply_config(rules)
        self._table = SenderTable(slab, owner, inputs)

    def apply_config(self, rules: SenderRules) -> None:
        """Replace the rules."""
        self.rules = rules
        self.matter = rules.any

    def admits(self, uid: int, gids: Iterable[int]) -> bool:
        """Report if the allow list admits a process of this user and these groups."""
        return self.rules.allowed is None or self.rules.allowed.admits(uid, gids)

    def left(self, user: int, now_ms: int) -> int | None:
        """Return how many messages of a user the quota still admits in this interval; None without a limit."""
        limit = None if self.rules.limits is None else self.rules.limits.of(user)
        return None if limit is None else max(0, limit - self._table.used(user, self._window(now_ms)))

    def next_interval_ms(self, now_ms: int) -> int:
        """Return the start of the next interval."""
        return (self._window(now_ms) + 1) * self._interval_ms

    def record_received(self, user: int, count: int, now_ms: int) -> None:
        """Count received messages."""
        self._table.record_received(user, self._window(now_ms), count)
        self.add(user, SenderSums(received=count), now_ms)

    def add(self, user: int, sums: SenderSums, now_ms: int) -> None:
        """Add to the sums of a user on the status page."""
        self._table.add(user, self._window(now_ms), sums)

    def _window(self, now_ms: int) -> int:
        return now_ms // self._interval_ms

    @property
    def _interval_ms(self) -> int:
        return _NO_WINDOW_MS if self.rules.limits is None else self.rules.limits.interval_ms

    def warn_refused(self, uid: int, pid: int, what: str) -> None:
        """Log the refusal of a user that no allow list names; the log limits repetitions for each user."""
        section = self.rules.section
        text = "%s of user %d (process %d) was refused: %s.allow_users and %s.allow_groups do not name the user."
        _LOG.warning(text, what, uid, pid, section, section, extra={"about": (section, uid)})

    def warn_over_quota(self, user: int, what: str) -> None:
        """Log that a user exceeds its quota; the log limits repetitions for each user."""
        who = "TCP connections" if user == TCP_USER else f"user {user}"
        _LOG.warning("There are more messages of %s than input.quota allows: %s.", who, what, extra={"about": user})


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    """The verdict on a batch of datagrams by their senders; `senders` is None where they are unknown."""

    senders: landing.DatagramSenders | None = None
    refused: dict[int, DiscardReason] = field(default_factory=dict)
    """Reasons of refused datagrams by slot."""
    taken: Tally[int] = field(default_factory=Tally)
    """Numbers of admitted datagrams by user."""

    def peer(self, slot: int) -> PeerCredentials | None:
        """Return the sender of a datagram."""
        return None if self.senders is None else PeerCredentials(self.senders.pids[slot], self.senders.uids[slot])

    def record(self, by: SenderQuotas, now_ms: int) -> None:
        """Count the batch, which is landed, for its users."""
        for uid, count in self.taken.items():
            by.record_received(uid, count, now_ms)
        uids = [] if self.senders is None else self.senders.uids
        for (uid, reason), count in Tally((uids[slot], reason) for slot, reason in self.refused.items()).items():
            is_over = reason is DiscardReason.OVER_QUOTA
            sums = SenderSums(received=count, not_allowed=0 if is_over else count, over_quota=count if is_over else 0)
            by.add(uid, sums, now_ms)


def decide_admission(
    by: SenderQuotas, slab: Slab, count: int, now_ms: int, skip: Collection[int] = ()
) -> AdmissionDecision:
    """Judge the first `count` datagrams of the landing zone, except for the slots in `skip`.

    Datagrams without credentials, received before there were rules, are admitted.  A user's first messages in an
    interval are the ones within the quota.
    """
    senders = landing.senders_of(slab, count)
    if senders is None:
        return AdmissionDecision()
    found = AdmissionDecision(senders)
    for (uid, gid), slots in _by_account(senders, count, skip).items():
        if by.admits(uid, (gid,)):
            _ration(by, found, uid, slots, now_ms)
        else:
            found.refused.update(dict.fromkeys(slots, DiscardReason.SENDER_NOT_ALLOWED))
            by.warn_refused(uid, senders.pids[slots[0]], "A datagram")
    return found


def _by_account(
    senders: landing.DatagramSenders, count: int, skip: Collection[int]
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


def _ration(by: SenderQuotas, found: AdmissionDecision, uid: int, slots: Sequence[int], now_ms: int) -> None:
    """Refuse a user's datagrams beyond the quota."""
    left = by.left(uid, now_ms)
    within = len(slots) if left is None else min(max(0, left - found.taken[uid]), len(slots))
    if within:
        found.taken[uid] += within
    if within < len(slots):
        found.refused.update(dict.fromkeys(slots[within:], DiscardReason.OVER_QUOTA))
        by.warn_over_quota(uid, "datagrams are discarded until the next interval")
