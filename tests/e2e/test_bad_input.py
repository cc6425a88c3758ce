"""Malformed input: it is counted under its reason, shown in the reports, and harms no other message.

All tests share one daemon and one broker; each test sends good messages around the bad ones and checks their arrival.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from base64 import b64decode
from typing import TYPE_CHECKING, Any, Final, Self

import pytest

from bruce_mp.client import DatagramClient
from bruce_mp.errors import DiscardReason
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.protocol.client.messages import ApiKey, Message, encode, parse_message
from bruce_mp.slab.file import Slab
from bruce_mp.telemetry.books import counter_total
from bruce_mp.telemetry.counters import Counter
from support.daemon import Daemon
from support.read_back import broker_fixture, records_in, values_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.devbroker.control import DevBroker

pytestmark = pytest.mark.process

LIMIT: Final = 50_001
"""`max_datagram_size`: not a multiple of 8, as are the sizes in the slab."""
MESSAGE_MAX: Final = 20_000
SAMPLE: Final = 100
RANDOM: Final = 3000
"""Number of random datagrams."""
LONGEST_NAME: Final = "n" * 249
TOPICS: Final = ("good", "t1", "x", LONGEST_NAME)

A1: Final = "00000023010000000000000274310000018bcfe56800000000000000000568656c6c6f"
VECTORS_GOOD: Final = {
    "A1": A1,
    "A2": "00000025010000000000000274310000018bcfe56800000000026b6b0000000568656c6c6f",
    "A3": "0000001d01000000000000017800000000000000000000000000000000",
    "P1": "0000002901010000000000003039000274310000018bcfe56800000000026b6b0000000568656c6c6f",
    "P2": "00000027010100000000ffffffff000274310000018bcfe56800000000000000000568656c6c6f",
    "P3": "00000023010100000000800000000001780000000000000001000000016b0000000176",
}
A4: Final = "000000210100000000000003ff0022ffffffffffffffff000000000000000200ff"

# Counters that one such message raises.
NOT_RECOGNISED: Final = {"InputAgentDiscardMsgMalformed"}
ANY: Final = {"InputAgentDiscardMsgMalformed", "InputAgentProcessAnyPartitionMsg"}
KEYED: Final = {"InputAgentDiscardMsgMalformed", "InputAgentProcessPartitionKeyMsg"}
API_KEY: Final = {"InputAgentDiscardMsgUnsupportedApiKey"}
ANY_VERSION: Final = {
    "InputAgentDiscardAnyPartitionMsgUnsupportedApiVersion",
    "InputAgentProcessAnyPartitionMsg",
}
KEYED_VERSION: Final = {
    "InputAgentDiscardPartitionKeyMsgUnsupportedApiVersion",
    "InputAgentProcessPartitionKeyMsg",
}
P1: Final = VECTORS_GOOD["P1"]


def changed(vector: str, at: int, field: str) -> str:
    """Return a vector with the bytes from `at` on replaced."""
    return vector[: 2 * at] + field + vector[2 * at + len(field) :]


MALFORMED: Final = {
    # invalid messages of tests/protocol/client/test_messages.py
    "M1 size one too small": ("00000022" + A1[8:], NOT_RECOGNISED),
    "M2 size one too large": ("00000024" + A1[8:], NOT_RECOGNISED),
    "M3 flags 1": ("00000023010000000001000274310000018bcfe56800000000000000000568656c6c6f", ANY),
    "M6 trailing byte": ("00000024010000000000000274310000018bcfe56800000000000000000568656c6c6f00", ANY),
    "M7 topic size 0": ("0000002101000000000000000000018bcfe56800000000000000000568656c6c6f", ANY),
    "M8 key size -1": ("00000023010000000000000274310000018bcfe56800ffffffff0000000568656c6c6f", ANY),
    "M9 value size 6": ("00000023010000000000000274310000018bcfe56800000000000000000668656c6c6f", ANY),
    "M10 header only": ("0000000801000000", ANY),
    "M11 seven bytes": ("00000007010000", NOT_RECOGNISED),
    "M12 stream: size 3": ("00000003", NOT_RECOGNISED),
    "M13 stream: size -1": ("ffffffff", NOT_RECOGNISED),
    "M14 stream: two in one": (
        "000000040000001d01000000000000017800000000000000000000000000000000",
        NOT_RECOGNISED,
    ),
    "S1 stream: two in one": (VECTORS_GOOD["A3"] + VECTORS_GOOD["P3"], NOT_RECOGNISED),
    # further faults
    "empty": ("", NOT_RECOGNISED),
    "keyed header only": ("0000000801010000", KEYED),
    "size 0": (changed(A1, 0, "00000000"), NOT_RECOGNISED),
    "size negative": (changed(A1, 0, "ffffffdd"), NOT_RECOGNISED),
    "keyed flags -1": (changed(P1, 8, "ffff"), KEYED),
    "topic size negative": (changed(A1, 10, "fffe"), ANY),
    "topic size beyond the end": (changed(A1, 10, "7fff"), ANY),
    "keyed topic size negative": (changed(P1, 14, "8000"), KEYED),
    "key size beyond the end": (changed(A1, 22, "00000100"), ANY),
    "key size 2^31-1": (changed(P1, 26, "7fffffff"), KEYED),
    "value size negative": (changed(A1, 26, "fffffffb"), ANY),
    "value size too small": (changed(A1, 26, "00000004"), ANY),
    "value size 2^31-1": (changed(A1, 26, "7fffffff"), ANY),
}
UNSUPPORTED_API_KEYS: Final = {255: "00ff", 258: "0102", 300: "012c", 512: "0200", 0: "0000", -1: "ffff"}
UNSUPPORTED_VERSIONS: Final = {
    "A1 version 3": (changed(A1, 6, "0003"), 3, ANY_VERSION),
    "A1 version 7": (changed(A1, 6, "0007"), 7, ANY_VERSION),
    "A1 version -1": (changed(A1, 6, "ffff"), -1, ANY_VERSION),
    "P1 version 3": (changed(P1, 6, "0003"), 3, KEYED_VERSION),
}
broker = broker_fixture(topics=dict.fromkeys(TOPICS, 2), scope="module")


@pytest.fixture(scope="module")
def daemon(broker: DevBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    settings = {
        "input.max_datagram_size": LIMIT,
        "batching.message_max_bytes": MESSAGE_MAX,
        "batching.default.action": "none",
        "http.bad_msg_prefix_size": SAMPLE,
        "http.discard_report_interval_s": 86_400,
    }
    with Daemon(tmp_path_factory.mktemp("daemon"), broker.bootstrap, settings) as running:
        running.wait_for(lambda: "dispatcher-0" in running.pids(), "the dispatcher", 20)
        yield running


NUMBERS: Final = itertools.count()


class CheckedSender:
    """A sender to the daemon that compares the books, counters and reports before and after."""

    def __init__(self, daemon: Daemon, broker: DevBroker) -> None:
        self.daemon = daemon
        self._number = next(NUMBERS)
        self._broker = broker
        self._slab = Slab(daemon.slab_path)
        self._client = DatagramClient(daemon.socket_path, timeout=20)
        self._before = count_books(self._slab)
        self._counters_before = self._counters()
        self._sent = 0
        self._good: list[bytes] = []
        self.report_before: dict[str, Any] = {}

    def close(self) -> None:
        self._client.close()
        self._slab.close()

    def _counters(self) -> dict[str, int]:
        return {
            counter.name: counter_total(self._slab, counter) for counter in Counter if counter.name.startswith("Input")
        }

    def watch_report(self) -> Self:
        """Wait until the report has all earlier messages, as the base of comparisons."""
        counts = {
            "malformed_msg_count": DiscardReason.MALFORMED,
            "unsupported_api_key_msg_count": DiscardReason.UNSUPPORTED_API_KEY,
            "unsupported_version_msg_count": DiscardReason.UNSUPPORTED_VERSION,
            "bad_topic_msg_count": DiscardReason.BAD_TOPIC,
        }
        for field, reason in counts.items():
            count = self._before.discarded.get(reason.name, 0)
            self.daemon.wait_for(lambda field=field, count=count: self.report()[field] == count, field, 10)  # type: ignore[misc]
        self.report_before = self.report()
        return self

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = self.daemon.get("/discards/json")["unfinished_report"]
        return report

    def send_bad(self, *datagrams: bytes) -> None:
        """Send each between two good messages."""
        self.send_good()
        for data in datagrams:
            self.send(data)
            self.send_good()

    def send(self, data: bytes) -> None:
        self._client.send_encoded(data)
        self._sent += 1

    def send_good(self) -> None:
        value = b"%d:%d" % (self._number, len(self._good))
        self._good.append(value)
        key = len(self._good) if len(self._good) % 2 else None
        self.send(encode(b"good", value, b"", key, timestamp_ms=1))

    def settle(self) -> dict[str, int]:
        """Wait until all messages are settled and the good ones have arrived; return the discards by reason."""
        books = self.daemon.wait_settled(self._before.received + self._sent)
        assert books.received == self._before.received + self._sent
        mine = [value for value in values_in(self._broker, "good") if value.startswith(b"%d:" % self._number)]
        assert sorted(mine) == sorted(self._good)
        before = self._before.discarded
        differences = {reason: count - before.get(reason, 0) for reason, count in books.discarded.items()}
        return {reason: count for reason, count in differences.items() if count}

    def counted(self) -> dict[str, int]:
        """Return the rise of the input's counters without the good messages."""
        now = self._counters()
        now["InputAgentProcessPartitionKeyMsg"] -= (len(self._good) + 1) // 2
        now["InputAgentProcessAnyPartitionMsg"] -= len(self._good) // 2
        del now["InputRunsPublished"]  # of the good messages
        differences = {name: count - self._counters_before[name] for name, count in now.items()}
        return {name: count for name, count in differences.items() if count}

    def wait_reported(self, field: str, more: int) -> dict[str, Any]:
        """Return the report once one of its counts has risen by `more`."""
        wanted = self.report_before[field] + more
        self.daemon.wait_for(lambda: self.report()[field] >= wanted, f"{field} = {wanted}", 10)
        report = self.report()
        assert report[field] == wanted
        return report


