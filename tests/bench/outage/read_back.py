"""Check that all sent messages are in Kafka, once and in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bench.outage.load import parse_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bench.outage.load import Load, Place
    from support.kafka_reader import Record

__all__ = ["ReadBack", "check"]


class ReadBack(msgspec.Struct, frozen=True):
    """Counts of messages.

    `elsewhere` counts messages outside the partition that their key names while all have leaders.  `disordered`
    counts messages behind a later one of the same home in their partition.
    """

    sent: int
    read: int
    missing: int
    doubled: int
    disordered: int
    elsewhere: int


def check(load: Load, sent: int, records: Mapping[Place, Iterable[Record]]) -> ReadBack:
    """Compare the stored records with the sent messages, numbers 0 to `sent` - 1."""
    times = [0] * sent
    last: dict[tuple[Place, Place], int] = {}
    disordered = elsewhere = 0
    for place, some in records.items():
        for number in (parse_value(record.value or b"").number for record in some):
            home = load.home(number)
            times[number] += 1
            disordered += last.get((place, home), -1) > number
            last[place, home] = number
            elsewhere += place != home
    doubled = sum(count - 1 for count in times if count > 1)
    return ReadBack(sent, sum(times), times.count(0), doubled, disordered, elsewhere)
