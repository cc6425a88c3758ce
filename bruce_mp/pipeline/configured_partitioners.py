"""The configured partitioner of each topic, for the inputs and for messages that the journal restores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.protocol.client.key_hashes import Partitioner

if TYPE_CHECKING:
    from bruce_mp.config.model import Config
    from bruce_mp.kernels import Partitioners

__all__ = ["partitioners_of"]


def partitioners_of(config: Config) -> Partitioners | None:
    """Return the function from a topic to its partitioner.

    Return None if no topic has a partitioner, so that the callers need not call a function for each message.
    """
    names = {config.partitioner.default, *config.partitioner.topics.values()}
    if names == {"none"}:
        return None
    by_name = {partitioner.name.lower(): partitioner for partitioner in Partitioner}
    return lambda topic: by_name[config.partitioner_for(topic)]
