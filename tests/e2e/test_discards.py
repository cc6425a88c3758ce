"""Each reason for a discard, provoked from outside: counted, reported, and kept in the file.

The messages in the file can be sent again; delivery continues after any damage to the file.
"""

from __future__ import annotations

import os
import resource
import signal
from collections import Counter as Tally
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil
import pytest

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.devbroker.faults import Fault, FaultAction
from bruce_mp.errors import DiscardReason
from bruce_mp.protocol.client.discard_line import DiscardLine, LineEvent, parse_line
from bruce_mp.protocol.client.messages import encode
from support.daemon import Daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

MESSAGE_MAX: Final = 20_000
KEY: Final = b"\x00key"
STAMP: Final = 1_700_000_000_000
SETTINGS: Final = {
    "discard_log.enable": "true",
    "batching.message_max_bytes": MESSAGE_MAX,
    "batching.default.action": "none",
    "rate_limit.configs.none.interval_ms": 1000,
    "rate_limit.configs.none.max_count": 0,
    "rate_limit.topics.limited": "none",
}
TOPICS: Final = ("good", "limited", "refused", "unlucky", "doubtful")


def lines_in(path: Path) -> list[DiscardLine]:
    return [parse_line(line) for line in path.read_bytes().splitlines()] if path.exists() else []


class Bench:
    """A daemon with a discard file."""

    def __init__(self, directory: Path, broker: DevBroker, settings: dict[str, object] | None = None) -> None:
        self.file = directory / "discard.log"
        self.broker = broker
        self.daemon = Daemon(directory, broker.bootstrap, SETTINGS | {"discard_log.path": self.file} | (settings or {}))

    def send(self, topic: str, value: bytes = b"value", count: int = 1, partition_key: int | None = None) -> None:
        self.daemon.send(topic, *[value] * count, key=KEY, partition_key=partition_key, timestamp_ms=STAMP)

    def lines(self) -> list[DiscardLine]:
        return lines_in(self.file)

    def wait_lines(self, count: int) -> list[DiscardLine]:
        self.daemon.wait_for(lambda: len(self.lines()) >= count, f"{count} lines in the discard file", 20)
        return self.lines()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with DevBroker(topics=dict.fromkeys(TOPICS, 1)) as broker:
        made = Bench(tmp_path_factory.mktemp("daemon"), broker)
        with made.daemon as daemon:
            daemon.wait_for(lambda: "dispatcher-0" in daemon.pids(), "the dispatcher", 20)
            yield made


class Case(NamedTuple):
    """The cause of a discard, and its line: info, topic, value."""

    provoke: Callable[[Bench], None]
    info: str
    topic: bytes
    value: bytes


def _refuse(topic: str, code: int) -> Callable[[Bench], None]:
    def provoke(bench: Bench) -> None:
        bench.broker.inject(Fault(action=FaultAction.ERROR, code=code, topic=topic, times=None))
        bench.send(topic, partition_key=2**32 - 1)

    return provoke


GOOD: Final = encode(b"good", b"v", b"", timestamp_ms=STAMP)
API_KEY_300: Final = GOOD[:4] + b"\x01\x2c" + GOOD[6:]
VERSION_7: Final = GOOD[:6] + b"\x00\x07" + GOOD[8:]
CASES: Final = {
    DiscardReason.MALFORMED: Case(
        lambda bench: bench.daemon.send_encoded(b"\x00garbage"), "MALFORMED", b"", b"\x00garbage"
    ),
    DiscardReason.UNSUPPORTED_API_KEY: Case(
        lambda bench: bench.daemon.send_encoded(API_KEY_300), "API_KEY(300)", b"", API_KEY_300
    ),
    DiscardReason.UNSUPPORTED_VERSION: Case(
        lambda bench: bench.daemon.send_encoded(VERSION_7), "VERSION(7)", b"", VERSION_7
    ),
    DiscardReason.BAD_TOPIC: Case(lambda bench: bench.send("nobody's"), "BAD_TOPIC", b"nobody's", b"value"),
    DiscardReason.LONG_MSG: Case(
        lambda bench: bench.send("good", bytes(MESSAGE_MAX)), "LONG_MSG", b"good", bytes(MESSAGE_MAX)
    ),
    DiscardReason.RATE_LIMIT: Case(lambda bench: bench.send("limited"), "RATE_LIMIT", b"limited", b"value"),
    DiscardReason.KAFKA_ERROR_ACK: Case(_refuse("refused", 42), "KAFKA_ERROR_ACK", b"refused", b"value"),
    DiscardReason.DELIVERY_ATTEMPT_LIMIT: Case(_refuse("unlucky", 2), "DELIVERY_ATTEMPT_LIMIT", b"unlucky", b"value"),
}
ELSEWHERE: Final = {
    DiscardReason.NO_MEM: "test_a_full_slab_delivers_or_files_every_message",
    DiscardReason.NO_AVAILABLE_PARTITIONS: "tests/router: it takes a full table of partitions",
    DiscardReason.TOPIC_AUTOCREATE_FAIL: "where topics are created",
    DiscardReason.UNCLEAN_DISCONNECT: "where streams are read",
    DiscardReason.ABANDONED_ATTEMPT: "tests/e2e/test_fences.py",
    DiscardReason.POSSIBLY_DELIVERED: "tests/e2e/test_error_table.py",
    DiscardReason.SPILL_LOST: "tests/input/test_spills.py",
    DiscardReason.SENDER_NOT_ALLOWED: "tests/e2e/test_senders.py",
    DiscardReason.OVER_QUOTA: "tests/e2e/test_senders.py",
    DiscardReason.TOPIC_OVER_SHARE: "tests/e2e/test_stuck_topics.py",
    DiscardReason.SERVER_SHUTDOWN: "never given: what is left at a shutdown stays in the slab",
    DiscardReason.BUG: "never given so far",
}


