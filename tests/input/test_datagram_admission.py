"""A batch from the landing zone: its counters, and the state after a crash."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.config.accounts import AllowList, QuotaLimits
from bruce_mp.discards.events import DiscardEvent, SenderEvent
from bruce_mp.discards.reporter import DiscardCopies, DiscardReporter
from bruce_mp.errors import DiscardReason
from bruce_mp.input.datagram_admission import DatagramAdmission
from bruce_mp.input.sender_quotas import SenderQuotas, SenderRules
from bruce_mp.kernels import ChunkPool, DatagramIntake, Lanes
from bruce_mp.kernels.pure.intake import DatagramIntake as PureIntake
from bruce_mp.kernels.pure.lanes import Lanes as PureLanes
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.slab import landing_zone, recovery
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry, Slab
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.runs import read_run
from bruce_mp.slab.sender_usage import SenderSums, read_senders
from bruce_mp.slab.tables import TopicTable
from bruce_mp.status.event_decoder import decode_events
from bruce_mp.telemetry.books import counter_total
from bruce_mp.telemetry.clock import steady_ms
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.message_copies import CopyQueue, decode_copies
from support.links import Keeping
from support.slabs import INPUT_ROW, contents, datagram, new_slab, put_in_landing_zone, put_senders
from support.streams import NO_RULES
from support.variants import VARIANTS, kernels

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from bruce_mp.slab.runs import Segment

LONGEST: Final = 1000
SAMPLE: Final = 20
GEOMETRY: Final = Geometry(chunks=16, topics=16, partitions=16, landing_slots=16, landing_slot_size=1024)
GOOD: Final = [
    datagram(b"t1", b"one", b"key"),
    datagram(b"new", b"two"),
    datagram(b"t1", b"three", partition_key=1),
    datagram(b"t1", b"four", partition_key=2),
    datagram(b"t1", b"five"),
]


class Life:
    """One life of an input process without socket and router: all its state is in the slab."""

    def __init__(
        self,
        slab: Slab,
        max_size: int = LONGEST,
        copy_size: int = 0,
        rules: SenderRules = NO_RULES,
        partitions: int = 3,
    ) -> None:
        self.slab = slab
        topics = TopicTable(slab)
        topics.add(b"t1", partitions)
        self.row = ProcessRow(slab, INPUT_ROW)
        self.link = Keeping()
        self.copies = Keeping()
        copies = DiscardCopies(CopyQueue(self.copies, self.row.add), copy_size) if copy_size else None
        self.reporter = DiscardReporter(self.link, SAMPLE, copies=copies)
        self.lanes = Lanes(slab, ChunkPool(slab, INPUT_ROW), topics, lambda _: 1000)
        senders = SenderQuotas(rules, slab, INPUT_ROW, [INPUT_ROW])
        self.admission = DatagramAdmission(slab, self.row, self.lanes, self.reporter, max_size=max_size, quotas=senders)

    def receive(self, *datagrams: bytes) -> None:
        put_in_landing_zone(self.slab, datagrams)
        self.admission.admit(len(datagrams), 1)

    def events(self) -> list[DiscardEvent]:
        """Return the discards that were reported since the last call."""
        self.reporter.flush()
        found, self.link.sent = self.link.sent, []
        return [event for data in found for event in decode_events(data) if isinstance(event, DiscardEvent)]


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab(GEOMETRY) as made:
        yield made


def counted(slab: Slab) -> dict[str, int]:
    """Return all counters of the input that are not 0."""
    return {counter.name: counter_total(slab, counter) for counter in Counter if counter_total(slab, counter)}


def values(slab: Slab) -> list[bytes]:
    return [content.value for content in sorted(contents(slab), key=lambda content: content.arrival)]


def test_valid_messages_are_counted_by_type(slab: Slab) -> None:
    Life(slab).receive(*GOOD)
    assert counted(slab) == {
        "MsgReceived": 5,
        "UnixDgInputAgentForwardMsg": 5,
        "InputAgentProcessAnyPartitionMsg": 3,
        "InputAgentProcessPartitionKeyMsg": 2,
    }
    assert values(slab) == [b"one", b"two", b"three", b"four", b"five"]
    assert landing_zone.landed_lengths(slab) == []


MALFORMED: Final = {"InputAgentDiscardMsgMalformed": 1}
ANY: Final = {"InputAgentProcessAnyPartitionMsg": 1}
KEYED: Final = {"InputAgentProcessPartitionKeyMsg": 1}


@pytest.mark.parametrize(
    ("bad", "reason", "counters"),
    [
        (b"", DiscardReason.MALFORMED, MALFORMED),
        (bytes(7), DiscardReason.MALFORMED, MALFORMED),
        (bytes.fromhex("0000000801000000"), DiscardReason.MALFORMED, MALFORMED | ANY),
        (bytes.fromhex("0000000801010000"), DiscardReason.MALFORMED, MALFORMED | KEYED),
        (bytes.fromhex("0000000901000000"), DiscardReason.MALFORMED, MALFORMED),
        (
            bytes.fromhex("0000000801020000"),
            DiscardReason.UNSUPPORTED_API_KEY,
            {"InputAgentDiscardMsgUnsupportedApiKey": 1},
        ),
        (
            bytes.fromhex("0000000801000003"),
            DiscardReason.UNSUPPORTED_VERSION,
            {"InputAgentDiscardAnyPartitionMsgUnsupportedApiVersion": 1} | ANY,
        ),
        (
            bytes.fromhex("0000000801010007"),
            DiscardReason.UNSUPPORTED_VERSION,
            {"InputAgentDiscardPartitionKeyMsgUnsupportedApiVersion": 1} | KEYED,
        ),
    ],
)
def test_a_bad_message_is_counted_and_the_others_are_received(
    slab: Slab, bad: bytes, reason: DiscardReason, counters: dict[str, int]
) -> None:
    life = Life(slab)
    life.receive(GOOD[0], bad, GOOD[4])
    expected = {"MsgReceived": 3, "UnixDgInputAgentForwardMsg": 2, "InputAgentProcessAnyPartitionMsg": 2}
    for name, count in counters.items():
        expected[name] = expected.get(name, 0) + count
    assert counted(slab) == expected
    assert count_books(slab).discarded == {reason.name: 1}
    assert values(slab) == [b"one", b"five"]
    (event,) = life.events()
    assert (event.reason, event.count) == (reason, 1)


def test_the_report_has_the_first_bytes_the_version_and_the_api_key(slab: Slab) -> None:
    life = Life(slab)
    long = bytes(range(100))
    life.receive(long, bytes.fromhex("00000008fffe0000"), bytes.fromhex("0000000801008000"))
    malformed, api_key, version = life.events()
    assert malformed.samples == (long[:SAMPLE],)
    assert (api_key.api_key, api_key.version, api_key.samples) == (-2, None, ())
    assert (version.version, version.api_key, version.samples) == (-32768, None, ())


# --- too long --------------------------------------------------------------------------------------------------------


def say_that_it_was_cut(slab: Slab, slot: int, *, cut: bool) -> None:
    """Set the kernel's flags of a slot: MSG_TRUNC or none."""
    at = slab.geometry.landing_at + lay.LANDING_HEADERS + slot * lay.MMSGHDR_BYTES + 48
    slab.words[at >> 2] = 0x20 if cut else 0


