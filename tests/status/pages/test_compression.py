"""The page `/compression`, and the sums behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.status.event_decoder import decode_events
from bruce_mp.telemetry.compression import MAX_SUMS, CompressionEvent, CompressionSums
from bruce_mp.telemetry.event_output import encode_events

if TYPE_CHECKING:
    from support.status_pages import OfflineStatusPages


def test_sums_are_by_topic_and_codec_and_bounded() -> None:
    sums = CompressionSums()
    assert not sums
    for number in range(MAX_SUMS + 5):
        sums.add(CompressionEvent(b"t%d" % number, "lz4", tried=1, plain_bytes=10))
    sums.add(CompressionEvent(b"t0", "lz4", skipped=2))
    sums.add(CompressionEvent(b"t0", "zstd", skipped=3))
    rows = {(row.topic, row.codec): row for row in sums.events()}
    assert rows[b"t0", "lz4"] == CompressionEvent(b"t0", "lz4", tried=1, skipped=2, plain_bytes=10)
    assert rows[b"", "lz4"] == CompressionEvent(b"", "lz4", tried=5, plain_bytes=50)
    assert rows[b"", "zstd"].skipped == 3
    sums.clear()
    assert not sums.events()


def test_compression_events_cross_the_reports_link_unchanged() -> None:
    event = CompressionEvent(b"\xff", "lz4", 1, 2, 3, 4, 5, 6)
    assert decode_events(encode_events([event])) == [event]


def test_the_page_sums_the_events_of_all_dispatchers(daemon: OfflineStatusPages) -> None:
    for _ in range(2):
        daemon.compression.record([CompressionEvent(b"clicks", "zstd", 10, 8, 0, 1000, 250, 2500)])
    daemon.compression.record([CompressionEvent(b"a\xff", "lz4", skipped=7)])
    assert daemon.json("/compression/json")["topics"] == [
        {
            "topic": "a\\xff", "codec": "lz4", "tried": 0, "kept": 0, "skipped": 7, "plain_bytes": 0,
            "packed_bytes": 0, "percent": 100.0, "cpu_ms": 0.0,
        },
        {
            "topic": "clicks", "codec": "zstd", "tried": 20, "kept": 16, "skipped": 0, "plain_bytes": 2000,
            "packed_bytes": 500, "percent": 25.0, "cpu_ms": 5.0,
        },
    ]  # fmt: skip
    first, second = daemon.text("/compression/plain").splitlines()[-2:]
    assert first.endswith("codec: lz4     topic: 5[a\\xff]")
    assert second.split() == (
        "tried: 20 kept: 16 skipped: 0 bytes: 2000 -> 500 ( 25.0 %) cpu ms: 5.0 codec: zstd topic: 6[clicks]".split()
    )