def test_every_reason_has_a_case_or_a_test_elsewhere() -> None:
    assert CASES.keys() | ELSEWHERE.keys() == set(DiscardReason)
    assert not CASES.keys() & ELSEWHERE.keys()


@pytest.mark.parametrize("reason", CASES, ids=lambda reason: reason.name)
def test_a_discard_is_counted_reported_and_kept(bench: Bench, reason: DiscardReason) -> None:
    case, before = CASES[reason], len(bench.lines())
    books = bench.daemon.wait_consistent()
    case.provoke(bench)
    settled = bench.daemon.wait_settled(books.received + 1)
    line = bench.wait_lines(before + 1)[before]
    assert settled.discarded[reason.name] == books.discarded.get(reason.name, 0) + 1
    assert (line.event, line.info, line.topic, line.value) == (LineEvent.DISCARD, case.info, case.topic, case.value)
    understood = bool(case.topic)
    assert line.key == (KEY if understood else b"")
    assert line.timestamp_ms == (STAMP if understood else line.now_ms)
    in_request = reason in {DiscardReason.KAFKA_ERROR_ACK, DiscardReason.DELIVERY_ATTEMPT_LIMIT}
    assert line.partition_key == (2**32 - 1 if in_request else None)
    bench.daemon.wait_for(lambda: f"discarded: {reason.name} (" in bench.daemon.log(), "a word in the log", 10)


def test_possible_duplicates_are_written_to_the_discard_file(bench: Bench) -> None:
    before = len(bench.lines())
    bench.broker.inject(Fault(action=FaultAction.ERROR, code=59, topic="doubtful", times=1))
    bench.send("doubtful", count=1)
    (line,) = bench.wait_lines(before + 1)[before:]
    assert (line.event, line.info, line.topic, line.value) == (LineEvent.DUPLICATE, "NONE", b"doubtful", b"value")
    report = bench.daemon.get("/discards/json")["unfinished_report"]
    assert [each["topic"] for each in report["possible_duplicate_topic"]] == ["doubtful"]


def test_a_full_slab_delivers_or_files_every_message(tmp_path: Path) -> None:
    """Every sent message is delivered or in the file, from which it could be sent again."""
    with DevBroker(topics={"good": 1}) as broker:
        broker.inject(Fault(action=FaultAction.ERROR, code=7, topic="good", times=None))
        bench = Bench(tmp_path, broker, {"slab.size": "8m", "topic_share.alpha": 0})
        count, value = 2000, bytes(6000)
        with bench.daemon as daemon:
            bench.send("good", value, count)
            daemon.wait_received(count)
            lost = daemon.wait_consistent().discarded["NO_MEM"]
            assert Tally(line.info for line in bench.wait_lines(lost)) == {"NO_MEM": lost}
            broker.clear_faults()
            books = daemon.wait_settled(count)
            assert books.delivered == count - lost
            assert {line.value for line in bench.lines()} == {value}


def test_a_rolled_file_keeps_within_its_archive(tmp_path: Path) -> None:
    with DevBroker(topics={"good": 1}) as broker:
        settings: dict[str, object] = {
            "input.max_datagram_size": "4k",
            "input.max_stream_size": "4k",
            "discard_log.max_file_size": "8k",
            "discard_log.max_archive_size": "20k",
            "discard_log.max_msg_prefix_size": 5,
        }
        bench = Bench(tmp_path, broker, settings)
        with bench.daemon as daemon:
            bench.send("nobody's", bytes(3000), 400)
            daemon.wait_settled(400)
            counters = {"DiscardLogLine": 400, "MsgCopyLost": 0}
            daemon.wait_for(lambda: counters.items() <= daemon.counters().items(), "all lines", 20)
    rolled = sorted(each for each in tmp_path.iterdir() if each.name.startswith("discard.log."))
    assert 1 <= len(rolled) <= 2
    assert {len(line.value) for path in [*rolled, bench.file] for line in lines_in(path)} == {5}