@pytest.fixture
def sender(daemon: Daemon, broker: DevBroker) -> Iterator[CheckedSender]:
    made = CheckedSender(daemon, broker)
    yield made
    made.close()


def message(topic: bytes, value: bytes = b"v", timestamp: int = 7) -> bytes:
    return encode(topic, value, b"", timestamp_ms=timestamp)


# --- the tables ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counters", [NOT_RECOGNISED, ANY, KEYED], ids=["unrecognised", "any", "keyed"])
def test_malformed_datagrams_are_discarded_and_counted(sender: CheckedSender, counters: set[str]) -> None:
    some = [bytes.fromhex(vector) for vector, counted in MALFORMED.values() if counted == counters]
    sender.send_bad(*some, *some)
    assert sender.settle() == {"MALFORMED": 2 * len(some)}
    assert sender.counted() == dict.fromkeys(counters, 2 * len(some))


def test_the_report_has_the_25_latest_malformed_datagrams(sender: CheckedSender) -> None:
    """The report has each once, the newest first, cut to the configured size, and no topic."""
    sender.watch_report()
    rows = [bytes.fromhex(vector) for vector, _ in MALFORMED.values()] + [b"long" + bytes(100)]
    sent = [rows[0], *rows, rows[-3]]
    for number, data in enumerate(sent, start=1):
        sender.send(data)
        if number % 5 == 0 or number == len(sent):  # the input samples a burst
            report = sender.wait_reported("malformed_msg_count", number)
    assert sender.settle() == {"MALFORMED": len(sent)}
    newest = [rows[-3], rows[-1], rows[-2], *reversed(rows[:-3])]
    assert [b64decode(sample) for sample in report["recent_malformed"]] == [data[:SAMPLE] for data in newest[:25]]
    for field in ("discard_topic", "recent_bad_topic", "recent_too_long_msg", "unsupported_msg_version"):
        assert report[field] == sender.report_before[field]


