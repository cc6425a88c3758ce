"""Discards on the way from a process to the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.discards import reporter as reporter_module
from bruce_mp.discards.bounded_samples import MAX_ENTRIES, MAX_SAMPLES
from bruce_mp.discards.events import DiscardEvent, DuplicateEvent
from bruce_mp.discards.reporter import DiscardCopies, DiscardReporter
from bruce_mp.errors import DiscardReason, RemoteProtocolError
from bruce_mp.protocol.client.messages import EmptyFields, Message
from bruce_mp.status.event_decoder import ReportedEvent, decode_events
from bruce_mp.telemetry.event_output import encode_events
from bruce_mp.telemetry.logs import RepeatFilter
from bruce_mp.telemetry.message_copies import CopyQueue, CopyTarget
from support.links import Keeping, Nowhere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NASTY = b'\xff\x00"\\\n\xe2\x82'


def discards(link: Keeping) -> list[DiscardEvent]:
    return [event for event in link.events() if isinstance(event, DiscardEvent)]


# --- events -----------------------------------------------------------------------------------------------------------


def test_events_cross_the_link_unchanged() -> None:
    events: list[ReportedEvent] = [
        DiscardEvent(DiscardReason.UNSUPPORTED_VERSION, NASTY, 7, -5, 2**62, (b"", NASTY), version=-1, api_key=257),
        DuplicateEvent(NASTY, 3, -1, 1),
    ]
    assert decode_events(encode_events(events)) == events


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\x80", encode_events([])[:-1] + b"\x93"])
def test_invalid_event_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="an event"):
        decode_events(data)


# --- reporter ---------------------------------------------------------------------------------------------------------


def test_discards_of_one_kind_merge_into_one_event() -> None:
    link = Keeping()
    reporter = DiscardReporter(link, prefix_size=16)
    for timestamp in (30, 10, 20):
        reporter.record(DiscardReason.NO_MEM, b"news", timestamp)
    reporter.record(DiscardReason.NO_MEM, b"news", 5, count=100, max_timestamp=50)
    reporter.record(DiscardReason.RATE_LIMIT, b"news", 7)
    reporter.flush()
    assert link.events() == [
        DiscardEvent(DiscardReason.NO_MEM, b"news", 103, 5, 50),
        DiscardEvent(DiscardReason.RATE_LIMIT, b"news", 1, 7, 7),
    ]
    assert len(link.sent) == 1


def test_versions_and_api_keys_have_separate_events() -> None:
    link = Keeping()
    reporter = DiscardReporter(link, prefix_size=16)
    for version in (1, 7, 1):
        reporter.record(DiscardReason.UNSUPPORTED_VERSION, version=version)
    reporter.record(DiscardReason.UNSUPPORTED_API_KEY, api_key=300)
    reporter.flush()
    assert [(event.version, event.api_key, event.count) for event in discards(link)] == [
        (7, None, 1),
        (1, None, 2),
        (None, 300, 1),
    ]


def test_flush_sends_nothing_without_events() -> None:
    link = Keeping()
    reporter = DiscardReporter(link, prefix_size=16)
    reporter.flush()
    reporter.record(DiscardReason.BUG)
    assert reporter.has_pending
    reporter.flush()
    reporter.flush()
    assert len(link.sent) == 1
    assert not reporter.has_pending


def test_events_refused_by_the_link_are_sent_with_the_next_flush() -> None:
    link = Keeping()
    link.is_full = True
    reporter = DiscardReporter(link, prefix_size=16)
    reporter.record(DiscardReason.BAD_TOPIC, b"a")
    reporter.record_duplicates(b"a", 2, 1, 9)
    reporter.flush()
    reporter.record(DiscardReason.BAD_TOPIC, b"a")
    reporter.record_duplicates(b"a", 1, 0, 3)
    link.is_full = False
    reporter.flush()
    assert link.events() == [DiscardEvent(DiscardReason.BAD_TOPIC, b"a", 2, 0, 0), DuplicateEvent(b"a", 3, 0, 9)]


def test_samples_are_the_newest_distinct_prefixes() -> None:
    link = Keeping()
    reporter = DiscardReporter(link, prefix_size=4)
    for index in range(MAX_SAMPLES + 2):
        reporter.record(DiscardReason.MALFORMED, sample=b"m%03d long" % index)
    reporter.record(DiscardReason.MALFORMED, sample=b"m003 again")
    reporter.flush()
    assert discards(link)[0].samples == (b"m002", *(b"m%03d" % index for index in range(4, MAX_SAMPLES + 2)), b"m003")


def test_long_messages_are_sampled_with_their_topic_once() -> None:
    link = Keeping()
    reporter = DiscardReporter(link, prefix_size=8)
    for topic in (b"news", b"old"):
        reporter.record(DiscardReason.LONG_MSG, topic)
        reporter.record_oversized(topic, [b"value"])
    reporter.flush()
    assert [event.samples for event in discards(link)] == [(b"news val", b"old valu"), ()]


def test_an_empty_datagram_is_a_sample() -> None:
    link = Keeping()
    reporter = DiscardReporter(link, prefix_size=8)
    reporter.record(DiscardReason.MALFORMED)
    reporter.flush()
    assert discards(link)[0].samples == (b"",)


def test_too_many_topics_share_one_sum() -> None:
    link = Keeping()
    reporter = DiscardReporter(link, prefix_size=8)
    for index in range(MAX_ENTRIES + 10):
        reporter.record(DiscardReason.BAD_TOPIC, b"made up %d" % index)
        reporter.record_duplicates(b"made up %d" % index, 1, 0, 0)
    reporter.record(DiscardReason.BAD_TOPIC, b"made up 0")
    reporter.flush()
    counts = {event.topic: event.count for event in discards(link)}
    assert len(counts) == MAX_ENTRIES + 1
    assert (counts[b""], counts[b"made up 0"]) == (10, 2)
    assert len(link.events()) == 2 * (MAX_ENTRIES + 1)


def test_a_topic_longer_than_kafka_allows_is_truncated() -> None:
    link = Keeping()
    reporter = DiscardReporter(link, prefix_size=8)
    reporter.record(DiscardReason.BAD_TOPIC, b"x" * 32767)
    reporter.flush()
    assert discards(link)[0].topic == b"x" * 249


# --- the file ---------------------------------------------------------------------------------------------------------


def reporter_with_file(longest: int | None = None) -> tuple[DiscardReporter, Keeping]:
    link = Keeping()
    copies = DiscardCopies(CopyQueue(link, lambda *_: None), longest)
    return DiscardReporter(Nowhere(), prefix_size=4, copies=copies), link


def test_unparsed_messages_are_copied_as_received() -> None:
    reporter, link = reporter_with_file(longest=6)
    assert reporter.sample_size == 6
    reporter.record(DiscardReason.MALFORMED, sample=b"garbage that is long")
    reporter.record(DiscardReason.UNSUPPORTED_API_KEY, sample=b"k", api_key=300)
    reporter.record(DiscardReason.UNSUPPORTED_VERSION, sample=b"v", version=-7)
    reporter.record(DiscardReason.UNCLEAN_DISCONNECT, sample=b"u")
    reporter.record(DiscardReason.UNCLEAN_DISCONNECT, sample=b"t", is_tcp=True)
    reporter.record(DiscardReason.NO_MEM, b"news")
    assert reporter.has_pending
    reporter.flush()
    copies = link.copies()
    assert [(copy.info, copy.value) for copy in copies] == [
        ("MALFORMED", b"garbag"),
        ("API_KEY(300)", b"k"),
        ("VERSION(-7)", b"v"),
        ("UNCLEAN_U", b"u"),
        ("UNCLEAN_T", b"t"),
    ]
    assert all(copy.copied_ms == copy.timestamp_ms > 0 for copy in copies)
    assert not reporter.has_pending


def test_copies_contain_all_fields_needed_for_replay() -> None:
    reporter, link = reporter_with_file()
    assert reporter.keeps_copies
    assert reporter.copy_size is reporter.sample_size is None
    messages = [
        Message(NASTY, b"value", b"key", -5, None, ((b"h", None),)),
        Message(b"news", b"", b"", 2**62, 2**32 - 1, (), EmptyFields.NULL_VALUE),
    ]
    reporter.copy(DiscardReason.NO_MEM, messages[:1])
    reporter.copy(None, messages[1:])
    reporter.flush()
    copies = link.copies()
    assert [
        Message(c.topic, c.value, c.key, c.timestamp_ms, c.partition_key, c.headers, EmptyFields(c.empty_fields))
        for c in copies
    ] == messages
    assert [(copy.info, copy.target) for copy in copies] == [("NO_MEM", CopyTarget.DISCARDS), ("", CopyTarget.DISCARDS)]


def test_no_message_is_copied_without_a_discard_file() -> None:
    reporter = DiscardReporter(Nowhere(), prefix_size=4)
    assert not reporter.keeps_copies
    reporter.copy(DiscardReason.NO_MEM, [Message(b"t", b"v", b"", 0, None)])
    assert not reporter.has_pending


# --- the log ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """The lines that pass the log's filter, since the last call."""
    handler = caplog.handler
    repeats = RepeatFilter()
    handler.addFilter(repeats)

    def read() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    yield read
    handler.removeFilter(repeats)


