"""Read an embedded broker's records for comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.traffic import Seen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.devbroker.control import DevBroker

__all__ = ["read_back"]


def read_back(broker: DevBroker, topics: Iterable[str]) -> dict[str, list[Seen]]:
    """Return the records of these topics by partition and in order."""
    return {
        topic: [
            Seen(partition, record.key, record.value, record.timestamp)
            for partition, records in enumerate(broker.fetch(topic))
            for record in records
        ]
        for topic in topics
    }
