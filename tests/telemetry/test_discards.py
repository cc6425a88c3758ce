"""Discards on their way from a process to the report."""

from __future__ import annotations

import pytest

from bruce_mp.errors import DiscardReason, RemoteProtocolError
from bruce_mp.telemetry.discards import FINISHED_KEPT, MAX_SAMPLES, MAX_TOPICS, RECENT, DiscardReporter, ReportBook
from bruce_mp.telemetry.events import DiscardEvent, DuplicateEvent, decode_events, encode_events

EPOCH = 1_800_000_000
NASTY = b'\xff\x00"\\\n\xe2\x82'


class FakeLink:
    """Takes messages unless it is told to refuse them."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.full = False

    def send_bytes(self, data: bytes) -> bool:
        if not self.full:
            self.messages.append(data)
        return not self.full

    def events(self) -> list[DiscardEvent | DuplicateEvent]:
        return [event for message in self.messages for event in decode_events(message)]

    def discards(self) -> list[DiscardEvent]:
        return [event for event in self.events() if isinstance(event, DiscardEvent)]


def discard(reason: DiscardReason, topic: bytes = b"t", count: int = 1, *samples: bytes) -> DiscardEvent:
    return DiscardEvent(reason, topic, count, 0, 0, samples)


# --- events -----------------------------------------------------------------------------------------------------------


def test_events_cross_the_link_unchanged() -> None:
    events: list[DiscardEvent | DuplicateEvent] = [
        DiscardEvent(DiscardReason.UNSUPPORTED_VERSION, NASTY, 7, -5, 2**62, (b"", NASTY), version=-1, api_key=257),
        DuplicateEvent(NASTY, 3, -1, 1),
    ]
    assert decode_events(encode_events(events)) == events


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\x80", encode_events([])[:-1] + b"\x93"])
def test_bytes_that_are_no_events_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="discard event"):
        decode_events(data)


# --- reporter ---------------------------------------------------------------------------------------------------------


def test_discards_of_one_kind_become_one_event() -> None:
    link = FakeLink()
    reporter = DiscardReporter(link, prefix_size=16)
    for timestamp in (30, 10, 20):
        reporter.note(DiscardReason.NO_MEM, b"news", timestamp)
    reporter.note(DiscardReason.NO_MEM, b"news", 5, count=100, max_timestamp=50)
    reporter.note(DiscardReason.RATE_LIMIT, b"news", 7)
    reporter.flush()
    assert link.events() == [
        DiscardEvent(DiscardReason.NO_MEM, b"news", 103, 5, 50),
        DiscardEvent(DiscardReason.RATE_LIMIT, b"news", 1, 7, 7),
    ]
    assert len(link.messages) == 1


def test_versions_and_api_keys_are_told_apart() -> None:
    link = FakeLink()
    reporter = DiscardReporter(link, prefix_size=16)
    for version in (1, 7, 1):
        reporter.note(DiscardReason.UNSUPPORTED_VERSION, version=version)
    reporter.note(DiscardReason.UNSUPPORTED_API_KEY, api_key=300)
    reporter.flush()
    assert [(event.version, event.api_key, event.count) for event in link.discards()] == [
        (7, None, 1),
        (1, None, 2),
        (None, 300, 1),
    ]


def test_nothing_is_sent_when_there_is_nothing() -> None:
    link = FakeLink()
    reporter = DiscardReporter(link, prefix_size=16)
    reporter.flush()
    reporter.note(DiscardReason.BUG)
    assert reporter.pending
    reporter.flush()
    reporter.flush()
    assert len(link.messages) == 1
    assert not reporter.pending


def test_what_the_link_refuses_goes_with_the_next_flush() -> None:
    link = FakeLink()
    link.full = True
    reporter = DiscardReporter(link, prefix_size=16)
    reporter.note(DiscardReason.BAD_TOPIC, b"a")
    reporter.note_duplicates(b"a", 2, 1, 9)
    reporter.flush()
    reporter.note(DiscardReason.BAD_TOPIC, b"a")
    reporter.note_duplicates(b"a", 1, 0, 3)
    link.full = False
    reporter.flush()
    assert link.events() == [DiscardEvent(DiscardReason.BAD_TOPIC, b"a", 2, 0, 0), DuplicateEvent(b"a", 3, 0, 9)]


def test_samples_are_the_newest_distinct_prefixes() -> None:
    link = FakeLink()
    reporter = DiscardReporter(link, prefix_size=3)
    for index in range(MAX_SAMPLES + 2):
        reporter.note(DiscardReason.MALFORMED, sample=b"m%d long" % index)
    reporter.note(DiscardReason.MALFORMED, sample=b"m3 again")
    reporter.flush()
    assert link.discards()[0].samples == (b"m2 ", b"m4 ", b"m5 ", b"m6 ", b"m3 ")


def test_a_long_message_is_shown_with_its_topic() -> None:
    link = FakeLink()
    reporter = DiscardReporter(link, prefix_size=8)
    reporter.note(DiscardReason.LONG_MSG, b"news", sample=b"value")
    reporter.flush()
    assert link.discards()[0].samples == (b"news val",)


def test_an_empty_datagram_is_a_sample_too() -> None:
    link = FakeLink()
    reporter = DiscardReporter(link, prefix_size=8)
    reporter.note(DiscardReason.MALFORMED)
    reporter.flush()
    assert link.discards()[0].samples == (b"",)


def test_too_many_topics_share_one_sum() -> None:
    link = FakeLink()
    reporter = DiscardReporter(link, prefix_size=8)
    for index in range(MAX_TOPICS + 10):
        reporter.note(DiscardReason.BAD_TOPIC, b"made up %d" % index)
        reporter.note_duplicates(b"made up %d" % index, 1, 0, 0)
    reporter.note(DiscardReason.BAD_TOPIC, b"made up 0")
    reporter.flush()
    discards = {event.topic: event.count for event in link.discards()}
    assert len(discards) == MAX_TOPICS + 1
    assert (discards[b""], discards[b"made up 0"]) == (10, 2)
    assert len(link.events()) == 2 * (MAX_TOPICS + 1)


def test_a_topic_longer_than_kafka_allows_is_cut() -> None:
    link = FakeLink()
    reporter = DiscardReporter(link, prefix_size=8)
    reporter.note(DiscardReason.BAD_TOPIC, b"x" * 32767)
    reporter.flush()
    assert link.discards()[0].topic == b"x" * 249


# --- book -------------------------------------------------------------------------------------------------------------


def test_an_event_goes_where_its_reason_says() -> None:
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
    for index in [*range(RECENT + 5), 10]:
        book.record(discard(DiscardReason.BAD_TOPIC, b"%d" % index), EPOCH)
    shown = [int(name) for name in book.unfinished.recent[DiscardReason.BAD_TOPIC].newest_first]
    assert shown == [10, *(index for index in range(RECENT + 4, 4, -1) if index != 10)]


def test_topics_of_a_report_are_bounded() -> None:
    book = ReportBook(600, EPOCH, EPOCH)
    for index in range(MAX_TOPICS + 5):
        book.record(discard(DiscardReason.NO_MEM, b"%d" % index), EPOCH)
    assert len(book.unfinished.topics) == MAX_TOPICS + 1
    assert book.unfinished.topics[b""].count == 5


def test_a_period_ends_on_the_second() -> None:
    book = ReportBook(600, EPOCH, EPOCH)
    book.record(discard(DiscardReason.NO_MEM, count=1), EPOCH + 599.999)
    assert not book.finished
    book.record(discard(DiscardReason.NO_MEM, count=2), EPOCH + 600)
    assert [report.counts[DiscardReason.NO_MEM] for report in (*book.finished, book.unfinished)] == [1, 2]
    assert (book.unfinished.id, book.unfinished.start_time) == (1, EPOCH + 600)


def test_a_long_silence_loses_nothing() -> None:
    book = ReportBook(600, EPOCH, EPOCH)
    book.record(discard(DiscardReason.NO_MEM), EPOCH + 1)
    finished = book.rotate(EPOCH + 86_400)
    assert finished is not None
    assert finished.counts[DiscardReason.NO_MEM] == 1
    assert book.unfinished.id == 144
    assert book.rotate(EPOCH + 86_400) is None


def test_only_the_last_reports_are_kept() -> None:
    book = ReportBook(60, EPOCH, EPOCH)
    for period in range(1, FINISHED_KEPT + 3):
        book.rotate(EPOCH + 60 * period)
    assert [report.id for report in book.finished] == [5, 4, 3, 2]


def test_a_book_that_is_opened_late_keeps_the_numbering() -> None:
    book = ReportBook(60, EPOCH, EPOCH + 150)
    assert (book.unfinished.id, book.unfinished.start_time) == (2, EPOCH + 120)


def test_a_clock_that_is_set_back_does_not_stop_the_reports() -> None:
    book = ReportBook(60, EPOCH, EPOCH + 3600)
    assert book.rotate(EPOCH + 10) is not None
    assert book.unfinished.start_time == EPOCH
    assert book.rotate(EPOCH + 70) is not None
