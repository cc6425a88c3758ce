"""`bruce send`: send messages from the command line, a file or standard input to the daemon.

Exit status: 2 for wrong options; 1 if the kernel did not accept a message, or if `--flush` finds an undelivered one;
else 0. At the end the command writes the number of sent messages to standard error, also after an error.
"""

from __future__ import annotations

import os
import re
import sys
import time
from argparse import ArgumentTypeError
from contextlib import nullcontext
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp import __version__
from bruce_mp.client.datagram import MAX_DATAGRAM, DatagramClient
from bruce_mp.client.errors import MessageTooLargeError
from bruce_mp.client.kernels.fields import encode_fields
from bruce_mp.client.stream import MAX_STREAM_MESSAGE, StreamClient, TcpClient
from bruce_mp.errors import BruceError, ExitCode, LocalProtocolError
from bruce_mp.protocol.client.messages import MAX_MESSAGE, MAX_TOPIC
from bruce_mp.protocol.client.record_headers import encode_headers

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator

    from bruce_mp.client.base import Client
    from bruce_mp.protocol.client.record_headers import Header

__all__ = ["add_arguments", "run"]

_INTEGER: Final = re.compile(r"-?[0-9]{1,10}")
_SIZE_BYTES: Final = 4
"""Length of the field Size, the first field of a message."""
_STANDARD_INPUT: Final = "-"
LINGER_S: Final = 0.01
"""Time for which messages gather before they are written together."""
TIMEOUT_S: Final = 60.0
"""Longest wait for a daemon that does not read; a user at a terminal should not wait longer."""
CONNECT_S: Final = 2.0
"""Time limit for connecting to a stream socket; it is not 0, because the daemon may be starting."""
MAX_PAD: Final = 1000
"""Largest number of digits for `--pad`, so that the numbers need little memory."""


class UsageError(BruceError):
    """Conflicting options, or a value that no message can have."""

    exit_code = ExitCode.USAGE


def _integer(low: int, high: int) -> Callable[[str], int]:
    """Return the parser of an option that takes an integer from `low` to `high`."""

    def parse(text: str) -> int:
        if not _INTEGER.fullmatch(text) or not low <= int(text) <= high:
            raise ArgumentTypeError(f"{text} is not an integer from {low} to {high}")
        return int(text)

    return parse