@pytest.mark.parametrize(("api_key", "field"), UNSUPPORTED_API_KEYS.items())
def test_an_unsupported_api_key_is_discarded_and_reported(sender: CheckedSender, api_key: int, field: str) -> None:
    sender.watch_report()
    sender.send_bad(bytes.fromhex(changed(A1, 4, field)))
    assert sender.settle() == {"UNSUPPORTED_API_KEY": 1}
    assert sender.counted() == dict.fromkeys(API_KEY, 1)
    report = sender.wait_reported("unsupported_api_key_msg_count", 1)
    assert {"api_key": api_key, "count": 1} in report["unsupported_msg_api_key"]
    for unchanged in ("malformed_msg_count", "recent_malformed", "discard_topic"):
        assert report[unchanged] == sender.report_before[unchanged]


@pytest.mark.parametrize(
    ("vector", "version", "counters"), UNSUPPORTED_VERSIONS.values(), ids=UNSUPPORTED_VERSIONS.keys()
)
def test_an_unsupported_version_is_discarded_and_reported(
    sender: CheckedSender, vector: str, version: int, counters: set[str]
) -> None:
    sender.watch_report()
    sender.send_bad(bytes.fromhex(vector))
    assert sender.settle() == {"UNSUPPORTED_VERSION": 1}
    assert sender.counted() == dict.fromkeys(counters, 1)
    report = sender.wait_reported("unsupported_version_msg_count", 1)
    assert _of_version(report, version) == _of_version(sender.report_before, version) + 1
    for unchanged in ("malformed_msg_count", "recent_malformed", "discard_topic"):
        assert report[unchanged] == sender.report_before[unchanged]


