"""Texts of errors for discarded messages: the counts, the topics, and the remedy for each reason."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from bruce_mp.spark.ledger import TaskAttempt, TaskResult
    from bruce_mp.spark.options import SinkOptions
    from bruce_mp.spark.task_ledger import TaskEntry

__all__ = ["describe_discards", "describe_earlier_discards", "describe_fresh_start", "format_outcome", "join_topics"]

_MAX_TOPICS: Final = 10
"""Maximum number of topics in the text of an error."""
_REPLAY_ADVICE: Final = (
    "send the discarded messages with bruce-spark replay and the daemon's discard file (which needs "
    "discard_log.enable = true from before the loss)"
)


def describe_discards(result: TaskResult, options: SinkOptions) -> str:
    """Return an error text: the counts of an attempt with discarded messages, and the remedies."""
    sent = received = result.message_count  # an attempt has a result only if the daemon received all its messages
    outcome = format_outcome(sent, received, result.delivered, result.discarded)
    if options.is_exactly_once:
        advice = "A repeated task sends nothing again: set onDiscard=report, so that the task commits, and "
        advice += _REPLAY_ADVICE
    else:
        advice = (
            "Each retry of Spark (spark.task.maxFailures, 4 by default) delivers the other messages again. A ledger "
            "avoids this. Setting onDiscard=report avoids it as well, because then the task commits"
        )
    return f"{outcome}. {_list_remedies(result)} {advice}."


def describe_earlier_discards(earlier: TaskEntry, options: SinkOptions) -> str:
    """Return an error text for a repeated task with an earlier attempt that has discarded messages."""
    result, topics = earlier.result, {topic for topic, _ in earlier.result.rows}
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(earlier.time_ms / 1000))
    topic_text = f"topic{'s' * (len(topics) > 1)} {join_topics(topics)}"
    return (
        f"an earlier attempt of task {result.attempt.task} ended at {when} with {sum(result.discarded.values())} of "
        f"{result.message_count} messages discarded ({_format_reasons(result.discarded)}; {topic_text}). The cause at "
        f"that time: {_list_remedies(result)} With a ledger the messages are not sent again, even if the cause is "
        f"gone, and this attempt sent nothing. Set onDiscard=report, then {_REPLAY_ADVICE}; without this file, "
        f"{describe_fresh_start(result.attempt, options)}, which sends all rows again."
    )


def format_outcome(sent: int, received: int, delivered: int | None, discards: Mapping[str, int]) -> str:
    """Return the counts of an attempt, for a text that begins with the daemon's address; `discards` are by reason."""
    delivered_text = "an unknown number" if delivered is None else delivered
    counts = f"of {sent} messages the daemon received {received}, delivered {delivered_text}"
    return f"{counts} and discarded {sum(discards.values())} ({_format_reasons(discards)})"


def describe_fresh_start(attempt: TaskAttempt, options: SinkOptions) -> str:
    """Return a clause that says how to send all rows again."""
    if options.run_id is not None:
        return "use another runId"
    is_batch_job = attempt.batch < 0
    return "run the job again" if is_batch_job else "use another checkpoint"


def join_topics(topics: Collection[str]) -> str:
    """Return up to `_MAX_TOPICS` names in alphabetical order, as a list in a text."""
    return ", ".join(sorted(topics)[:_MAX_TOPICS]) + (", ..." if len(topics) > _MAX_TOPICS else "")


def _format_reasons(discards: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(discards.items())) or "none"


def _list_remedies(result: TaskResult) -> str:
    return " ".join(dict.fromkeys(_remedy(reason, result) for reason in sorted(result.discarded)))


def _remedy(reason: str, result: TaskResult) -> str:
    """Return the remedy for a discard reason.

    The daemon does not answer which topics have discards, so the text names all topics of the task.
    """
    topics = {topic for topic, _ in result.rows}
    names = join_topics(topics)
    if reason == DiscardReason.BAD_TOPIC.name and len(topics) == 1:
        return f"The brokers have no topic {names}: create it, or correct the option or column 'topic'."
    if reason == DiscardReason.BAD_TOPIC.name:
        return (
            f"The brokers lack at least one of the topics {names}; the daemon's log names those that are missing. "
            "Create them, or correct the column 'topic'."
        )
    if reason == DiscardReason.RATE_LIMIT.name:
        subject = f"Topic {names} is" if len(topics) == 1 else f"At least one of the topics {names} is"
        return (
            f"{subject} over its limit in rate_limit.configs of the daemon: raise it, or set the option "
            "maxRecordsPerSecond, the limit of each task."
        )
    if reason == DiscardReason.LONG_MSG.name:
        return "A message is larger than batching.message_max_bytes of the daemon allows."
    if reason == DiscardReason.NO_MEM.name:
        return "The daemon's slab is full: check that the brokers keep up, or raise slab.size."
    return "The daemon's log and its status page /discards have the cause."
