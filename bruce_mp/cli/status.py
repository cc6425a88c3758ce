"""`bruce status`: summarize a daemon as tables or JSON.

Exit status: 0, or 4 if the daemon does not answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from bruce_mp.cli.options import command_parser
from bruce_mp.cli.status_client import add_address, status_client
from bruce_mp.errors import ExitCode
from bruce_mp.status.pages.brokers import BrokersPage
from bruce_mp.status.pages.health import health_lines
from bruce_mp.status.pages.processes import ProcessesPage
from bruce_mp.status.pages.queues import QueuesPage
from bruce_mp.telemetry.books import Books, balance_line
from bruce_mp.telemetry.clock import utc_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bruce_mp.cli.status_client import StatusClient
    from bruce_mp.status.pages.brokers import BrokerLine
    from bruce_mp.status.pages.header import Page
    from bruce_mp.status.pages.processes import ProcessLine

__all__ = ["main"]

JSON_PAGES: Final = ("server_info", "books", "processes", "brokers", "queues")
DESCRIPTION: Final = (
    "Show the state of a daemon. In the table of topics, BATCH counts messages that the router has claimed and that "
    "were never sent, SEND WAIT counts all other messages that wait to be sent, and ACK WAIT counts sent messages "
    "without a response."
)


def main(argv: Sequence[str]) -> int:
    parser = command_parser("status", DESCRIPTION, __doc__)
    add_address(parser)
    help_text = "print one JSON object that has a member for each status page"
    parser.add_argument("--json", action="store_true", help=help_text)
    args = parser.parse_args(argv)
    client = status_client(args)
    print(_json(client) if args.json else "\n".join(_tables(client)))
    return ExitCode.OK


def _json(client: StatusClient) -> str:
    pages: dict[str, Any] = {"healthz": client.get_health(), **{name: client.get(name, dict) for name in JSON_PAGES}}
    return msgspec.json.format(msgspec.json.encode(pages)).decode()


def _tables(client: StatusClient) -> Iterator[str]:
    processes, queues = client.get("processes", ProcessesPage), client.get("queues", QueuesPage)
    yield _headline(processes)
    yield balance_line(client.get("books", Books))
    yield from health_lines(client.get_health())
    yield ""
    yield from _table(
        ("PROCESS", "PID", "STATE", "RESTARTS", "MEMORY", "CPU"), map(_process_cells, processes.processes)
    )
    stream_workers = [line for line in processes.processes if line.connections is not None]
    if stream_workers:
        yield "\nStream connections: " + ", ".join(f"{line.name} {line.connections}" for line in stream_workers)
    brokers = client.get("brokers", BrokersPage)
    if brokers.metadata_failing_since is not None:
        yield f"\nMetadata requests fail: {brokers.metadata_error}"
    if brokers.brokers:
        yield ""
        yield from _table(
            ("BROKER", "ADDRESS", "CONNECTION", "WAITING", "IN FLIGHT"), map(_broker_cells, brokers.brokers)
        )
    if brokers.paused_count is None:
        yield "\nPaused: not known yet"
    elif brokers.paused_count:
        unlisted_count = brokers.paused_count - len(brokers.paused)
        more = f" and {unlisted_count} more" if unlisted_count else ""
        yield f"\nPaused: {', '.join(paused.scope for paused in brokers.paused)}{more}"
    if queues.new:
        yield f"\nNot yet claimed by the router: {queues.new}"
    if queues.spill:
        yield f"\nIn spill files: {queues.spill}"
    if queues.sending:
        yield ""
        rows = ((line.topic, str(line.batch), str(line.send_wait), str(line.ack_wait)) for line in queues.sending)
        yield from _table(("TOPIC", "BATCH", "SEND WAIT", "ACK WAIT"), rows)


def _headline(page: Page) -> str:
    return f"bruce {page.version}, process {page.pid}, since {utc_text(page.since)}"


def _process_cells(line: ProcessLine) -> tuple[str, ...]:
    memory = "-" if line.pss is None else f"{line.pss / 2**20:.1f} MiB"
    cpu = "-" if line.cpu_seconds is None else f"{line.cpu_seconds:.1f} s"
    return (line.name, str(line.pid), line.state, str(line.restarts), memory, cpu)


def _broker_cells(line: BrokerLine) -> tuple[str, ...]:
    return (str(line.node), line.address, line.connection, str(line.queued), str(line.in_flight))


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yield lines with aligned columns: the first left-aligned, the others right-aligned."""
    lines = [titles, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    for first, *further in lines:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(further, widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()
