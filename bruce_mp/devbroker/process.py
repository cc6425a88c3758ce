"""`bruce dev-broker`: run the embedded broker.

When the broker is ready, it prints the lines `BOOTSTRAP host:port[,host:port...]` and `CONTROL address`, where the
address is host:port or the path of a UNIX socket. It runs until SIGTERM or SIGINT. The module `control_command` has the
subcommand `bruce dev-broker control`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import shlex
import signal
import socket
import sys
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter
from typing import TYPE_CHECKING, Final

from bruce_mp.devbroker import control_command
from bruce_mp.devbroker.arguments import ArgumentError, parse_fault
from bruce_mp.devbroker.batch import BatchCheckSettings
from bruce_mp.devbroker.cluster import Cluster
from bruce_mp.devbroker.codes import RefusedError
from bruce_mp.devbroker.commands import MAX_PORT, Answer, encode_answer, execute
from bruce_mp.devbroker.server import HOST, DevServer
from bruce_mp.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.devbroker.faults import Fault

__all__ = ["main"]

UNIT_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
CONTROL_LINE_MAX: Final = 1 << 20
"""Maximum length in bytes of a command, which is one line."""
TOO_LONG_ANSWER: Final = Answer(ok=False, error=f"A command has at most {CONTROL_LINE_MAX} bytes.")
STDIN_READ_BYTES: Final = 4096
MAX_PARTITIONS: Final = 100_000
"""Maximum number of partitions of a topic, because each needs memory."""


def parse_size(text: str) -> int:
    """Parse a size in bytes from "1000", "64k", "256m" or "1g"."""
    match = re.fullmatch(r"([0-9]+)([kmg]?)", text.lower())
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write bytes or a number with k, m or g.")
    return int(match[1]) * UNIT_SIZES[match[2]]


def parse_topic(text: str) -> tuple[str, int]:
    """Parse (name, partitions) from "NAME:PARTITIONS"."""
    name, colon, partitions = text.rpartition(":")
    if not colon or not partitions.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:PARTITIONS.")
    if int(partitions) > MAX_PARTITIONS:
        raise argparse.ArgumentTypeError(f"{text!r} has too many partitions; the most are {MAX_PARTITIONS}.")
    return name, int(partitions)


def parse_positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up.")
    return int(text)


def parse_quoted_fault(text: str) -> Fault:
    """Parse a fault from one text. Split the text as a shell does, and pass the words to `parse_fault`."""
    try:
        return parse_fault(shlex.split(text))
    except (ArgumentError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_port(text: str) -> int:
    """Parse a port; 0 means any."""
    if not text.isdecimal() or int(text) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to {MAX_PORT}.")
    return int(text)


def parse_control_address(text: str) -> int | str:
    """Return a port as a number, or a path as it is. The slash in a path tells it from a mistyped port."""
    if text.isdecimal():
        return parse_port(text)
    if "/" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a port nor a path with a slash.")
    return text


def create_parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="bruce dev-broker",
        description="An embedded Kafka broker that keeps its records in memory, for demos and tests.",
        epilog="`bruce dev-broker control ADDRESS COMMAND ...` changes a running broker.",
    )
    add = options.add_argument
    add(
        "--cluster-id", default="bruce-dev-broker", metavar="ID",
        help="cluster id in Metadata responses (default bruce-dev-broker)",
    )  # fmt: skip
    add("--brokers", type=parse_positive, default=1, metavar="N", help="number of brokers (default 1)")
    add(
        "--topic", type=parse_topic, action="append", default=[], metavar="NAME:PARTITIONS",
        help="create a topic; repeatable",
    )  # fmt: skip
    add(
        "--auto-create", type=parse_positive, default=0, metavar="PARTITIONS",
        help="create each unknown topic that a Metadata request names, with this number of partitions",
    )  # fmt: skip
    add(
        "--max-bytes", type=parse_size, default="256m", metavar="SIZE",
        help="memory for all records; the oldest ones are removed (default 256m)",
    )  # fmt: skip
    add("--message-max-bytes", type=parse_size, default="1048588", metavar="SIZE", help="largest accepted record batch")
    add("--ack-delay-ms", type=int, default=0, metavar="N", help="delay of each Produce response in milliseconds")
    add("--port", type=parse_port, default=0, metavar="PORT", help="port of the first broker (default: any)")
    add(
        "--fault", type=parse_quoted_fault, action="append", default=[], metavar="'ACTION FIELD=VALUE ...'",
        help="inject a fault at the start; repeatable; `bruce dev-broker control --help` lists actions and fields",
    )  # fmt: skip
    add(
        "--control", type=parse_control_address, default=0, metavar="PORT|PATH",
        help="loopback port, or path of a UNIX socket, for `bruce dev-broker control` (default: any port)",
    )  # fmt: skip
    add("--strict", action="store_true", help="check not only each record batch, but also each record")
    add("--until-eof", action="store_true", help="end also when standard input closes")
    return options


def create_server(options: argparse.Namespace) -> DevServer:
    """Create the server with the topics and faults of the options. Raise RefusedError if a topic is invalid."""
    limits = BatchCheckSettings(options.message_max_bytes, options.strict)
    cluster = Cluster(
        options.brokers, max_bytes=options.max_bytes, auto_create_partitions=options.auto_create, limits=limits,
        cluster_id=options.cluster_id,
    )  # fmt: skip
    for name, partition_count in options.topic:
        cluster.add_topic(name, partition_count)
    server = DevServer(cluster, ack_delay_ms=options.ack_delay_ms)
    for fault in options.fault:
        server.faults.inject(fault)
    return server


def create_stop_event(*, until_eof: bool) -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set, and, if `until_eof` is True, the end of standard input."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_eof:
        loop.add_reader(sys.stdin.fileno(), read_stdin, stop)
    return stop


def read_stdin(stop: asyncio.Event) -> None:
    """Read a part of standard input and discard it. Set `stop` if the input has ended."""
    if not os.read(sys.stdin.fileno(), STDIN_READ_BYTES):
        stop.set()


async def serve(options: argparse.Namespace) -> None:
    """Run the brokers and the control channel until a signal. Raise RefusedError or OSError if the start fails."""
    stop = create_stop_event(until_eof=options.until_eof)
    server = create_server(options)
    await server.start(options.port)
    control = await start_control(server, options.control)
    nodes = server.cluster.snapshot().nodes
    print("BOOTSTRAP", ",".join(f"{node.host}:{node.port}" for node in nodes), flush=True)
    address = control.sockets[0].getsockname()
    print("CONTROL", address if isinstance(address, str) else f"{HOST}:{address[1]}", flush=True)
    await stop.wait()
    control.close()
    if isinstance(address, str):
        os.unlink(address)  # noqa: PTH108  a blocking call does no harm: no other task needs the loop now
    await server.close()


async def start_control(server: DevServer, address: int | str) -> asyncio.Server:
    """Listen on a port of the loopback interface, or on a UNIX socket that only this user can open.

    Raise OSError if the port is in use, or the file exists.
    """

    async def serve_connection(reader: StreamReader, writer: StreamWriter) -> None:
        try:
            while (line := await read_line(reader)) != b"":
                writer.write(encode_answer(TOO_LONG_ANSWER) if line is None else await execute(line, server))
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client has disconnected, or the broker ends
        finally:
            writer.close()

    if isinstance(address, int):
        return await asyncio.start_server(serve_connection, HOST, address, limit=CONTROL_LINE_MAX)
    bound = socket.socket(socket.AF_UNIX)
    try:
        bound.bind(address)  # not left to asyncio, which would replace the socket of another broker
        os.chmod(address, 0o600)  # noqa: PTH101  before the socket listens, so no other user can connect
        return await asyncio.start_unix_server(serve_connection, sock=bound, limit=CONTROL_LINE_MAX)
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"{error.strerror}; remove it if no broker runs there", address) from error


async def read_line(reader: StreamReader) -> bytes | None:
    """Return the next line, b"" at the end of the stream, or None for a line of more than `CONTROL_LINE_MAX` bytes.

    Such a line is read to its end and discarded.
    """
    is_too_long = False
    while True:
        try:
            line = await reader.readuntil(b"\n")
        except IncompleteReadError as end:
            return b"" if is_too_long else end.partial
        except LimitOverrunError as overrun:
            await reader.readexactly(overrun.consumed)
            is_too_long = True
        else:
            return None if is_too_long else line


def main(argv: Sequence[str] | None = None) -> int:
    """Run the broker until a signal, or send a command to a running broker. Return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["control"]:
        return control_command.main(arguments[1:])
    options = create_parser().parse_args(arguments)
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # not its warnings, which report clients that disconnect
    try:
        asyncio.run(serve(options))
    except (RefusedError, OSError) as error:
        print(f"bruce dev-broker cannot start: {error}", file=sys.stderr)
        return ExitCode.SETUP
    return ExitCode.OK
