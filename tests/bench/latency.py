"""The time from send to ack.

Each message carries its send time, and the embedded broker records the append time of its batch.

Both are times of the host's steady clock.  The broker writes its answer at once.  The figure excludes the time that the
daemon needs to read the answer, because no message waits for that.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.devbroker.control import DevBroker

__all__ = ["latency_of", "percentile"]

STAMP_BYTES: Final = 8
PERCENTILES: Final = (50, 99)


def latency_of(broker: DevBroker, start_ns: int) -> dict[str, float]:
    """Return percentiles in ms over all messages sent since `start_ns`."""
    waits = sorted(
        appended_ns - sent_ns
        for appended_ns, records in broker.appended_since(start_ns)
        for record in records
        if start_ns <= (sent_ns := int.from_bytes((record.value or b"")[-STAMP_BYTES:], sys.byteorder)) <= appended_ns
    )
    return {f"p{share}": percentile(waits, share) / 1e6 for share in PERCENTILES} if waits else {}


def percentile(ordered: Sequence[float], share: int) -> float:
    """Return the value that `share` percent do not exceed."""
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)]