@pytest.mark.parametrize("trouble", ["no permission", "full disk"])
def test_an_unwritable_discard_file_affects_nothing_else(tmp_path: Path, trouble: str) -> None:
    with DevBroker(topics={"good": 1}) as broker:
        bench = Bench(tmp_path, broker)
        if trouble == "no permission":
            bench.file.mkdir()  # the tests may run as root, which ignores modes
        with bench.daemon as daemon:
            if trouble == "full disk":
                limit = (50_000, resource.RLIM_INFINITY)  # exceeds the size of the daemon's log, which must continue
                psutil.Process(daemon.pids()["status"]).rlimit(psutil.RLIMIT_FSIZE, limit)
            for _ in range(100):
                bench.send("nobody's", bytes(1000))
                bench.send("good")
            books = daemon.wait_settled(200)
            assert (books.delivered, books.discarded) == (100, {"BAD_TOPIC": 100})
            wait_accounted(daemon, 100)
            assert daemon.counters()["MsgCopyLost"] > 0
            daemon.wait_for(lambda: "The daemon still delivers messages" in daemon.log(), "a word in the log", 10)
            assert f"{bench.file} cannot be" in daemon.log()
            assert "the discard file" in " ".join(daemon.get("/healthz")["warnings"])
            lines = lines_in(bench.file) if bench.file.is_file() else []
            assert len(lines) == daemon.counters()["DiscardLogLine"]


def accounted(daemon: Daemon) -> int:
    counters = daemon.counters()
    return counters["DiscardLogLine"] + counters["MsgCopyLost"]


def wait_accounted(daemon: Daemon, count: int) -> None:
    daemon.wait_for(lambda: accounted(daemon) >= count, "each line to be written or counted", 20)


def test_every_copy_lost_in_a_kill_of_all_processes_is_counted(tmp_path: Path) -> None:
    """The router and the input discard; lines, lost copies and discards agree but for one line a kill."""
    with DevBroker(topics={"limited": 1}) as broker:
        bench = Bench(tmp_path, broker)
        daemon = bench.daemon
        with daemon.checked_at_end():
            daemon.start()
            for kills, count in enumerate((1000, 2000, 3000), 1):
                if count == 3000:
                    os.kill(daemon.pids()["status"], signal.SIGSTOP)  # no line of this round is written
                for _ in range(500):
                    bench.send("limited", bytes(300))
                    bench.daemon.send_encoded(b"garbage")
                daemon.wait_received(count)
                daemon.kill_all()
                daemon.start()
                assert sum(daemon.wait_settled(count).discarded.values()) == count
                wait_accounted(daemon, count)
                uncounted = len(bench.lines()) - daemon.counters()["DiscardLogLine"]
                # A kill may hit between a write and its two counters: that line is uncounted, or counted as lost, too.
                assert 0 <= uncounted <= kills
                assert 0 <= accounted(daemon) - count <= kills
            assert daemon.counters()["MsgCopyLost"] >= 1000
            assert "The discard file lacks" in daemon.log()
            assert daemon.terminate() == 0


def test_the_last_discards_before_shutdown_are_in_the_file(tmp_path: Path) -> None:
    with DevBroker(topics={"good": 1}) as broker:
        bench = Bench(tmp_path, broker)
        with bench.daemon as daemon:
            daemon.wait_for(lambda: "dispatcher-0" in daemon.pids(), "the dispatcher", 20)
            bench.daemon.send_encoded(b"bad")
            bench.send("good", bytes(MESSAGE_MAX))
            assert daemon.terminate() == 0
    assert Tally(line.info for line in bench.lines()) == {"MALFORMED": 1, "LONG_MSG": 1}


# --- message debugging ------------------------------------------------------------------------------------------------


def test_message_debugging_copies_the_messages_of_a_topic(tmp_path: Path) -> None:
    with DevBroker(topics={"good": 1, "other": 1}) as broker:
        directory = tmp_path / "debug"
        bench = Bench(tmp_path, broker, {"msg_debug.enable": "true", "msg_debug.path": directory})
        with bench.daemon as daemon:
            bench.send("good")
            daemon.wait_settled(1)
            assert daemon.get_text("/msg_debug/add_topic/good") == "Enabled debug topic [good]\n"
            names = ("msg_receive", "msg_send", "msg_got_ack")
            received = 1

            def send_until_copied(lines: int) -> None:
                """Send until the choice has reached all processes."""
                nonlocal received

                def copied() -> bool:
                    nonlocal received
                    bench.send("good")
                    bench.send("other")
                    received += 2
                    daemon.wait_settled(received)
                    return all(text_of(directory / name).count("\n") >= lines for name in names)

                daemon.wait_for(copied, f"{lines} lines in each file", 20)

            send_until_copied(2)
            daemon.kill("status")
            daemon.wait_for(lambda: "[good]" in daemon.get_text("/msg_debug/get_topics"), "the choice to be kept", 20)
            send_until_copied(20)
            daemon.kill("router")
            daemon.kill("dispatcher-0")
            send_until_copied(30)
            line = "ts: 1700000000000 topic: 4[good] key: 8[AGtleQ==] value: 8[dmFsdWU=]"
            assert {each for name in names for each in text_of(directory / name).splitlines()} == {line}
            assert daemon.get_text("/msg_debug/del_topic/good") == "Disabled debug topic [good]\n"


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""
