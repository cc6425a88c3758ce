"""How long a run may wait in the input for more messages of its topic.

A frame to the router costs some twenty microseconds whether it names one message or a hundred, so a run lingers as
long as nobody notices: half of the time that the topic's batches may wait anyway, 250 ms at the most, and not at all
for topics that are not batched.  A batch's age counts from the arrival of its messages, so that this delays nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.config.topics import BatchingKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.config.model import Config
    from bruce_mp.config.topics import TopicBatching

__all__ = ["linger_ms"]

LONGEST_MS: Final = 250


def lingers_of(config: Config) -> Callable[[bytes], int]:
    """How long a run of a topic may wait."""
    return lambda topic: linger_ms(config.batching_for(topic))


def linger_ms(batching: TopicBatching) -> int:
    """Milliseconds for a topic with this batching."""
    if batching.kind is BatchingKind.NONE:
        return 0
    time_ms = batching.limits.time_ms
    return LONGEST_MS if time_ms is None else min(LONGEST_MS, time_ms // 2)