def _of_version(report: dict[str, Any], version: int) -> int:
    """Both message types share an entry."""
    return sum(item["count"] for item in report["unsupported_msg_version"] if item["version"] == version)


def test_valid_vectors_are_delivered_unchanged(sender: CheckedSender, broker: DevBroker) -> None:
    before = {topic: _records(broker, topic) for topic in ("t1", "x")}
    for vector in VECTORS_GOOD.values():
        sender.send(bytes.fromhex(vector))
    assert sender.settle() == {}
    assert _records(broker, "t1") - before["t1"] == {
        (None, b"hello", 1_700_000_000_000),
        (b"kk", b"hello", 1_700_000_000_000),
    }
    assert _records(broker, "x") - before["x"] == {(None, None, 0), (b"k", b"v", 1)}


def _records(broker: DevBroker, topic: str) -> set[tuple[bytes | None, bytes | None, int]]:
    return {(record.key, record.value, record.timestamp) for record in records_in(broker, topic)}


# --- topics ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "shown"),
    [
        (b"nobody-made-this", "nobody-made-this"),
        (bytes.fromhex("ff0022"), '\\xff\\x00"'),
        (b'a"b', 'a"b'),
        (b"back\\slash", "back\\\\slash"),
        (b"\xe2\x98\x83 snow\n", "\u2603 snow\\x0a"),
        (b" ", " "),
        (b".", "."),
        (b"m" * 249, "m" * 249),
        (b"m" * 250, "m" * 249),
        (b"\x00" * 32_767, "\\x00" * 249),
    ],
    ids=["plain", "A4", "quote", "backslash", "snow", "space", "dot", "249", "250", "32767"],
)
def test_an_unknown_topic_is_discarded_and_named(sender: CheckedSender, topic: bytes, shown: str) -> None:
    keyed = encode(topic, b"", b"key", 5, timestamp_ms=-1)
    sender.watch_report()
    sender.send_bad(message(topic), keyed, message(topic))
    assert sender.settle() == {"BAD_TOPIC": 3}
    report = sender.wait_reported("bad_topic_msg_count", 3)
    assert report["recent_bad_topic"][0] == shown
    assert report["discard_topic"] == sender.report_before["discard_topic"]


def test_a_topic_of_249_bytes_is_delivered(sender: CheckedSender, broker: DevBroker) -> None:
    sender.send_bad(message(LONGEST_NAME.encode(), b"long name"))
    assert sender.settle() == {}
    assert (None, b"long name", 7) in _records(broker, LONGEST_NAME)


def test_a_topic_created_after_its_first_message_works_without_a_restart(
    sender: CheckedSender, broker: DevBroker
) -> None:
    sender.send_bad(message(b"late"))
    assert sender.settle() == {"BAD_TOPIC": 1}
    broker.add_topic("late", 3)
    created_s = time.monotonic()
    sent = 1
    while not _records(broker, "late"):
        assert time.monotonic() - created_s < 8, "The topic is still unknown."
        sender.send(message(b"late", b"%d" % sent))
        sent += 1
        time.sleep(0.1)
    sender.send_bad(*[message(b"late", b"good %d" % number) for number in range(5)])
    discarded = sender.settle()
    arrived = _records(broker, "late")
    assert discarded == {"BAD_TOPIC": sent + 5 - len(arrived)}
    assert {(None, b"good %d" % number, 7) for number in range(5)} <= arrived


# --- sizes -----------------------------------------------------------------------------------------------------------