def of_length(length: int) -> bytes:
    return datagram(b"t1", bytes(length - len(datagram(b"t1"))))


@pytest.mark.parametrize("length", [LONGEST - 1, LONGEST, LONGEST + 1, GEOMETRY.landing_slot_size])
def test_the_size_limit_is_exact_in_a_larger_slot(slab: Slab, length: int) -> None:
    say_that_it_was_cut(slab, 0, cut=False)
    life = Life(slab)
    life.receive(of_length(length), GOOD[0])
    if length <= LONGEST:
        assert len(values(slab)) == 2
        return
    assert values(slab) == [b"one"]
    assert count_books(slab).discarded == {"MALFORMED": 1}
    assert counted(slab)["InputAgentProcessAnyPartitionMsg"] == 1
    assert life.events()[0].samples == (of_length(length)[:SAMPLE],)


@pytest.mark.parametrize("max_size", [GEOMETRY.landing_slot_size, 5000])
@pytest.mark.parametrize("cut", [False, True])
def test_a_truncated_datagram_is_malformed_even_with_a_matching_size(slab: Slab, max_size: int, cut: bool) -> None:
    """Its Size field agrees with the remaining bytes.  5000: the slab was made for smaller datagrams."""
    say_that_it_was_cut(slab, 0, cut=cut)
    life = Life(slab, max_size)
    life.receive(of_length(GEOMETRY.landing_slot_size))
    assert len(values(slab)) == (0 if cut else 1)
    assert count_books(slab).discarded == ({"MALFORMED": 1} if cut else {})


