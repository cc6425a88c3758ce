"""`bruce slab`: the text report, the JSON, and the export of every message as a line that can be parsed."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from itertools import groupby
from socket import MSG_TRUNC
from typing import TYPE_CHECKING

import pytest

from bruce_mp.cli import main
from bruce_mp.client import DatagramClient
from bruce_mp.devbroker.control import DevBroker
from bruce_mp.errors import DiscardReason
from bruce_mp.protocol.client.discard_line import DiscardLine, LineEvent, parse_line
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Slab, create_slab, lock_exclusive
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.telemetry.counters import Counter, discarded
from support.daemon import Daemon
from support.put_records import put_null_and_empty
from support.slabs import DISPATCHER_ROW, INPUT_ROW, SMALL, Input, datagram, put_in_landing_zone, set_state
from support.traffic import Load, Message, messages_of, start_senders

if TYPE_CHECKING:
    from pathlib import Path

BAD_NAME = b"\xff\n"

HEADERS = ((b"a", b"1"), (b"b", None))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A slab with messages in many states; arrival i has the timestamp 1000 + i."""
    path = tmp_path / "slab"
    create_slab(path, SMALL, now_ms=1_700_000_000_000)
    slab = Slab(path)
    slab.store_signed(lay.SUPER_PRODUCER_ID, 4711)
    slab.words[lay.SUPER_IDEMPOTENCE >> 2] = 1
    sender = Input(slab, topics=[(b"clicks", 3), (b"gone", 1)])
    ProcessRow(slab, INPUT_ROW).begin(os.getpid(), 1_700_000_001_000)
    sender.receive([datagram(b"clicks", b"zero", b"k", timestamp=1000), datagram(b"gone", b"one", timestamp=1001)])
    sent, given_up = sender.close_all()
    set_state(slab, [sent], state_word(RunState.IN_FLIGHT, 1))
    slab.view[slab.chunk_at(sent.chunk) + sent.run + lay.RUN_RETRIES] = 3
    sender.receive(
        [
            datagram(b"clicks", b"two", partition_key=2**32 - 1, timestamp=1002, headers=HEADERS),
            datagram(b"gone", b"three"),
        ]
    )
    keyed, delivered = sender.close_all()
    set_state(slab, [keyed], state_word(RunState.QUEUED, 1))
    sender.receive([datagram(BAD_NAME, b"four", timestamp=1004)])
    settler = ProcessRow(slab, DISPATCHER_ROW)
    bad_topic = {discarded(DiscardReason.BAD_TOPIC): 1}
    settler.settle([given_up], RunState.DISCARDED, DiscardReason.BAD_TOPIC, bad_topic)
    settler.settle([delivered], RunState.DELIVERED, 0, {Counter.MsgDelivered: 1})
    put_in_landing_zone(slab, [datagram(b"clicks", b"five", timestamp=1005), b"malformed", bytes(5000)])
    slab.close()
    return path


def export(path: Path, *options: str) -> tuple[int, list[DiscardLine]]:
    """Return the exit status and the lines."""
    out = path.with_name("out")
    status = main(["slab", "export", str(path), "--output", str(out), *options])
    return status, [parse_line(line) for line in out.read_bytes().splitlines(keepends=True)]


# --- export ----------------------------------------------------------------------------------------------------------