def _parse_header(text: str) -> Header:
    name, equals, value = os.fsencode(text).partition(b"=")
    if not name:
        raise ArgumentTypeError(f"{text!r} has no name: give NAME=VALUE, or NAME alone")
    return name, value if equals else None


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `bruce send`.

    The spellings with an underscore are those of `to_bruce`, the tool of the C++ daemon.
    """
    natural_number = _integer(0, 2**31 - 1)
    parser.add_argument("--version", action="version", version=f"bruce {__version__}")
    destination = parser.add_mutually_exclusive_group(required=True)
    destination.add_argument("--socket-path", "--socket_path", metavar="PATH", help="the daemon's UNIX datagram socket")
    destination.add_argument("--stream-socket-path", metavar="PATH", help="the daemon's UNIX stream socket")
    destination.add_argument("--port", metavar="N", type=_integer(1, 65535), help="the daemon's TCP port on 127.0.0.1")
    parser.add_argument("--topic", required=True, type=os.fsencode, help="topic of the messages")
    parser.add_argument("--key", default=b"", type=os.fsencode, help="Kafka key of the messages")
    parser.add_argument(
        "--partition-key", "--partition_key", metavar="N", type=_integer(-1, 2**32 - 1),
        help="choose the partition by N modulo the number of partitions",
    )  # fmt: skip
    parser.add_argument(
        "--header", metavar="NAME=VALUE", dest="headers", action="append", default=[], type=_parse_header,
        help="a record header of the messages; NAME alone has a null value; repeatable",
    )  # fmt: skip
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--value", metavar="TEXT", type=os.fsencode, help="value of the message")
    source.add_argument("--null", action="store_true", help="a null value: deletes the key from a compacted topic")
    source.add_argument("--stdin", action="store_true", help="value = all of standard input; the default")
    source.add_argument(
        "--lines", metavar="FILE", nargs="*", help="one message for each line of the files; - or none: standard input"
    )
    parser.add_argument("--count", metavar="N", type=natural_number, help="send the value N times (default 1)")
    parser.add_argument(
        "--interval", metavar="US", type=natural_number, default=0, help="pause between messages, in us"
    )
    parser.add_argument("--seq", action="store_true", help="put a number, from 1, and a space before the value")
    parser.add_argument(
        "--pad", metavar="N", type=_integer(0, MAX_PAD), default=0, help="pad the number with zeros to N digits"
    )
    parser.add_argument("--bad", action="store_true", help="send malformed messages, whose Size is one too small")
    parser.add_argument(
        "--print", metavar="N", type=natural_number, default=0, dest="print_every",
        help="report the number of written messages after every N messages",
    )  # fmt: skip
    parser.add_argument(
        "--max-size", metavar="BYTES", type=natural_number,
        help=f"largest message that the daemon accepts (default {MAX_DATAGRAM}, and {MAX_STREAM_MESSAGE} on streams)",
    )  # fmt: skip
    parser.add_argument(
        "--flush", metavar="SECONDS", type=natural_number,
        help="on streams: wait until Kafka has all messages, and print the outcome",
    )  # fmt: skip


def run(args: Namespace) -> int:
    """Send the messages that the options describe, report errors on standard error, and return the exit status."""
    try:
        _check_options(args)
    except UsageError as error:
        return _report_error(error)
    client = None
    try:
        with _create_client(args) as client:
            _send_all(client, args)
    except BruceError as error:
        return _report_error(error)
    finally:
        sent_count = client.stats().sent if client else 0
        messages = "1 message" if sent_count == 1 else f"{sent_count} messages"
        sys.stderr.write(f"bruce send: {messages} sent to {_destination(args)}.\n")
    return ExitCode.OK


def _create_client(args: Namespace) -> Client:
    """Create a client that accepts messages of any size, because `_send_all` enforces the limit."""
    linger = 0.0 if args.interval else LINGER_S
    if args.socket_path is not None:
        so_sndbuf = (
            args.max_size if (args.max_size or 0) > MAX_DATAGRAM else None
        )  # SO_SNDBUF needs no change up to this size
        return DatagramClient(args.socket_path, max_message=MAX_MESSAGE, send_buffer=so_sndbuf)
    if args.stream_socket_path is not None:
        return StreamClient(args.stream_socket_path, timeout=TIMEOUT_S, linger=linger, max_message=MAX_MESSAGE)
    return TcpClient(args.port, timeout=TIMEOUT_S, linger=linger, max_message=MAX_MESSAGE)


def _destination(args: Namespace) -> str:
    return str(args.socket_path or args.stream_socket_path or f"port {args.port}")


def _send_all(client: Client, args: Namespace) -> None:
    """Send the messages, and flush if --flush is given; raise BruceError if a flush reports discarded messages."""
    if isinstance(client, (StreamClient, TcpClient)):
        client.connect(CONNECT_S)
    for number, message in enumerate(_messages(args), 1):
        if len(message) > _size_limit(args):
            raise _too_large_error(str(len(message)), args)
        client.send_encoded(message)
        if args.print_every and number % args.print_every == 0:
            print(f"{number} messages written", flush=True)
    if args.flush is not None and isinstance(client, (StreamClient, TcpClient)):
        outcome = client.flush(args.flush)
        reasons = "".join(f", {name} {count}" for name, count in outcome.reasons.items())
        print(f"{outcome.delivered} messages delivered, {outcome.discarded} discarded{reasons}", flush=True)
        if outcome.discarded:
            raise BruceError("The daemon discarded messages; its /discards page and its log give details.")


def _size_limit(args: Namespace) -> int:
    default = MAX_STREAM_MESSAGE if args.socket_path is None else MAX_DATAGRAM
    return default if args.max_size is None else int(args.max_size)


def _too_large_error(size: str, args: Namespace) -> MessageTooLargeError:
    setting = "input.max_stream_size" if args.socket_path is None else "input.max_datagram_size"
    return MessageTooLargeError(
        f"A message of {size} bytes is too large: the daemon accepts {_size_limit(args)}. Split it; or raise "
        f"{setting} in the daemon's configuration, and give --max-size."
    )


def _check_options(args: Namespace) -> None:
    if args.null and args.seq:
        raise UsageError("--seq puts a number before the value: it cannot be combined with --null.")
    if not args.stdin and _reads_standard_input(args) and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError(
            "The message has no value: give --value TEXT or --lines FILE, or pipe the value into the command. "
            "--value '' sends an empty value, --null a null one."
        )
    if sys.stdin is None and (args.stdin or _reads_lines_of_standard_input(args)):
        raise UsageError("Standard input is closed: redirect it, or give --value TEXT or --lines FILE.")
    if args.lines is not None and args.count is not None:
        raise UsageError("--count repeats one value: it cannot be combined with --lines.")
    if args.lines and args.lines.count(_STANDARD_INPUT) > 1:
        raise UsageError("--lines reads standard input (-) only once.")
    if args.flush is not None and args.socket_path is not None:
        raise UsageError("--flush needs an answer, which datagrams cannot carry: use --stream-socket-path or --port.")
    if not 0 < len(args.topic) <= MAX_TOPIC:
        raise UsageError(f"--topic has {len(args.topic)} bytes: give 1 to {MAX_TOPIC}.")
    try:
        encode_headers(args.headers)
    except LocalProtocolError as error:
        raise UsageError(f"--header: {error}") from error


def _report_error(error: BruceError) -> ExitCode:
    sys.stderr.write(f"bruce send: {error}\n")
    return error.exit_code


def _messages(args: Namespace) -> Iterator[bytes]:
    """Yield the encoded messages, each after the pause that --interval sets."""
    for number, value in enumerate(_values(args), 1):
        if args.interval and number > 1:
            time.sleep(args.interval / 1e6)
        sequence = f"{number:0{args.pad}d} ".encode() if args.seq else b""
        content = None if args.null else sequence + value
        message = encode_fields(args.topic, content, args.key, args.partition_key, None, args.headers, False)
        yield (len(message) - 1).to_bytes(_SIZE_BYTES) + message[_SIZE_BYTES:] if args.bad else message


def _values(args: Namespace) -> Iterator[bytes]:
    """Return the messages' values, without the numbers of --seq."""
    if args.lines is not None:
        return chain.from_iterable(map(_lines_of, args.lines or [_STANDARD_INPUT]))
    value = _standard_input(args) if _reads_standard_input(args) else args.value or b""
    return repeat(value, 1 if args.count is None else args.count)


def _reads_standard_input(args: Namespace) -> bool:
    """Return True if --stdin is given, or if no option gives a value; with --seq, the number is the value."""
    has_value = args.value is not None or args.null or args.seq or args.lines is not None
    return bool(args.stdin) or not has_value


def _reads_lines_of_standard_input(args: Namespace) -> bool:
    return args.lines is not None and (not args.lines or _STANDARD_INPUT in args.lines)


def _standard_input(args: Namespace) -> bytes:
    """Return all of standard input. Raise MessageTooLargeError if it is longer than a message may be."""
    limit = _size_limit(args)
    value = sys.stdin.buffer.read(limit + 1)
    if len(value) > limit:
        raise _too_large_error(f"more than {limit}", args)
    return value


def _lines_of(name: str) -> Iterator[bytes]:
    try:
        with nullcontext(sys.stdin.buffer) if name == _STANDARD_INPUT else Path(name).open("rb") as file:
            for line in file:
                yield line.removesuffix(b"\n")
    except OSError as error:
        raise BruceError(f"{name}: cannot read it: {error.strerror}.") from error