# --- no room ---------------------------------------------------------------------------------------------------------


def test_messages_without_room_are_counted_and_reported_by_topic(slab: Slab) -> None:
    life = Life(slab)
    sent = 0
    while not count_books(slab).discarded:
        life.receive(*[datagram(b"t1", bytes(900), timestamp=sent + slot) for slot in range(16)])
        sent += 16
        assert sent < 1000
    dropped = count_books(slab).discarded["NO_MEM"]
    assert counted(slab)["InputAgentDiscardMsgNoMem"] == dropped
    assert counted(slab)["InputAgentProcessAnyPartitionMsg"] == counted(slab)["MsgReceived"] == sent
    assert counted(slab)["UnixDgInputAgentForwardMsg"] == sent - dropped == len(contents(slab))
    (event,) = life.events()
    assert (event.reason, event.topic, event.count) == (DiscardReason.NO_MEM, b"t1", dropped)
    assert event.max_timestamp == sent - 1


@pytest.mark.parametrize("size", [3, 2000])
def test_messages_without_room_are_copied_to_the_discard_file(slab: Slab, size: int) -> None:
    life = Life(slab, copy_size=size)
    sent = 0
    while not count_books(slab).discarded:
        life.receive(
            *[datagram(b"t1", b"%d:" % (sent + slot) + bytes(900), b"key", 5, sent + slot) for slot in range(16)]
        )
        sent += 16
    life.reporter.flush()
    copies = [copy for data in life.copies.sent for copy in decode_copies(data)]
    kept = {value[: value.index(b":")] for value in (record.value for record in contents(slab))}
    assert len(copies) == count_books(slab).discarded["NO_MEM"]
    assert {b"%d" % copy.timestamp_ms for copy in copies} == {b"%d" % number for number in range(sent)} - kept
    for copy in copies:
        assert copy.value == (b"%d:" % copy.timestamp_ms + bytes(900))[:size]
        assert (copy.topic, copy.key, copy.partition_key, copy.info) == (b"t1", b"key", 5, "NO_MEM")


# --- crashes ---------------------------------------------------------------------------------------------------------


class Died(BaseException):
    """A stand-in for SIGKILL."""


def die_on_call(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, number: int) -> None:
    """Raise Died at call `number` of a method."""
    real = getattr(owner, name)
    calls = 0

    def method(*arguments: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        if calls == number:
            raise Died
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, method)


BAD: Final = [bytes(7), bytes.fromhex("0000000801020000")]
RECEIVED: Final = [GOOD[0], BAD[0], *GOOD[1:4], BAD[1], GOOD[4]]


