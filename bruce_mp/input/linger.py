"""How long a run may wait in the input for more messages of its topic.

A frame to the router costs some twenty microseconds whether it names one message or a hundred, so a run lingers as
long as nobody notices: half of the time that the topic's batches may wait anyway, 250 ms at the most, and not at all
for topics that are not batched.  A batch's age counts from the arrival of its messages, so that this delays nothing.

It is short where it would be noticed: a batch that has no limit of time may be full before, and a rate limit counts a
run in the window in which its first message came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.config.topics import BatchingKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.config.model import Config
    from bruce_mp.config.topics import TopicBatching

__all__ = ["linger_ms", "lingers_of", "shortest_linger_ms"]

LONGEST_MS: Final = 250
SHORT_MS: Final = 25


def lingers_of(config: Config) -> Callable[[bytes], int]:
    """How long a run of a topic may wait."""

    def linger_of(topic: bytes) -> int:
        rule = config.rate_limit_for(topic)
        return linger_ms(config.batching_for(topic), is_limited=rule is not None and rule.max_count is not None)

    return linger_of


def shortest_linger_ms(config: Config) -> int:
    """That of the topic whose runs may wait shortest, whether the configuration names it or not."""
    linger_of, unnamed = lingers_of(config), b""
    named = {*config.batching.topics, *config.rate_limit.topics}
    return min(map(linger_of, [unnamed, *map(str.encode, named)]))


def linger_ms(batching: TopicBatching, *, is_limited: bool = False) -> int:
    """Milliseconds for a topic with this batching; `is_limited`: so many messages of it may pass in a window."""
    if batching.kind is BatchingKind.NONE:
        return 0
    time_ms = batching.limits.time_ms
    if time_ms is None:
        return SHORT_MS
    return min(SHORT_MS if is_limited else LONGEST_MS, time_ms // 2)
