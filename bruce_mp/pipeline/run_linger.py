"""The linger: the time that a run waits in the input for more messages of its topic.

A frame that names runs costs the router and each dispatcher a wake-up, for one message or for a hundred, so the
messages of a batch should come in one frame.  A run therefore lingers for the time limit of its topic's batches less
`TRANSIT_MS`, or for half of a short time limit, but at most for `MAX_LINGER_MS`.  The linger delays no delivery,
because a batch's age counts from the arrival of its messages.  Runs of unbatched topics do not linger.

In two cases, a run lingers for at most `SHORT_LINGER_MS`.  If its topic's batches have no time limit, a batch may be
full at any time.  If its topic has a rate limit, the whole run counts in the time window of the run's first message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.config.topics import BatchingKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.config.model import Config
    from bruce_mp.config.topics import TopicBatching

__all__ = ["linger_ms", "lingers_of", "shortest_linger_ms"]

MAX_LINGER_MS: Final = 250
"""The longest linger; `docs/decisions/long-runs.md` has the measurements behind it."""
SHORT_LINGER_MS: Final = 25
"""The longest linger in the two cases of the module's head, in which the router needs recent runs."""
TRANSIT_MS: Final = 10
"""Upper bound of the time from the end of a run's linger to its addition to a batch."""
TRANSIT_APPLIES_FROM_MS: Final = 50
"""The shortest time limit from which `TRANSIT_MS` is subtracted; a shorter limit is halved instead."""


def lingers_of(config: Config) -> Callable[[bytes], int]:
    """Return a function from a topic to the linger of its runs, in ms."""

    def linger_of(topic: bytes) -> int:
        rule = config.rate_limit_for(topic)
        return linger_ms(config.batching_for(topic), is_limited=rule is not None and rule.max_count is not None)

    return linger_of


def shortest_linger_ms(config: Config) -> int:
    """Return the shortest linger of any topic, whether or not the configuration names the topic."""
    linger_of = lingers_of(config)
    unnamed_topic = b""  # gets the rules for all topics that the configuration does not name
    named_topics = {*config.batching.topics, *config.rate_limit.topics}
    return min(map(linger_of, [unnamed_topic, *map(str.encode, named_topics)]))


def linger_ms(batching: TopicBatching, *, is_limited: bool = False) -> int:
    """Return the linger in ms of a topic's runs; `is_limited` means that the topic has a rate limit."""
    if batching.kind is BatchingKind.NONE:
        return 0
    time_ms = batching.limits.time_ms
    if time_ms is None:
        return SHORT_LINGER_MS
    spare_ms = time_ms - TRANSIT_MS if time_ms >= TRANSIT_APPLIES_FROM_MS else time_ms // 2
    return min(SHORT_LINGER_MS if is_limited else MAX_LINGER_MS, spare_ms)