@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [
        (ProcessRow, "begin_batch", 1),
        *[(PureLanes, "_append", number) for number in range(1, 5)],
        (ProcessRow, "commit_landed", 1),
        (ProcessRow, "_apply_redo", 1),
    ],
)
def test_a_death_at_any_call_keeps_and_counts_each_message_once(
    slab: Slab, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, number: int
) -> None:
    with kernels("pure"), monkeypatch.context() as patch:  # the compiled ones cannot be interrupted
        life = Life(slab)
        die_on_call(patch, owner, name, number)
        with pytest.raises(Died):
            life.receive(*RECEIVED)
    next_life = Life(slab)
    segments = next_life.admission.recover(INPUT_ROW, 2)
    assert counted(slab) == {
        "MsgReceived": 7,
        "UnixDgInputAgentForwardMsg": 5,
        "InputAgentProcessAnyPartitionMsg": 3,
        "InputAgentProcessPartitionKeyMsg": 2,
        "InputAgentDiscardMsgMalformed": 1,
        "InputAgentDiscardMsgUnsupportedApiKey": 1,
    }
    assert values(slab) == [b"one", b"two", b"three", b"four", b"five"]
    assert {content.state for content in contents(slab)} == {RunState.FILLED}
    assert sum(segment.records for segment in segments) == 5
    books = count_books(slab)
    assert books.balanced
    assert books.consistent
    assert landing_zone.landed_lengths(slab) == []