def test_a_message_too_long_for_kafka_is_discarded(sender: CheckedSender, broker: DevBroker) -> None:
    """The limit counts key, value and 26 bytes; the test sends both kinds between good messages of the same topic."""
    longest = MESSAGE_MAX - 26
    before = _records(broker, "t1")
    sender.send_bad(
        encode(b"t1", b"c" * (longest - 5), b"k" * 6, timestamp_ms=14),
        message(b"t1", b"a" * longest, timestamp=11),
        message(b"t1", b"b" * (longest + 1), timestamp=12),
        encode(b"t1", b"d" * (longest - 6), b"k" * 6, 1, timestamp_ms=13),
        encode(b"t1", b"e" * 30_000, b"", 1, timestamp_ms=15),
    )
    assert sender.settle() == {"LONG_MSG": 3}
    arrived = _records(broker, "t1") - before
    assert {(value or b"")[:1] for _, value, _ in arrived} == {b"a", b"d"}
    samples = [b"t1 " + letter * (SAMPLE - 3) for letter in (b"b", b"e")]
    sender.daemon.wait_for(
        lambda: set(samples) <= {b64decode(sample) for sample in sender.report()["recent_too_long_msg"]},
        "the samples",
        10,
    )
    (entry,) = [item for item in sender.report()["discard_topic"] if item["topic"] == "t1"]
    assert (entry["count"], entry["min_timestamp"], entry["max_timestamp"]) == (3, 12, 15)
    assert entry["reasons"] == {"LONG_MSG": 3}


def of_length(length: int, letter: bytes = b"z") -> bytes:
    return message(b"t1", letter * (length - len(message(b"t1", b""))))


def test_the_largest_datagram_is_accepted_and_one_more_byte_is_malformed(sender: CheckedSender) -> None:
    """The input accepts the largest datagram; the router finds it too long for Kafka."""
    cut_to_fit = of_length(LIMIT) + b"!"
    sender.watch_report()
    sender.send_bad(of_length(LIMIT), of_length(LIMIT + 1), of_length(LIMIT + 40), of_length(60_000), cut_to_fit)
    assert sender.settle() == {"MALFORMED": 4, "LONG_MSG": 1}
    assert sender.counted() == {"InputAgentProcessAnyPartitionMsg": 1, "InputAgentDiscardMsgMalformed": 4}
    report = sender.wait_reported("malformed_msg_count", 4)
    assert b64decode(report["recent_malformed"][0]) == cut_to_fit[:SAMPLE]


# --- anything --------------------------------------------------------------------------------------------------------


def damage(rng: random.Random, data: bytes) -> bytes:
    """Change, cut or lengthen a message; mostly adjust Size to the result."""
    changed = bytearray(data)
    for _ in range(rng.randrange(4)):
        if changed:
            at = rng.randrange(min(len(changed), 40)) if rng.random() < 0.8 else rng.randrange(len(changed))
            changed[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    if rng.random() < 0.2:
        del changed[rng.randrange(len(changed) + 1) :]
    if rng.random() < 0.2:
        changed += rng.randbytes(rng.randrange(5))
    if rng.random() < 0.7 and len(changed) >= 4:
        changed[:4] = len(changed).to_bytes(4, "big")
    return bytes(changed)


def anything(rng: random.Random) -> bytes:
    if rng.random() < 0.2:
        return rng.randbytes(int(2 ** (rng.random() * 15)))
    seed = rng.choice([*VECTORS_GOOD.values(), *(vector for vector, _ in MALFORMED.values())])
    return damage(rng, bytes.fromhex(seed))


def expected(data: bytes) -> str:
    """Return the outcome of a datagram by the reference parser."""
    outcome = parse_message(data)
    if not isinstance(outcome, Message):
        return outcome.reason.name
    return "delivered" if outcome.topic in {topic.encode() for topic in TOPICS} else DiscardReason.BAD_TOPIC.name


def test_random_input_is_delivered_or_discarded(sender: CheckedSender, daemon: Daemon) -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    pids = daemon.pids()
    outcomes: dict[str, int] = {}
    for _ in range(RANDOM):
        data = anything(rng)
        outcomes[expected(data)] = outcomes.get(expected(data), 0) + 1
        sender.send_bad(data)
    outcomes.pop("delivered", None)
    assert sender.settle() == outcomes, f"seed {seed}"
    assert {"MALFORMED", "BAD_TOPIC", "UNSUPPORTED_API_KEY", "UNSUPPORTED_VERSION"} <= outcomes.keys()
    assert daemon.pids() == pids
    assert json.dumps(sender.report())


def test_the_tables_cover_every_api_key() -> None:
    """A new kind of message needs new rows in the tables above."""
    assert set(ApiKey) == {256, 257}
