"""The configured partitioner of each topic, for the inputs and for messages that the journal restores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.protocol.client.key_hashes import Partitioner

if TYPE_CHECKING:
    from bruce_mp.config.model import Config
    from bruce_mp.kernels import PartitionerOfTopic

__all__ = ["partitioners_of"]


def partitioners_of(config: Config) -> PartitionerOfTopic | None:
    """Return the function from a topic to its partitioner.

    Return None if no topic has a partitioner, which saves the callers a function call for each message.
    """
    names = {config.partitioner.default, *config.partitioner.topics.values()}
    if names == {"none"}:
        return None
    partitioner_by_name = {partitioner.name.lower(): partitioner for partitioner in Partitioner}
    return lambda topic: partitioner_by_name[config.partitioner_for(topic)]