def test_repeated_discards_are_logged_as_sums_with_their_total(lines: Callable[[], list[str]]) -> None:
    now = [100.0]
    reporter = DiscardReporter(Nowhere(), 16, is_logged=True, clock=lambda: now[0])
    reporter.record(DiscardReason.MALFORMED, count=3)
    reporter.record(DiscardReason.BAD_TOPIC, b"no", count=1)
    reporter.flush()
    first, second = lines()
    assert first.startswith("3 messages were discarded: MALFORMED (")
    assert second.startswith("1 message of topic no was discarded: BAD_TOPIC (")
    assert not first.endswith("since the first one.")
    for _ in range(59):
        now[0] += 0.5
        reporter.record(DiscardReason.MALFORMED, count=2)
        reporter.flush()
    assert lines() == []
    now[0] += 0.5
    assert reporter.has_pending  # the sum is logged even if nothing more is discarded
    reporter.flush()
    (third,) = lines()
    assert third.startswith("118 messages were discarded: MALFORMED (")
    assert third.endswith("). 121 since the first one.")
    reporter.record(DiscardReason.MALFORMED)
    reporter.close()
    assert lines()[0].endswith("). 122 since the first one.")


def test_invented_topics_share_a_line_beyond_the_limit(
    lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "MAX_ENTRIES", 3)
    now = [100.0]
    reporter = DiscardReporter(Nowhere(), 16, is_logged=True, clock=lambda: now[0])
    for number in range(5):
        reporter.record(DiscardReason.BAD_TOPIC, b"%d" % number)
    reporter.record(DiscardReason.MALFORMED)
    reporter.flush()
    *_, others, malformed = written = lines()
    assert len(written) == 5
    assert others.startswith("2 messages of other topics were discarded: BAD_TOPIC (")
    assert malformed.startswith("1 message was discarded: MALFORMED (")
    for number in range(5, 60):  # new topics in the same half minute neither write lines nor displace a topic
        now[0] += 0.5
        reporter.record(DiscardReason.BAD_TOPIC, b"%d" % number)
        reporter.record(DiscardReason.BAD_TOPIC, b"0")
        reporter.flush()
    assert lines() == []
    now[0] += 30
    reporter.flush()
    first, others = lines()
    assert first.startswith("55 messages of topic 0 were discarded")
    assert others.endswith("). 57 since the first one.")


def test_a_full_table_of_the_log_gives_up_topics_without_discards(
    lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "MAX_ENTRIES", 3)
    now = [100.0]
    reporter = DiscardReporter(Nowhere(), 16, is_logged=True, clock=lambda: now[0])
    for number in range(3):
        reporter.record(DiscardReason.BAD_TOPIC, b"%d" % number)
    reporter.flush()
    now[0] += 2 * 3600
    reporter.record(DiscardReason.BAD_TOPIC, b"new")
    reporter.flush()
    reporter.record(DiscardReason.BAD_TOPIC, b"new")
    reporter.flush()
    *_, others, new = lines()
    assert " of other topics " in others
    assert " of topic new " in new
