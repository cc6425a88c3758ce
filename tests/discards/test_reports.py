"""Discard reports: the list of each event, and the ends of periods."""

from __future__ import annotations

import pytest

from bruce_mp.discards.bounded_samples import MAX_ENTRIES, MAX_SAMPLES
from bruce_mp.discards.events import DiscardEvent, DuplicateEvent
from bruce_mp.discards.reports import MAX_FINISHED, ReportBook
from bruce_mp.errors import DiscardReason

EPOCH = 1_800_000_000
NASTY = b'\xff\x00"\\\n\xe2\x82'


def discard(reason: DiscardReason, topic: bytes = b"t", count: int = 1, *samples: bytes) -> DiscardEvent:
    return DiscardEvent(reason, topic, count, 0, 0, samples)


def test_an_event_is_recorded_under_its_reason() -> None:
    book = ReportBook(600, EPOCH, EPOCH)
    for event in (
        discard(DiscardReason.MALFORMED, b"", 3, b"m1", b"m2"),
        discard(DiscardReason.BAD_TOPIC, b"gone", 2),
        DiscardEvent(DiscardReason.UNSUPPORTED_VERSION, b"", 4, 0, 0, (), version=7),
        DiscardEvent(DiscardReason.UNSUPPORTED_API_KEY, b"", 5, 0, 0, (), api_key=300),
        DiscardEvent(DiscardReason.LONG_MSG, b"t", 1, 10, 10, (b"t val",)),
        DiscardEvent(DiscardReason.RATE_LIMIT, b"t", 6, 5, 8),
        DuplicateEvent(b"t", 2, 1, 2),
    ):
        book.record(event, EPOCH)
    report = book.unfinished
    assert {reason.name: count for reason, count in report.counts.items() if count} == {
        "MALFORMED": 3,
        "BAD_TOPIC": 2,
        "UNSUPPORTED_VERSION": 4,
        "UNSUPPORTED_API_KEY": 5,
        "LONG_MSG": 1,
        "RATE_LIMIT": 6,
    }
    assert report.recent[DiscardReason.MALFORMED].newest_first == (b"m2", b"m1")
    assert report.recent[DiscardReason.BAD_TOPIC].newest_first == (b"gone",)
    assert (report.versions, report.api_keys) == ({7: 4}, {300: 5})
    assert list(report.topics) == [b"t"]
    topic = report.topics[b"t"]
    assert (topic.count, topic.min_timestamp, topic.max_timestamp) == (7, 5, 10)
    assert topic.reasons == {DiscardReason.LONG_MSG: 1, DiscardReason.RATE_LIMIT: 6}
    assert report.duplicates[b"t"].count == 2


@pytest.mark.parametrize("reason", DiscardReason)
def test_every_reason_can_be_recorded(reason: DiscardReason) -> None:
    book = ReportBook(600, EPOCH, EPOCH)
    book.record(discard(reason, NASTY, 2, b"sample"), EPOCH)
    assert book.unfinished.counts[reason] == 2


def test_lists_hold_the_most_recent_distinct_entries() -> None:
    book = ReportBook(600, EPOCH, EPOCH)
    for index in [*range(MAX_SAMPLES + 5), 10]:
        book.record(discard(DiscardReason.BAD_TOPIC, b"%d" % index), EPOCH)
    shown = [int(name) for name in book.unfinished.recent[DiscardReason.BAD_TOPIC].newest_first]
    assert shown == [10, *(index for index in range(MAX_SAMPLES + 4, 4, -1) if index != 10)]


def test_topics_of_a_report_are_bounded() -> None:
    book = ReportBook(600, EPOCH, EPOCH)
    for index in range(MAX_ENTRIES + 5):
        book.record(discard(DiscardReason.NO_MEM, b"%d" % index), EPOCH)
    assert len(book.unfinished.topics) == MAX_ENTRIES + 1
    assert book.unfinished.topics[b""].count == 5


def test_a_period_ends_on_the_second() -> None:
    book = ReportBook(600, EPOCH, EPOCH)
    book.record(discard(DiscardReason.NO_MEM, count=1), EPOCH + 599.999)
    assert not book.finished
    book.record(discard(DiscardReason.NO_MEM, count=2), EPOCH + 600)
    assert [report.counts[DiscardReason.NO_MEM] for report in (*book.finished, book.unfinished)] == [1, 2]
    assert (book.unfinished.id, book.unfinished.start_time) == (1, EPOCH + 600)


def test_reports_lose_no_event_over_a_long_idle_time() -> None:
    book = ReportBook(600, EPOCH, EPOCH)
    book.record(discard(DiscardReason.NO_MEM), EPOCH + 1)
    finished = book.rotate(EPOCH + 86_400)
    assert finished is not None
    assert finished.counts[DiscardReason.NO_MEM] == 1
    assert book.unfinished.id == 144
    assert book.rotate(EPOCH + 86_400) is None


def test_only_the_last_reports_are_kept() -> None:
    book = ReportBook(60, EPOCH, EPOCH)
    for period in range(1, MAX_FINISHED + 3):
        book.rotate(EPOCH + 60 * period)
    assert [report.id for report in book.finished] == [5, 4, 3, 2]


def test_a_book_opened_late_keeps_the_report_numbering() -> None:
    book = ReportBook(60, EPOCH, EPOCH + 150)
    assert (book.unfinished.id, book.unfinished.start_time) == (2, EPOCH + 120)


def test_a_clock_that_is_set_back_does_not_stop_the_reports() -> None:
    book = ReportBook(60, EPOCH, EPOCH + 3600)
    assert book.rotate(EPOCH + 10) is not None
    assert (book.unfinished.start_time, book.unfinished.id) == (EPOCH, 61)
    assert book.rotate(EPOCH + 70) is not None
    assert (book.unfinished.start_time, book.unfinished.id) == (EPOCH + 60, 62)


def test_a_change_of_the_interval_neither_repeats_ids_nor_overlaps_periods() -> None:
    book = ReportBook(60, EPOCH, EPOCH + 6030)
    periods = [(book.unfinished.id, book.unfinished.start_time - EPOCH)]
    for interval, seconds in ((600, 6600), (600, 7800), (60, 7870)):
        book.interval = interval
        book.rotate(EPOCH + seconds)
        periods.append((book.unfinished.id, book.unfinished.start_time - EPOCH))
    assert periods == [(100, 6000), (101, 6600), (103, 7800), (104, 7860)]


def test_tcp_disconnects_are_counted_separately() -> None:
    book = ReportBook(600, EPOCH, EPOCH)
    book.record(discard(DiscardReason.UNCLEAN_DISCONNECT, b"", 2, b"unix"), EPOCH)
    book.record(DiscardEvent(DiscardReason.UNCLEAN_DISCONNECT, b"", 3, 0, 0, (b"tcp",), is_tcp=True), EPOCH)
    report = book.unfinished
    assert (report.counts[DiscardReason.UNCLEAN_DISCONNECT], report.tcp_disconnects) == (2, 3)
    assert report.recent[DiscardReason.UNCLEAN_DISCONNECT].newest_first == (b"unix",)
    assert report.recent_tcp.newest_first == (b"tcp",)
