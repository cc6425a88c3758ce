"""`bruce dev-broker`: run the embedded broker.

When it is ready it prints the lines `BOOTSTRAP host:port[,host:port...]` and `CONTROL host:port`. It runs until SIGTERM
or SIGINT.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import sys
from asyncio import StreamReader, StreamWriter
from typing import TYPE_CHECKING, Final

from bruce_mp.devbroker.batch import LogLimits
from bruce_mp.devbroker.cluster import Cluster
from bruce_mp.devbroker.codes import RefusedError
from bruce_mp.devbroker.commands import execute
from bruce_mp.devbroker.server import HOST, DevServer
from bruce_mp.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
CONTROL_LINE_MAX: Final = 1 << 20
STDIN_CHUNK: Final = 4096


def size(text: str) -> int:
    """Parse a size in bytes from "1000", "64k", "256m" or "1g"."""
    match = re.fullmatch(r"([0-9]+)([kmg]?)", text.lower())
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write bytes or a number with k, m or g.")
    return int(match[1]) * UNITS[match[2]]


def topic(text: str) -> tuple[str, int]:
    """Parse (name, partitions) from "NAME:PARTITIONS"."""
    name, colon, partitions = text.rpartition(":")
    if not colon or not partitions.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:PARTITIONS.")
    return name, int(partitions)


def positive_integer(text: str) -> int:
    """Parse a number from 1 up."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up.")
    return int(text)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="bruce dev-broker",
        description="An embedded Kafka broker that keeps its records in memory, for demos and tests.",
    )
    add = options.add_argument
    add("--cluster-id", default="bruce-dev-broker", metavar="ID", help="the id in metadata (default bruce-dev-broker)")
    add("--brokers", type=positive_integer, default=1, metavar="N", help="number of brokers (default 1)")
    add(
        "--topic", type=topic, action="append", default=[], metavar="NAME:PARTITIONS", help="create a topic; repeatable"
    )
    add(
        "--auto-create",
        type=positive_integer,
        default=0,
        metavar="PARTITIONS",
        help="create unknown topics on metadata requests",
    )
    add("--max-bytes", type=size, default="256m", metavar="SIZE", help="memory for all records (default 256m)")
    add("--message-max-bytes", type=size, default="1048588", metavar="SIZE", help="largest accepted record batch")
    add("--ack-delay-ms", type=int, default=0, metavar="N", help="delay of each Produce response")
    add("--port", type=int, default=0, metavar="PORT", help="port of the first broker (default: any)")
    add("--strict", action="store_true", help="check every record of every batch, not only the batch")
    add("--until-eof", action="store_true", help="end also when standard input closes")
    return options


def make_server(options: argparse.Namespace) -> DevServer:
    """Create the server with its topics. Raise RefusedError for an invalid topic."""
    limits = LogLimits(options.message_max_bytes, options.strict)
    cluster = Cluster(
        options.brokers,
        max_bytes=options.max_bytes,
        auto_create=options.auto_create,
        limits=limits,
        cluster_id=options.cluster_id,
    )
    for name, partitions in options.topic:
        cluster.add_topic(name, partitions)
    return DevServer(cluster, ack_delay_ms=options.ack_delay_ms)


def stop_event(*, until_eof: bool) -> asyncio.Event:
    """Return an event that SIGTERM, SIGINT and, with `until_eof`, the end of standard input set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_eof:
        loop.add_reader(sys.stdin.fileno(), read_stdin, stop)
    return stop


def read_stdin(stop: asyncio.Event) -> None:
    """Discard the input, and stop at its end."""
    if not os.read(sys.stdin.fileno(), STDIN_CHUNK):
        stop.set()


async def serve(options: argparse.Namespace) -> None:
    """Run the brokers and the control channel. Raise RefusedError or OSError if the start fails."""
    stop = stop_event(until_eof=options.until_eof)
    server = make_server(options)
    await server.start(options.port)
    control = await start_control(server)
    nodes = server.cluster.view().nodes
    print("BOOTSTRAP", ",".join(f"{node.host}:{node.port}" for node in nodes), flush=True)
    print("CONTROL", f"{HOST}:{control.sockets[0].getsockname()[1]}", flush=True)
    await stop.wait()
    control.close()
    await server.close()


async def start_control(server: DevServer) -> asyncio.Server:
    async def serve_connection(reader: StreamReader, writer: StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(await execute(line, server))
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client has disconnected, or the broker ends
        finally:
            writer.close()

    return await asyncio.start_server(serve_connection, HOST, 0, limit=CONTROL_LINE_MAX)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the broker until a signal, and return the exit status."""
    options = parser().parse_args(argv)
    try:
        asyncio.run(serve(options))
    except (RefusedError, OSError) as error:
        print(f"bruce dev-broker cannot start: {error}", file=sys.stderr)
        return ExitCode.SETUP
    return ExitCode.OK