def test_export_writes_every_held_message(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = path.read_bytes()
    status, lines = export(path)
    assert status == 0
    assert path.read_bytes() == before
    now = lines[0].now_ms

    def line(info: str, topic: bytes, value: bytes, timestamp: int = now, key: bytes = b"") -> DiscardLine:
        return DiscardLine(now, timestamp, LineEvent.DISCARD, info, topic, key, value)

    assert lines == [
        line("SLAB_SENT", b"clicks", b"zero", 1000, b"k"),
        DiscardLine(now, 1002, LineEvent.DISCARD, "SLAB", b"clicks", b"", b"two", 2**32 - 1, HEADERS),
        line("SLAB", BAD_NAME, b"four", 1004),
        line("SLAB", b"clicks", b"five", 1005),
        line("MALFORMED", b"", b"malformed"),
        line("MALFORMED", b"", bytes(SMALL.landing_slot_size)),
    ]
    assert capsys.readouterr().err == f"bruce: Wrote 6 of 6 messages to {path.with_name('out')}.\n"


def test_export_all_includes_settled_messages(path: Path) -> None:
    status, lines = export(path, "--all")
    assert status == 0
    assert [line.value for line in lines[:5]] == [b"zero", b"one", b"two", b"three", b"four"]
    assert [line.info for line in lines[:5]] == ["SLAB_SENT", "BAD_TOPIC", "SLAB", "SLAB_DELIVERED", "SLAB"]


def test_topics_are_chosen_by_their_bytes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = export(path, "--topic", "clicks", "--topic", os.fsdecode(BAD_NAME))
    assert status == 0
    assert [line.value for line in lines] == [b"zero", b"two", b"four", b"five"]
    assert "Wrote 4 of 6 messages" in capsys.readouterr().err


def test_export_distinguishes_null_from_empty(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    create_slab(path, SMALL, now_ms=1_700_000_000_000)
    slab = Slab(path)
    put_null_and_empty(slab)
    slab.close()
    _, lines = export(path)
    assert [line.empty for line in lines] == [8, 16, 0, 12, 20, 4, 8, 16, 0]


def test_export_names_the_discard_reason_of_landed_datagrams(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    create_slab(path, SMALL, now_ms=0)
    slab = Slab(path)
    good = datagram(b"t", b"v")
    put_in_landing_zone(slab, [good[:4] + b"\0\7" + good[6:], good[:6] + b"\0\3" + good[8:], b"", good])
    slab.close()
    _, lines = export(path)
    assert [line.info for line in lines] == ["API_KEY(7)", "VERSION(3)", "MALFORMED", "SLAB"]
    assert [line.value for line in lines[:2]] == [good[:4] + b"\0\7" + good[6:], good[:6] + b"\0\3" + good[8:]]


def test_export_writes_a_truncated_datagram_as_malformed(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    create_slab(path, SMALL, now_ms=0)
    slab = Slab(path)
    overhead = len(datagram(b"t"))
    full = datagram(b"t", bytes(SMALL.landing_slot_size - overhead))
    put_in_landing_zone(slab, [full, full])
    flags_at = SMALL.landing_at + lay.LANDING_HEADERS + 48
    slab.words[flags_at >> 2] = 0
    slab.words[(flags_at + lay.MMSGHDR_BYTES) >> 2] = MSG_TRUNC
    slab.close()
    _, lines = export(path)
    assert [(line.info, line.topic) for line in lines] == [("SLAB", b"t"), ("MALFORMED", b"")]
    assert lines[1].value == full


def test_standard_output_is_the_default(path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["slab", "export", str(path)]) == 0
    captured = capfdbinary.readouterr()
    assert [parse_line(line).value for line in captured.out.splitlines()][:3] == [b"zero", b"two", b"four"]
    assert captured.err == b"bruce: Wrote 6 of 6 messages to standard output.\n"


@pytest.mark.process
def test_export_reports_a_closed_output_pipe(path: Path) -> None:
    command = [sys.executable, "-m", "bruce_mp", "slab", "export", str(path)]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert done.returncode == 1
    assert done.stderr == b"bruce: standard output: Broken pipe; the export is not complete.\n"


def test_the_output_is_for_its_owner_and_never_overwritten(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = path.with_name("out")
    previous = os.umask(0)
    try:
        export(path)
    finally:
        os.umask(previous)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    out.write_bytes(b"precious")
    capsys.readouterr()
    assert main(["slab", "export", str(path), "--output", str(out)]) == 1
    assert out.read_bytes() == b"precious"
    assert capsys.readouterr().err == f"bruce: {out} exists already; it is not overwritten. Give another --output.\n"


def test_export_reports_an_output_file_that_cannot_be_created(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slab", "export", str(path), "--output", str(path / "out")]) == 1
    assert "Not a directory; the export is not complete" in capsys.readouterr().err


def test_export_refuses_the_slab_of_a_running_daemon_unless_forced(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = lock_exclusive(path)
    assert main(["slab", "export", str(path), "--output", str(path.with_name("out"))]) == 1
    assert "belongs to a daemon that is running" in capsys.readouterr().err
    assert not path.with_name("out").exists()
    status, lines = export(path, "--force")
    assert (status, len(lines)) == (0, 6)
    os.close(held)


def test_export_keeps_daemons_from_locking_the_slab(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def takes(_: object) -> bytes:
        with pytest.raises(Exception, match="belongs to a daemon that is running"):
            lock_exclusive(path)
        return b"line\n"

    monkeypatch.setattr("bruce_mp.cli.slab_export.format_line", takes)
    assert main(["slab", "export", str(path), "--output", str(path.with_name("out"))]) == 0
    os.close(lock_exclusive(path))


def test_export_skips_and_reports_a_damaged_chunk(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with path.open("r+b") as file:
        file.seek(SMALL.chunks_at)
        file.write(b"\0")
    status, lines = export(path)
    assert status == 1
    assert [line.value for line in lines][:2] == [b"two", b"four"]
    *places, end = capsys.readouterr().err.splitlines()
    assert places == [
        "bruce: Chunk 0 has no valid header; it was skipped.",
        "bruce: The books say that 3 messages should be held, but the slab has 2.",
    ]
    assert end.endswith("; found 2 damaged or inconsistent parts of the slab.")


def test_export_does_not_call_spilled_messages_damage(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slab = Slab(path)
    row = ProcessRow(slab, INPUT_ROW)
    row.add(lay.SPILL_IN, 7)
    row.add(Counter.MsgReceived, 7)
    slab.close()
    assert export(path)[0] == 1
    omission, end = capsys.readouterr().err.splitlines()
    assert omission.startswith("bruce: The export omits 7 messages of fenced attempts in spill files")
    assert "damaged" not in end


def test_export_reports_zeroed_memory_that_the_books_miss(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with path.open("r+b") as file:
        file.seek(SMALL.chunks_at)
        file.write(bytes(lay.CHUNK_BYTES))
    assert export(path)[0] == 1
    assert "The books say that 3 messages should be held, but the slab has 2." in capsys.readouterr().err


@pytest.mark.parametrize("command", ["inspect", "export"])
def test_an_unreadable_slab_is_rejected(path: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with path.open("r+b") as file:
        file.seek(8)
        file.write(b"\x03")
    assert main(["slab", command, str(path)]) == 1
    assert "has layout version 3; this program reads 1 and 2. Use a release of bruce" in capsys.readouterr().err
    path.write_text("something else")
    assert main(["slab", command, str(path)]) == 1
    assert "is not a slab" in capsys.readouterr().err
    assert main(["slab", command, str(path.parent)]) == 1
    assert "is not a file" in capsys.readouterr().err
    assert main(["slab", command, f"{path}{'x' * 255}"]) == 1
    assert "File name too long. Correct the path" in capsys.readouterr().err
    assert main(["slab", command, str(path.with_name("nothing"))]) == 1
    assert "cannot be opened: No such file" in capsys.readouterr().err


# --- inspect ---------------------------------------------------------------------------------------------------------

REPORT = """\
created 2023-11-14 22:13:20 UTC, AGE s ago
No daemon uses it.
chunks of 8k: 5 in use, 11 free, 0 damaged
tables for 16 topics, 16 partitions and 128 brokers
landing zone of 16 slots of 4k: 3 datagrams, 3 of them (4,143 bytes) without a record yet
producer id 4711; idempotence: supported by the brokers
received 5 = delivered 1 + discarded 1 (BAD_TOPIC 1) + held 3 (in_flight 1, queued 1, router 1)

Processes:
  input: pid PID, incarnation 1, since 2023-11-14 22:13:21 UTC, last heartbeat 1970-01-01 00:00:00 UTC

Held:
  clicks: 2 messages (queued 1, in_flight 1, 1 sent, up to 3 retries), 23 bytes, of 1970-01-01 00:00:01 UTC to \
1970-01-01 00:00:01 UTC
  \\xff\\x0a: 1 message (router 1), 4 bytes, of 1970-01-01 00:00:01 UTC to 1970-01-01 00:00:01 UTC
"""


def test_inspect_prints_a_readable_report(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slab", "inspect", str(path)]) == 0
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert first == f"{path}: slab of {SMALL.file_size >> 10}k, layout version 2"
    assert second.startswith("created 2023-11-14 22:13:20 UTC, ")
    assert rest == REPORT.replace("PID", str(os.getpid())).splitlines()[1:]


def test_inspect_json_has_all_figures_of_the_report(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slab", "inspect", "--json", str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["in_use"] is False
    assert (found["topic_table"], found["partition_table"], found["broker_table"]) == (16, 16, 128)
    assert found["books"]["held"] == {"input": 0, "router": 1, "queued": 1, "in_flight": 1, "spill": 0}
    assert found["chunks"] == {"bytes_each": 8192, "free": 11, "used": 5, "damaged": 0}
    assert found["landing"] == {"datagrams": 3, "pending": 3, "bytes": 4143}
    assert found["topics"][0] == {
        "topic": "clicks",
        "held": {"input": 0, "router": 0, "queued": 1, "in_flight": 1},
        "messages": 2,
        "bytes": 23,
        "sent": 1,
        "attempts": 3,
        "oldest_ms": 1000,
        "newest_ms": 1002,
    }
    assert found["damage"] == []


def test_inspect_warns_that_a_running_daemon_changes_the_figures(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = lock_exclusive(path)
    assert main(["slab", "inspect", str(path)]) == 0
    assert "A running daemon uses it: the figures change." in capsys.readouterr().out
    os.close(held)


def test_inspect_continues_after_damage(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.truncate(path, SMALL.file_size - 1)
    assert main(["slab", "inspect", str(path)]) == 1
    out = capsys.readouterr().out
    assert "\n  clicks: 2 messages " in out
    assert "does not match its size. It was read with 15 chunks from byte " in out


def test_a_damaged_chunk_is_in_the_report(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with path.open("r+b") as file:
        file.seek(SMALL.chunks_at)
        file.write(b"\0")
        file.seek(lay.SUPER_CREATED_MS)
        file.write(b"\xff" * 7 + b"\x7f")
    assert main(["slab", "inspect", str(path)]) == 1
    out = capsys.readouterr().out
    assert "created 9223372036854775807 ms" in out
    assert "chunks of 8k: 4 in use, 11 free, 1 damaged" in out
    assert out.endswith(
        "Damage:\n  Chunk 0 has no valid header; it was skipped.\n"
        "  The books say that 3 messages should be held, but the slab has 2.\n"
    )


@pytest.mark.parametrize("argv", [[], ["export"], ["inspect"], ["erase", "slab"]])
def test_wrong_usage_exits_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["slab", *argv])
    assert end.value.code == 2


# --- a real daemon ---------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_export_recovers_every_message_that_a_killed_daemon_held(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    known = tuple(f"topic-{number}" for number in range(4))
    load = Load((*known, "unknown"), senders=2, messages=2000, largest=20_000)
    with DevBroker(brokers=2, topics=dict.fromkeys(known, 3)) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        with DatagramClient(str(daemon.socket_path), timeout=60) as client:
            for topic in known:
                client.send(topic, b"delivered")
        daemon.wait_settled(len(known))
        broker.close()
        senders = start_senders(load, daemon.socket_path)
        assert [sender.wait(60) for sender in senders] == [0, 0]
        daemon.wait_received(len(known) + load.total)
        status, lines = export(daemon.slab_path, "--force")
        assert len(lines) == load.total
        capfd.readouterr()

        daemon.kill_all()
        assert main(["slab", "inspect", "--json", str(daemon.slab_path)]) == 0
        found = json.loads(capfd.readouterr().out)
        daemon.slab_path.with_name("out").unlink()
        status, lines = export(daemon.slab_path)
    assert status == 0
    assert found["damage"] == []
    assert not found["in_use"]
    assert sum(topic["messages"] for topic in found["topics"]) + found["landing"]["pending"] == load.total
    assert {process["name"] for process in found["processes"]} >= {"supervisor", "input", "router", "status"}
    assert {line.info for line in lines} <= {"SLAB", "SLAB_SENT"}
    by_sender = sorted(lines, key=_sender)
    for sender, mine in groupby(by_sender, _sender):
        assert [_as_sent(line) for line in mine] == [_unsigned(message) for message in messages_of(load, sender)]
    assert len(lines) == load.total


def _sender(line: DiscardLine) -> int:
    return int(line.value.partition(b":")[0])


def _as_sent(line: DiscardLine) -> Message:
    return Message(line.topic.decode(), line.key, line.value, line.partition_key, line.timestamp_ms)


def _unsigned(message: Message) -> Message:
    key = message.partition_key
    return message._replace(partition_key=None if key is None else key & 0xFFFFFFFF)