def test_arrival_numbers_continue_after_a_recovery(slab: Slab, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(slab)
    life.receive(*GOOD)
    with monkeypatch.context() as patch:
        die_on_call(patch, ProcessRow, "commit_landed", 1)
        with pytest.raises(Died):
            life.receive(*GOOD)
    next_life = Life(slab)
    assert sum(segment.records for segment in next_life.admission.recover(INPUT_ROW, 2)) == 10
    next_life.receive(*GOOD)
    assert [content.arrival for content in sorted(contents(slab), key=lambda item: item.arrival)] == list(range(15))
    assert counted(slab)["InputAgentProcessPartitionKeyMsg"] == 6


KEYS: Final = (3, 10, 9, 17, 2, 16)
"""Modulo 4 they belong to all lanes."""


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("appends", [2, 3, 4])
def test_recovery_partitions_a_batch_by_the_count_at_its_start(
    slab: Slab, monkeypatch: pytest.MonkeyPatch, variant: str, appends: int
) -> None:
    """Otherwise an uncopied message of one lane could follow a later one of another lane."""
    with kernels("pure"), monkeypatch.context() as patch:
        life = Life(slab, partitions=4)
        life.receive(datagram(b"t1", b"before", partition_key=3))
        die_on_call(patch, PureLanes, "_append", appends)
        with pytest.raises(Died):
            life.receive(*[datagram(b"t1", b"v", partition_key=key) for key in KEYS])
    with kernels(variant):
        next_life = Life(slab, partitions=7)
        cuts = [head_of_run(slab, segment) for segment in next_life.admission.recover(INPUT_ROW, 2)]
        assert {count for _, count in cuts} == {4}
        assert {index for index, _ in cuts} == {0, 1, 2, 3}
        next_life.receive(datagram(b"t1", b"after", partition_key=6))
        next_life.lanes.close_all()
        assert [head_of_run(slab, segment) for segment in next_life.lanes.drain_closed()] == [(6, 7)]


def head_of_run(slab: Slab, segment: Segment) -> tuple[int, int]:
    """Return the partition index of a run, and the partition count of its lane."""
    run = read_run(slab, segment.chunk, segment.run)
    return run.partition_index, run.partition_count


def test_recovery_leaves_runs_to_a_live_input_that_closes_them_meanwhile(
    slab: Slab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The live input names them on its tick, and may have closed an earlier run of the lane in a chunk read before."""
    other = lay.ROW_FIRST_INPUT + 1
    topics = TopicTable(slab)
    topics.add(b"t1", 3)
    live = Lanes(slab, ChunkPool(slab, other, (INPUT_ROW, other)), topics, lambda _: 1000)
    message = datagram(b"t1", b"of the live input")
    read = recovery._segments_in

    def read_late(slab: Slab, chunk: int, states: Collection[RunState]) -> Iterator[recovery.FoundSegment]:
        live.close_runs()
        return read(slab, chunk, states)

    monkeypatch.setattr(recovery, "_segments_in", read_late)
    life = Life(slab)
    life.receive(*GOOD)
    life.lanes.close_runs()
    live.ingest(memoryview(message), [(0, len(message))], 0, 1)
    found = life.admission.recover(INPUT_ROW, 2)
    assert sum(segment.records for segment in found) == len(GOOD)
    assert live.drain_closed()


def test_the_first_start_has_nothing_to_recover(slab: Slab) -> None:
    assert Life(slab).admission.recover(INPUT_ROW, 1) == []
    assert counted(slab) == {}


# --- senders --------------------------------------------------------------------------------------------------------

ALICE, BOB, CAROL = 1, 2, 3
SENT_BY: Final = [ALICE, BOB, ALICE, CAROL, ALICE, BOB, ALICE]
"""The senders of the messages in RECEIVED."""


def rules_of(allowed: AllowList | None = None, limits: QuotaLimits | None = None) -> SenderRules:
    return SenderRules("input.unix_datagram", allowed, limits)


ONLY_ALICE: Final = rules_of(AllowList(frozenset({ALICE}), frozenset()))


def receive_from(life: Life, uids: list[int], *datagrams: bytes) -> None:
    put_senders(life.slab, uids)
    life.receive(*datagrams)


def test_messages_of_unlisted_senders_are_discarded(slab: Slab) -> None:
    life = Life(slab, rules=ONLY_ALICE)
    receive_from(life, SENT_BY, *RECEIVED)
    assert values(slab) == [b"one", b"two", b"four", b"five"]
    assert count_books(slab).discarded == {"SENDER_NOT_ALLOWED": 3}
    assert counted(slab) == {
        "MsgReceived": 7,
        "UnixDgInputAgentForwardMsg": 4,
        "InputAgentProcessAnyPartitionMsg": 3,
        "InputAgentProcessPartitionKeyMsg": 1,
        "InputAgentDiscardMsgNotAllowed": 3,
    }
    assert count_books(slab).balanced
    assert read_senders(slab) == {
        ALICE: SenderSums(received=4),
        BOB: SenderSums(received=2, not_allowed=2),
        CAROL: SenderSums(received=1, not_allowed=1),
    }


def test_a_listed_primary_group_admits_its_sender(slab: Slab) -> None:
    life = Life(slab, rules=rules_of(AllowList(frozenset(), frozenset({2000 + BOB}))))
    receive_from(life, [ALICE, BOB, CAROL, BOB, BOB], *GOOD)
    assert values(slab) == [b"two", b"four", b"five"]


def test_the_report_names_unlisted_senders_and_senders_of_bad_messages(slab: Slab) -> None:
    life = Life(slab, rules=ONLY_ALICE)
    receive_from(life, [BOB, ALICE, BOB], GOOD[0], bytes(7), GOOD[1])
    life.reporter.flush()
    events = [event for data in life.link.sent for event in decode_events(data)]
    culprits = {event.reason.name: event for event in events if isinstance(event, SenderEvent)}
    assert {name: (each.uid, each.pid, each.count) for name, each in culprits.items()} == {
        "SENDER_NOT_ALLOWED": (BOB, 1000 + BOB, 2),
        "MALFORMED": (ALICE, 1000 + ALICE, 1),
    }
    assert culprits["SENDER_NOT_ALLOWED"].sample == GOOD[1][:SAMPLE]


def test_the_first_messages_of_an_interval_are_within_the_quota(slab: Slab) -> None:
    life = Life(slab, rules=rules_of(limits=QuotaLimits(1000, 3, None, {BOB: 1, CAROL: None})))
    everybody = [ALICE, BOB, CAROL] * 5
    receive_from(life, everybody, *(datagram(b"t1", b"%d" % number) for number in range(15)))
    assert sorted(map(int, values(slab))) == sorted([0, 3, 6, 1, 2, 5, 8, 11, 14])
    assert count_books(slab).discarded == {"OVER_QUOTA": 6}
    receive_from(life, [ALICE], GOOD[0])
    assert count_books(slab).discarded == {"OVER_QUOTA": 7}
    put_senders(slab, [ALICE])
    put_in_landing_zone(slab, [GOOD[0]])
    life.admission.admit(1, 1000)  # the next interval
    assert count_books(slab).discarded == {"OVER_QUOTA": 7}
    assert read_senders(slab)[ALICE] == SenderSums(received=7, over_quota=3)


def test_the_messages_of_all_groups_of_a_user_share_the_quota(slab: Slab) -> None:
    life = Life(slab, rules=rules_of(limits=QuotaLimits(1000, 3, None, {})))
    put_senders(slab, [ALICE] * 4)
    for slot in (1, 2):
        slab.words[(landing_zone.control_at(slab, slot) >> 2) + 6] = 9  # another group
    life.receive(*(datagram(b"t1", b"%d" % number) for number in range(4)))
    assert len(values(slab)) == 3
    assert count_books(slab).discarded == {"OVER_QUOTA": 1}


def test_messages_over_the_quota_are_reported_by_topic_and_copied(slab: Slab) -> None:
    life = Life(slab, copy_size=100, rules=rules_of(limits=QuotaLimits(1000, 1, None, {})))
    receive_from(life, [ALICE] * 4, GOOD[0], datagram(b"t1", b"v", b"k", 7, 33), bytes(7), datagram(b"u", b"w"))
    reasons = [(event.reason.name, event.topic, event.count) for event in life.events()]
    assert reasons == [("OVER_QUOTA", b"t1", 1), ("OVER_QUOTA", b"", 1), ("OVER_QUOTA", b"u", 1)]
    copies = [copy for data in life.copies.sent for copy in decode_copies(data)]
    found = [(copy.info, copy.topic, copy.key, copy.value, copy.partition_key) for copy in copies]
    assert found == [
        ("OVER_QUOTA", b"t1", b"k", b"v", 7),
        ("OVER_QUOTA", b"", b"", bytes(7), None),
        ("OVER_QUOTA", b"u", b"", b"w", None),
    ]


def test_messages_landed_without_credentials_are_admitted(slab: Slab) -> None:
    """A predecessor without an allow list received it, and died."""
    Life(slab)
    put_in_landing_zone(slab, GOOD)
    life = Life(slab, rules=ONLY_ALICE)
    assert sum(segment.records for segment in life.admission.recover(INPUT_ROW, 1)) == len(GOOD)
    assert count_books(slab).discarded == {}


@pytest.mark.parametrize(("max_size", "delivers"), [(500, True), (LONGEST, False)])
def test_recovery_admits_longer_datagrams_if_an_earlier_daemon_allowed_them(
    slab: Slab, max_size: int, delivers: bool
) -> None:
    """The slab of a daemon with a larger limit keeps its slots; slots for 1,000 bytes have 1,024."""
    long = datagram(b"t1", bytes(1010 - len(datagram(b"t1"))))
    Life(slab)
    put_in_landing_zone(slab, [*GOOD, long])
    life = Life(slab, max_size)
    assert sum(segment.records for segment in life.admission.recover(INPUT_ROW, 1)) == len(GOOD) + delivers
    assert count_books(slab).discarded == ({} if delivers else {"MALFORMED": 1})
    life.receive(long)
    assert counted(slab)["InputAgentDiscardMsgMalformed"] == 2 - delivers


@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [
        (ProcessRow, "begin_batch", 1),
        *[(PureLanes, "_append", number) for number in range(1, 4)],
        (ProcessRow, "commit_landed", 1),
        (ProcessRow, "_apply_redo", 1),
    ],
)
def test_recovery_applies_the_allow_list_to_landed_messages(
    slab: Slab, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, number: int
) -> None:
    with kernels("pure"), monkeypatch.context() as patch:
        life = Life(slab, rules=ONLY_ALICE)
        die_on_call(patch, owner, name, number)
        with pytest.raises(Died):
            receive_from(life, SENT_BY, *RECEIVED)
    Life(slab, rules=ONLY_ALICE).admission.recover(INPUT_ROW, 2)
    assert values(slab) == [b"one", b"two", b"four", b"five"]
    books = count_books(slab)
    assert (books.received, books.discarded) == (7, {"SENDER_NOT_ALLOWED": 3})
    assert books.balanced
    assert books.consistent


@pytest.mark.parametrize("number", range(1, 4))
def test_recovery_keeps_messages_copied_before_a_crash_despite_the_quota(
    slab: Slab, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    rules = rules_of(limits=QuotaLimits(1000, 4, None, {}))
    with kernels("pure"), monkeypatch.context() as patch:
        life = Life(slab, rules=rules)
        die_on_call(patch, PureLanes, "_append", number)
        with pytest.raises(Died):
            receive_from(life, [ALICE] * len(GOOD), *GOOD)
    before = len(values(slab))
    Life(slab, rules=rules).admission.recover(INPUT_ROW, 2)
    books = count_books(slab)
    assert before <= len(values(slab)) == books.received - books.discarded.get("OVER_QUOTA", 0)
    assert books.received == len(GOOD)
    assert books.balanced


class Outside:
    """A receiving socket, and a sender that sends to it later."""

    def __init__(self, *, blocking: bool) -> None:
        self.receiving, self._sending = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.receiving.setblocking(blocking)

    def send(self, *values: bytes) -> None:
        for value in values:
            self._sending.send(datagram(b"t1", value))

    def send_later(self, seconds: float, *values: bytes) -> None:
        threading.Timer(seconds, self.send, values).start()

    def close(self) -> None:
        self.receiving.close()
        self._sending.close()


@pytest.fixture(params=[True, False], ids=["blocking", "non-blocking"])
def outside(request: pytest.FixtureRequest) -> Iterator[Outside]:
    made = Outside(blocking=request.param)
    yield made
    made.close()


def test_the_next_message_is_awaited_while_a_run_lingers(slab: Slab, outside: Outside) -> None:
    """The compiled kernel waits; the pure one never does."""
    life = Life(slab)
    now_ms = 1_000_000  # a tick of any linger
    outside.send(b"one")
    outside.send_later(0.05, b"two", b"three")
    taken = life.admission.receive(outside.receiving.fileno(), 16, now_ms, now_ms + 500)
    assert taken == 1 if DatagramIntake is PureIntake else taken > 1
    while taken < 3:
        taken += life.admission.receive(outside.receiving.fileno(), 16, now_ms)
    assert counter_total(slab, Counter.MsgReceived) == taken


@pytest.mark.parametrize("left_ms", [5, 40], ids=["by poll alone", "by the socket's timer first"])
def test_receive_waits_until_the_given_time(slab: Slab, outside: Outside, left_ms: int) -> None:
    life = Life(slab)
    outside.send(b"one")
    now_ms, began_ms = 1_000_000, steady_ms()  # a tick of any linger: the next one is later than the wait
    assert life.admission.receive(outside.receiving.fileno(), 16, now_ms, now_ms + left_ms) == 1
    assert DatagramIntake is PureIntake or steady_ms() - began_ms >= left_ms


def test_receive_without_a_deadline_does_not_wait(slab: Slab, outside: Outside) -> None:
    life = Life(slab)
    outside.send(b"one")
    assert life.admission.receive(outside.receiving.fileno(), 16, steady_ms()) == 1
    assert life.admission.receive(outside.receiving.fileno(), 16, steady_ms()) == 0
