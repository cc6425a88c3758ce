"""Properties of discard reasons: which lists of a report show them, their causes and their remedies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CAUSED_BY_CLIENTS",
    "CAUSED_BY_FAULT",
    "EXPLANATIONS",
    "LISTED_BY_TOPIC",
    "PARSED",
    "SAMPLED",
    "discard_sentence",
]

SAMPLED: Final = frozenset({DiscardReason.MALFORMED, DiscardReason.UNCLEAN_DISCONNECT, DiscardReason.LONG_MSG})
"""Reasons for which reports show samples of messages."""

PARSED: Final = frozenset(DiscardReason) - {
    DiscardReason.MALFORMED,
    DiscardReason.UNSUPPORTED_API_KEY,
    DiscardReason.UNSUPPORTED_VERSION,
    DiscardReason.UNCLEAN_DISCONNECT,
    DiscardReason.SENDER_NOT_ALLOWED,
}
"""Reasons to discard a message that was parsed, so that its topic, key and value are known."""

LISTED_BY_TOPIC: Final = PARSED - {DiscardReason.BAD_TOPIC}
"""Reasons that reports list by topic, because the topic was valid."""

CAUSED_BY_CLIENTS: Final = (frozenset(DiscardReason) - PARSED) | {DiscardReason.BAD_TOPIC, DiscardReason.LONG_MSG}
"""Reasons that clients can avoid."""

_DELIBERATE: Final = frozenset({DiscardReason.RATE_LIMIT, DiscardReason.ABANDONED_ATTEMPT, DiscardReason.OVER_QUOTA})

CAUSED_BY_FAULT: Final = frozenset(DiscardReason) - CAUSED_BY_CLIENTS - _DELIBERATE
"""Reasons caused by the daemon or the cluster, and not by clients, limits or fenced attempts."""

EXPLANATIONS: Final[Mapping[DiscardReason, str]] = {
    DiscardReason.MALFORMED: "a client sends malformed messages; /discards shows the bytes",
    DiscardReason.UNSUPPORTED_API_KEY: "a client sends messages of a kind that this daemon does not support",
    DiscardReason.UNSUPPORTED_VERSION: "a client sends messages of a version that this daemon does not support",
    DiscardReason.NO_MEM: "the slab is full; check that the brokers keep up, or raise slab.size",
    DiscardReason.BAD_TOPIC: "the brokers have no such topic; create it, or correct its sender",
    DiscardReason.LONG_MSG: "a message is larger than batching.message_max_bytes allows",
    DiscardReason.RATE_LIMIT: "the topic exceeded its rate_limit",
    DiscardReason.TOPIC_AUTOCREATE_FAIL: "the brokers refused to create the topic; create it by hand",
    DiscardReason.NO_AVAILABLE_PARTITIONS: "the slab's table of partitions is full; start on a new slab",
    DiscardReason.KAFKA_ERROR_ACK: "the broker refused them; the log names its answer",
    DiscardReason.DELIVERY_ATTEMPT_LIMIT: "the broker refused them too often; the log names its answers",
    DiscardReason.SERVER_SHUTDOWN: "they were not delivered before the daemon ended",
    DiscardReason.UNCLEAN_DISCONNECT: "a client disconnected inside a message",
    DiscardReason.ABANDONED_ATTEMPT: "a fenced attempt was not completed, or was too large; its client sends it again",
    DiscardReason.SENDER_NOT_ALLOWED: "the socket's allow_users and allow_groups do not name the sender; the log does",
    DiscardReason.OVER_QUOTA: "a user sent more than input.quota allows; /senders names the user",
    DiscardReason.TOPIC_OVER_SHARE: "the topic's undelivered messages take all that topic_share.alpha allows "
    "of the slab; check that the brokers run and accept them",
    DiscardReason.SPILL_LOST: "the spill file of a complete attempt was missing or damaged; the log names it",
    DiscardReason.POSSIBLY_DELIVERED: "no answer of the brokers says if Kafka has them; compare with the topic before "
    "you send them again",
    DiscardReason.BUG: "an error of the daemon; please report it with the log",
}
"""Cause and remedy of each reason, worded to follow a sentence with the number of discarded messages."""


def discard_sentence(count: int, source: str = "") -> str:
    """Return "`count` messages of `source` were discarded"; `source` is a phrase such as "topic x", or empty."""
    subject = "1 message" if count == 1 else f"{count} messages"
    return f"{subject}{f' of {source}' if source else ''} {'was' if count == 1 else 'were'} discarded"
