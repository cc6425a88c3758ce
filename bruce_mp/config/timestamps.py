"""The section of message timestamps; `config/sections.py` has the conventions."""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

from typing import Annotated, Literal

from msgspec import field

from bruce_mp.config import fields
from bruce_mp.config.fields import LIVE
from bruce_mp.config.section import DAY_MS, INT32_MAX, Section

__all__ = ["InputTimestamps", "TimestampPolicy", "Timestamps"]

TimestampPolicy = Literal["client", "arrival", "clamp"]
InputTimestamps = (
    Annotated[
        TimestampPolicy,
        fields.choice("The policy of this input. Absent: `timestamps.policy`."),
        LIVE,
    ]
    | None
)

_TOPIC_POLICY_MEANING: str = "The policy for this topic."


class Timestamps(Section, frozen=True):
    """The timestamp of a message in Kafka; see `docs/delivery.md`."""

    policy: Annotated[TimestampPolicy, fields.choice("The general policy."), LIVE] = "clamp"
    # Less than the shortest retention in common use. Kafka could delete an older message right after the ack.
    before_max_ms: Annotated[
        int, fields.count("Longest time before the arrival that `clamp` accepts.", 0, INT32_MAX), LIVE
    ] = 3_600_000
    # Less than the hour of log.message.timestamp.after.max.ms. The margin exceeds the clock difference of two hosts.
    after_max_ms: Annotated[
        int, fields.count("Longest time after the arrival that `clamp` accepts.", 0, DAY_MS), LIVE
    ] = 600_000
    topics: Annotated[
        dict[str, Annotated[TimestampPolicy, fields.choice(_TOPIC_POLICY_MEANING), LIVE]],
        fields.choice(_TOPIC_POLICY_MEANING),
        LIVE,
    ] = field(default_factory=dict)
