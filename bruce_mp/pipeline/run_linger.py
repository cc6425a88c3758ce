"""The linger: the time that a run waits in the input for more messages of its topic.

A frame costs the router and each dispatcher a wake-up, for one message or for a hundred.  So a run lingers for the time
limit of the topic's batches less `TRANSIT_MS`, at most `MAX_LINGER_MS`, and the messages of a batch come in one frame.
If the time limit is short, the run lingers for half of it.  A batch's age counts from the arrival of its messages, so
the linger delays no delivery.  Runs of unbatched topics do not linger.

Runs linger for at most `SHORT_LINGER_MS` in two cases: without a time limit, because the batch may be full at any time,
and with a rate limit, because a whole run counts in the window in which its first message arrived.
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
"""The longest linger; `docs/decisions/long-runs.md` has its measurement."""
SHORT_LINGER_MS: Final = 25
"""The longest linger where the router needs recent runs, in the two cases above."""
TRANSIT_MS: Final = 10
"""Upper bound of the time from the end of a run's linger to its addition to a batch."""
MIN_SUBTRACTED_FROM_MS: Final = 50
"""The shortest time limit from which `TRANSIT_MS` is subtracted; it would be a large part of a shorter one."""


def lingers_of(config: Config) -> Callable[[bytes], int]:
    """Return a function from a topic to the linger of its runs, in ms."""

    def linger_of(topic: bytes) -> int:
        rule = config.rate_limit_for(topic)
        return linger_ms(config.batching_for(topic), is_limited=rule is not None and rule.max_count is not None)

    return linger_of


def shortest_linger_ms(config: Config) -> int:
    """Return the shortest linger of any topic, named in the configuration or not."""
    linger_of = lingers_of(config)
    unnamed = b""  # no topic has this name, so it gets the rules for topics that the configuration does not name
    named = {*config.batching.topics, *config.rate_limit.topics}
    return min(map(linger_of, [unnamed, *map(str.encode, named)]))


def linger_ms(batching: TopicBatching, *, is_limited: bool = False) -> int:
    """Return the linger in ms of a topic's runs; `is_limited` means that the topic has a rate limit."""
    if batching.kind is BatchingKind.NONE:
        return 0
    time_ms = batching.limits.time_ms
    if time_ms is None:
        return SHORT_LINGER_MS
    spare_ms = time_ms - TRANSIT_MS if time_ms >= MIN_SUBTRACTED_FROM_MS else time_ms // 2
    return min(SHORT_LINGER_MS if is_limited else MAX_LINGER_MS, spare_ms)
