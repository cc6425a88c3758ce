"""`bruce send` against a real socket: received messages, output and exit status."""

from __future__ import annotations

import argparse
import io
import os
import socket
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from bruce_mp.cli.commands import main
from bruce_mp.client.send import add_arguments, run
from bruce_mp.errors import DiscardReason
from bruce_mp.protocol.client.messages import EmptyFields, Message, Rejection, parse_message
from support.stream_daemon import StreamDaemon

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def run_with(*arguments: str) -> int:
    """Run the command with the topic `t`."""
    parser = argparse.ArgumentParser(prog="bruce send")
    add_arguments(parser)
    return run(parser.parse_args(["--topic", "t", *arguments]))


@pytest.fixture
def send(path: Path) -> Callable[..., int]:
    """Run the command with the daemon's datagram socket and the topic `t`."""
    return partial(run_with, "--socket-path", str(path))


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    def hold(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return hold


def received(daemon: socket.socket) -> list[Message | Rejection]:
    daemon.setblocking(False)
    messages = []
    while True:
        try:
            messages.append(parse_message(daemon.recv(1 << 20)))
        except BlockingIOError:
            return messages


def values(daemon: socket.socket) -> list[bytes]:
    messages = received(daemon)
    return [message.value for message in messages if isinstance(message, Message)]


def test_send_sends_one_value(
    daemon: socket.socket, send: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    before = int(time.time() * 1000)
    assert send("--topic", "größe", "--key", "k", "--value", "hello") == 0
    (message,) = received(daemon)
    assert isinstance(message, Message)
    assert (message.topic, message.key, message.value) == ("größe".encode(), b"k", b"hello")
    assert message.partition_key is None
    assert before <= message.timestamp_ms <= int(time.time() * 1000)
    assert capsys.readouterr().err.startswith("bruce send: 1 message sent to /")


def test_send_knows_the_options_of_to_bruce(daemon: socket.socket) -> None:
    path = daemon.getsockname()
    assert main(["send", "--socket_path", path, "--topic", "news", "--partition_key", "7", "--value", "hello"]) == 0
    (message,) = received(daemon)
    assert isinstance(message, Message)
    assert (message.partition_key, message.value) == (7, b"hello")


def test_send_without_a_value_reads_standard_input(
    daemon: socket.socket, send: Callable[..., int], stdin: Callable[[bytes], None]
) -> None:
    stdin(b"two\nlines\n")
    assert send("--key", "k") == 0
    assert values(daemon) == [b"two\nlines\n"]
    assert send("--value", "") == 0
    assert values(daemon) == [b""]


@pytest.mark.parametrize("is_closed", [True, False])
def test_send_without_a_value_refuses_a_terminal(
    daemon: socket.socket,
    send: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    is_closed: bool,
) -> None:
    """Or a closed standard input."""
    main_end, terminal = os.openpty()
    with open(terminal) as keyboard:  # noqa: PTH123 - a descriptor
        monkeypatch.setattr(sys, "stdin", None if is_closed else keyboard)
        assert send() == 2
        assert "The message has no value: give --value TEXT or --lines FILE, or pipe" in capsys.readouterr().err
        assert send("--seq") == 0
    os.close(main_end)
    assert values(daemon) == [b"1 "]


@pytest.mark.parametrize("arguments", [("--stdin",), ("--lines",), ("--lines", "/dev/null", "-")])
def test_send_refuses_a_closed_standard_input(
    send: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert send(*arguments) == 2
    assert "Standard input is closed: redirect it, or give --value TEXT" in capsys.readouterr().err


def test_null_sends_a_tombstone(daemon: socket.socket, send: Callable[..., int]) -> None:
    assert send("--null", "--key", "k") == 0
    assert [(each.key, each.empty) if isinstance(each, Message) else each for each in received(daemon)] == [
        (b"k", EmptyFields.NULL_VALUE)
    ]


@pytest.mark.parametrize("key", [(), ("--partition-key", "3")])
def test_send_adds_record_headers(daemon: socket.socket, send: Callable[..., int], key: tuple[str, ...]) -> None:
    given = ["trace=a=b", "größe=größe", "empty=", "null", "trace=again"]
    assert send("--value", "v", *key, *(word for header in given for word in ("--header", header))) == 0
    (message,) = received(daemon)
    assert isinstance(message, Message)
    assert (message.value, message.headers) == (
        b"v",
        (
            (b"trace", b"a=b"),
            ("größe".encode(), "größe".encode()),
            (b"empty", b""),
            (b"null", None),
            (b"trace", b"again"),
        ),
    )


@pytest.mark.parametrize(("given", "sent"), [("-1", 4294967295), ("0", 0), ("4294967295", 4294967295)])
def test_send_accepts_signed_and_unsigned_partition_keys(
    daemon: socket.socket, send: Callable[..., int], given: str, sent: int
) -> None:
    assert send("--partition-key", given, "--value", "v") == 0
    (message,) = received(daemon)
    assert isinstance(message, Message)
    assert message.partition_key == sent


@pytest.mark.parametrize(
    "arguments",
    [
        ("--partition-key", "4294967296"),
        ("--partition-key", "-2"),
        ("--count", "-1"),
        ("--count", "many"),
        ("--seq", "--pad", "2147483647"),
        ("--value", "", "--stdin"),
        ("--lines", "--value", "v"),
        ("--no-such-option",),
        ("--header", ""),
        ("--header", "=value"),
        ("--port", "9000"),
        ("--stream-socket-path", "/s"),
    ],
)
def test_invalid_options_exit_2(send: Callable[..., int], arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        send(*arguments)
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--lines", "--count", "2"), "--count repeats one value"),
        (("--lines", "-", "-"), "only once"),
        (("--topic", ""), "--topic has 0 bytes"),
        (("--null", "--seq"), "--seq puts a number before the value"),
        (("--flush", "1"), "--flush needs an answer"),
        (("--topic", "t" * 32768), "--topic has 32768 bytes"),
        (("--header", "n" * 32768), "--header: The key of a record header has 32768 bytes: at most 32767 fit."),
        (("--header", "n=" + "v" * 65529), "--header: The record headers of the message have 65536 bytes: at most"),
    ],
)
def test_conflicting_options_exit_2(
    send: Callable[..., int], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert send(*arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "sent to" not in said


@pytest.mark.parametrize(
    ("options", "sent"),
    [("--count 3 --seq --pad 4", [b"0001 v", b"0002 v", b"0003 v"]), ("--seq", [b"1 v"]), ("--count 0", [])],
)
def test_count_seq_and_pad_number_the_values(
    daemon: socket.socket, send: Callable[..., int], options: str, sent: list[bytes]
) -> None:
    assert send("--value", "v", *options.split()) == 0
    assert values(daemon) == sent


def test_standard_input_is_read_once_and_sent_each_time(
    daemon: socket.socket, send: Callable[..., int], stdin: Callable[[bytes], None]
) -> None:
    stdin(b"two\nlines\xff\n")
    assert send("--stdin", "--count", "2") == 0
    assert values(daemon) == [b"two\nlines\xff\n"] * 2


@pytest.mark.parametrize("arguments", [("--lines",), ("--lines", "-")])
def test_lines_sends_each_line_of_standard_input(
    daemon: socket.socket, send: Callable[..., int], stdin: Callable[[bytes], None], arguments: tuple[str, ...]
) -> None:
    stdin(b"one\n\ntwo \r\nlast")
    assert send(*arguments) == 0
    assert values(daemon) == [b"one", b"", b"two \r", b"last"]


def test_lines_sends_files_in_the_given_order(daemon: socket.socket, send: Callable[..., int], tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"3\n")
    assert send("--seq", "--lines", str(tmp_path / "b"), str(tmp_path / "a")) == 0
    assert values(daemon) == [b"1 3", b"2 1", b"3 2"]


def test_an_unreadable_file_is_named_with_the_number_of_sent_messages(
    daemon: socket.socket, send: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_bytes(b"1\n2\n")
    assert send("--lines", str(tmp_path / "a"), str(tmp_path / "missing")) == 1
    said = capsys.readouterr().err
    assert "missing: cannot read it: No such file or directory" in said
    assert "2 messages sent" in said
    assert values(daemon) == [b"1", b"2"]


@pytest.mark.parametrize("key", [(), ("--partition-key", "3")])
def test_bad_option_sends_malformed_messages(
    daemon: socket.socket, send: Callable[..., int], key: tuple[str, ...]
) -> None:
    assert send("--bad", "--value", "v", *key) == 0
    assert received(daemon) == [Rejection(DiscardReason.MALFORMED)]


def test_print_reports_every_nth_message(
    daemon: socket.socket, send: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert send("--value", "", "--count", "5", "--print", "2") == 0
    assert capsys.readouterr().out == "2 messages written\n4 messages written\n"
    assert len(values(daemon)) == 5


def test_interval_delays_each_message(daemon: socket.socket, send: Callable[..., int]) -> None:
    started = time.monotonic()
    assert send("--value", "", "--count", "3", "--interval", "20000") == 0
    assert time.monotonic() - started >= 0.04
    assert len(values(daemon)) == 3


def test_send_exits_1_without_a_daemon(send: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert send("--value", "v") == 1
    said = capsys.readouterr().err
    assert "Start the daemon" in said
    assert "0 messages sent" in said


def test_a_message_over_the_daemons_limit_is_not_sent(
    daemon: socket.socket, send: Callable[..., int], stdin: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    stdin(bytes(65536 - 28))
    assert send("--stdin") == 1
    said = capsys.readouterr().err
    assert "A message of 65537 bytes is too large: the daemon accepts 65536" in said
    assert "input.max_datagram_size" in said
    assert "--max-size" in said
    stdin(bytes(300_000))
    assert send("--stdin", "--max-size", "400000") == 0
    assert values(daemon) == [bytes(300_000)]


@pytest.mark.usefixtures("daemon")
def test_send_refuses_standard_input_at_the_first_byte_over_the_limit(
    send: Callable[..., int], stdin: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    stdin(bytes(1 << 20))
    assert send("--stdin", "--max-size", "1000") == 1
    assert "A message of more than 1000 bytes is too large: the daemon accepts 1000." in capsys.readouterr().err
    assert sys.stdin.buffer.tell() == 1001


@pytest.mark.usefixtures("daemon")
def test_send_exits_1_when_the_message_exceeds_the_kernel_limit(
    send: Callable[..., int], stdin: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    stdin(bytes(16 << 20))
    assert send("--stdin", "--max-size", str(32 << 20)) == 1
    assert "too large, the kernel accepts" in capsys.readouterr().err


# --- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pause", [(), ("--interval", "1")])
def test_send_writes_to_a_unix_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pause: tuple[str, ...]
) -> None:
    path = tmp_path / "stream"
    with StreamDaemon(path) as daemon:
        way = ("--stream-socket-path", str(path))
        assert run_with(*way, "--value", "v", "--count", "3", "--seq", "--partition-key", "-1", *pause) == 0
        messages = daemon.wait(3)
    assert [message.value for message in messages if isinstance(message, Message)] == [b"1 v", b"2 v", b"3 v"]
    assert f"3 messages sent to {path}" in capsys.readouterr().err


@pytest.mark.parametrize("way", [("--stream-socket-path", "/nowhere/bruce.stream"), ("--port", "1")])
def test_send_reports_a_missing_stream_daemon_quickly(
    way: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bruce_mp.client.send.CONNECT_S", 0.05)
    assert run_with(*way) == 1
    said = capsys.readouterr().err
    assert "Start the daemon, or give the" in said
    assert "0 messages sent to" in said


def test_tcp_flush_prints_the_outcome(capsys: pytest.CaptureFixture[str]) -> None:
    with StreamDaemon() as daemon:
        way = ("--port", str(daemon.port), "--value", "v", "--count", "5", "--flush", "20")
        assert run_with(*way) == 0
        assert capsys.readouterr().out == "5 messages delivered, 0 discarded\n"
        daemon.discards = {DiscardReason.BAD_TOPIC: 2}
        assert run_with(*way) == 1
        assert capsys.readouterr().out == "3 messages delivered, 2 discarded, BAD_TOPIC 2\n"


def test_bad_option_sends_a_malformed_message_on_a_stream(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "stream"))
        listener.listen()
        assert run_with("--stream-socket-path", str(tmp_path / "stream"), "--bad", "--value", "v") == 0
        connection, _ = listener.accept()
        with connection:
            data = connection.recv(100)
    assert int.from_bytes(data[:4], "big") == len(data) - 1


def test_a_stream_accepts_messages_larger_than_a_datagram(
    tmp_path: Path, stdin: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "stream"
    with StreamDaemon(path) as daemon:
        stdin(bytes(2 * 1024 * 1024 + 4 - 29))
        assert run_with("--stream-socket-path", str(path), "--stdin") == 0
        daemon.wait(1)
        stdin(bytes(2 * 1024 * 1024 + 4 - 28))
        assert run_with("--stream-socket-path", str(path), "--stdin") == 1
    assert "input.max_stream_size" in capsys.readouterr().err


@pytest.mark.parametrize("way", [("--socket-path", ""), ("--stream-socket-path", "/" + "x" * 107)])
def test_an_impossible_socket_path_exits_1(way: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_with(*way) == 1
    assert "1 to 107 bytes" in capsys.readouterr().err


def test_version_option_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_with("--version")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("bruce ")
