"""`bruce send`: messages from the command line, a file or standard input to the daemon's datagram socket.

Exit status: 0 if the kernel took every message, 1 if it did not, 2 for options that do not go together.  How many were
sent goes to standard error at the end, also after an error.
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

from bruce_mp.client.datagram import DatagramClient
from bruce_mp.errors import BruceError, ExitCode
from bruce_mp.protocol.client_wire import MAX_TOPIC, encode_any_partition, encode_partition_key

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator

__all__ = ["add_arguments", "run"]

_INTEGER: Final = re.compile(r"-?[0-9]{1,10}")
_SIZE_BYTES: Final = 4
_STANDARD_INPUT: Final = "-"


class UsageError(BruceError):
    """Options that do not go together, or a value that no message can have."""

    exit_code = ExitCode.USAGE


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not _INTEGER.fullmatch(text) or not low <= int(text) <= high:
            raise ArgumentTypeError(f"{text} is not an integer from {low} to {high}")
        return int(text)

    return parse


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `bruce send`."""
    natural = _integer(0, 2**31 - 1)
    parser.add_argument("--socket-path", metavar="PATH", required=True, help="the daemon's datagram socket")
    parser.add_argument("--topic", required=True, type=os.fsencode, help="topic of the messages")
    parser.add_argument("--key", default=b"", type=os.fsencode, help="Kafka key of the messages")
    parser.add_argument(
        "--partition-key",
        metavar="N",
        type=_integer(-1, 2**32 - 1),
        help="choose the partition by N, modulo their number",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--value", metavar="TEXT", type=os.fsencode, help="value of the message; empty by default")
    source.add_argument("--stdin", action="store_true", help="value = all of standard input")
    source.add_argument(
        "--lines", metavar="FILE", nargs="*", help="one message for each line of the files; - or none: standard input"
    )
    parser.add_argument("--count", metavar="N", type=natural, help="send the value N times (default 1)")
    parser.add_argument("--interval", metavar="US", type=natural, default=0, help="pause between messages, in us")
    parser.add_argument("--seq", action="store_true", help="put a number, from 1, and a space before the value")
    parser.add_argument("--pad", metavar="N", type=natural, default=0, help="pad the number with zeros to N digits")
    parser.add_argument("--bad", action="store_true", help="malformed messages: Size is one too small")
    parser.add_argument(
        "--print", metavar="N", type=natural, default=0, dest="print_every", help="report each N messages written"
    )


def run(args: Namespace) -> int:
    """Send as the options say; the exit status.  Errors are told on standard error."""
    try:
        _check(args)
    except UsageError as error:
        return _fail(error)
    sent = 0
    try:
        with DatagramClient(args.socket_path) as client:
            for message in _messages(args):
                client.send_encoded(message)
                sent += 1
                _report(sent, args.print_every)
    except BruceError as error:
        return _fail(error)
    finally:
        sys.stderr.write(f"bruce send: {sent} {'message' if sent == 1 else 'messages'} sent to {args.socket_path}.\n")
    return ExitCode.OK


def _check(args: Namespace) -> None:
    if args.lines is not None and args.count is not None:
        raise UsageError("--count repeats one value: it does not go with --lines.")
    if args.lines and args.lines.count(_STANDARD_INPUT) > 1:
        raise UsageError("--lines reads standard input (-) only once.")
    if not 0 < len(args.topic) <= MAX_TOPIC:
        raise UsageError(f"--topic has {len(args.topic)} bytes: give 1 to {MAX_TOPIC}.")


def _fail(error: BruceError) -> ExitCode:
    sys.stderr.write(f"bruce send: {error}\n")
    return error.exit_code


def _report(sent: int, every: int) -> None:
    if every and sent % every == 0:
        print(f"{sent} messages written", flush=True)


def _messages(args: Namespace) -> Iterator[bytes]:
    for number, value in enumerate(_values(args), 1):
        if args.interval and number > 1:
            time.sleep(args.interval / 1e6)
        sequence = f"{number:0{args.pad}d} ".encode() if args.seq else b""
        message = _encode(args, sequence + value)
        yield _spoil(message) if args.bad else message


def _encode(args: Namespace, value: bytes) -> bytes:
    now = time.time_ns() // 1_000_000
    if args.partition_key is None:
        return encode_any_partition(args.topic, value, args.key, timestamp_ms=now)
    return encode_partition_key(args.partition_key, args.topic, value, args.key, timestamp_ms=now)


def _spoil(message: bytes) -> bytes:
    return (len(message) - 1).to_bytes(_SIZE_BYTES) + message[_SIZE_BYTES:]


def _values(args: Namespace) -> Iterator[bytes]:
    if args.lines is not None:
        return chain.from_iterable(map(_lines, args.lines or [_STANDARD_INPUT]))
    value = sys.stdin.buffer.read() if args.stdin else args.value or b""
    return repeat(value, 1 if args.count is None else args.count)


def _lines(name: str) -> Iterator[bytes]:
    try:
        with nullcontext(sys.stdin.buffer) if name == _STANDARD_INPUT else Path(name).open("rb") as file:
            for line in file:
                yield line.removesuffix(b"\n")
    except OSError as error:
        raise BruceError(f"{name}: cannot read it: {error.strerror}.") from error
