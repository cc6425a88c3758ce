"""The fleet: pages of daemons become rows in tasks, and the ranking finds the worst daemon."""

from __future__ import annotations

import io
import json
import socket
import threading
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.errors import ExitCode
from bruce_mp.protocol.client.fence import encode_begin
from bruce_mp.protocol.client.messages import encode
from bruce_mp.spark.cli import main
from bruce_mp.spark.errors import OptionError
from bruce_mp.spark.pipelines.fleet import (
    SAMPLE_COLUMNS,
    FleetRanking,
    collect_fleet,
    fetch_rows,
    rank_daemons,
    read_hosts,
)
from bruce_mp.spark.pipelines.progress import Progress
from support.daemon import Daemon
from support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

BOOKS: Final = {
    "since": 5, "received": 10, "delivered": 7, "discarded": {"NO_MEM": 2}, "held": {"input": 0, "queued": 1},
}  # fmt: skip
REPORT: Final = {"id": 3, "discard_topic": [{"topic": "t", "reasons": {"NO_MEM": 2}}]}
PAGES: Final[dict[str, Any]] = {
    "/books/json": BOOKS,
    "/queues/json": {"new": 0, "sending": [{"topic": "t", "batch": 1, "send_wait": 2, "ack_wait": 3}]},
    "/discards/json": {"unfinished_report": REPORT, "finished_reports": [{**REPORT, "id": 2}]},
    "/healthz": {"problems": ["no broker answers"]},
}


@contextmanager
def daemon(pages: dict[str, Any]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(pages[self.path]).encode()
            self.send_response(503 if self.path == "/healthz" else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_address_without_http_is_unreachable() -> None:
    def greet() -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
            connection.recv(1000)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=greet)
        thread.start()
        (row,) = fetch_rows(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert row[1] == "unreachable"
    assert [row[1] for row in fetch_rows("127.0.0.1:http")] == ["unreachable"]


def test_the_pages_of_a_daemon_become_rows() -> None:
    with daemon(PAGES) as address:
        assert fetch_rows(address) == fetch_rows(f"http://{address}/") == [
            (5, "counter", None, "received", None, 10),
            (5, "counter", None, "delivered", None, 7),
            (5, "counter", None, "discarded NO_MEM", None, 2),
            (5, "counter", None, "held input", None, 0),
            (5, "counter", None, "held queued", None, 1),
            (5, "queue", "t", None, None, 6),
            (5, "discards", "t", "NO_MEM", 3, 2),
            (5, "discards", "t", "NO_MEM", 2, 2),
            (5, "problem", None, "no broker answers", None, None),
        ]  # fmt: skip


@pytest.mark.parametrize("books", [None, [], {"since": 1}, {"since": None}, {"since": 1, "stages": []}])
def test_a_host_without_valid_pages_is_unreachable(books: object) -> None:
    with daemon({} if books is None else {**PAGES, "/books/json": books}) as address:
        ((since, kind, *_),) = fetch_rows(address)
    assert (since, kind) == (0, "unreachable")


def test_read_hosts_merges_arguments_and_the_file(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# all\na:1\n\nb:2  # second\na:1\n")
    assert read_hosts(["c:3"], str(tmp_path / "hosts")) == ["c:3", "a:1", "b:2"]
    with pytest.raises(OptionError, match="No daemons to ask"):
        read_hosts([], None)
    with pytest.raises(OptionError, match="cannot be read"):
        read_hosts([], str(tmp_path / "missing"))


def test_a_command_without_hosts_is_an_error_of_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", f"--output={tmp_path}"]) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("bruce-spark: [BRUCE_OPTION] No daemons to ask")


@pytest.mark.usefixtures("spark_defaults")
def test_tasks_collect_samples_and_append_to_the_table(spark: SparkSession, tmp_path: Path) -> None:
    with daemon(PAGES) as address:
        for rounds in (2, 1):
            quiet = Progress("fleet", io.StringIO())
            hosts = [address, "127.0.0.1:1"]
            samples = collect_fleet(spark, hosts, str(tmp_path), rounds=rounds, every_s=0, progress=quiet)
    assert samples.count() == 3 * (9 + 1)
    found = rank_daemons(samples)
    assert found.topics == [{"topic": "t", "discarded": 0, "held": 6}], "discards before the first sample do not count"
    by_name = {row["daemon"]: row for row in found.daemons}
    assert by_name[address] == {
        "daemon": address, "discarded": 0, "abandoned": 0, "held": 1, "unreachable": 0, "problem": "no broker answers"
    }  # fmt: skip
    assert by_name["127.0.0.1:1"]["unreachable"] == 3
    assert found.reasons == []
    assert "127.0.0.1:1" in str(found)


def test_counter_increases_are_computed_across_slab_replacements(spark: SparkSession) -> None:
    def counter(at: int, host: str, reason: str, value: int) -> tuple[Any, ...]:
        return (at, host, 1, "counter", None, f"discarded {reason}", None, value)

    rows = [
        counter(1, "a", "NO_MEM", 100), counter(2, "a", "NO_MEM", 130), counter(2, "a", "LONG_MSG", 7),
        counter(3, "a", "NO_MEM", 5), counter(1, "b", "NO_MEM", 50), counter(2, "b", "NO_MEM", 50),
        counter(4, "a", "LONG_MSG", 9),
    ]  # fmt: skip
    found: FleetRanking = rank_daemons(spark.createDataFrame(rows, f"at_ms long, daemon string, {SAMPLE_COLUMNS}"))
    assert [(row["daemon"], row["discarded"]) for row in found.daemons] == [("a", 51), ("b", 0)]
    assert [(row["reason"], row["discarded"]) for row in found.reasons] == [("NO_MEM", 35), ("LONG_MSG", 16)]


def send_to(daemon: Daemon, *frames: bytes) -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as client:
        client.connect(str(daemon.directory / "stream"))
        client.sendall(b"".join(frames))


def reported(hosts: Sequence[str], wanted: str) -> int:
    """Return the number of discards with this reason in the reports of the daemons, which have only those of topics."""
    rows = (row for host in hosts for row in fetch_rows(host))
    return sum(count or 0 for _, kind, _, reason, _, count in rows if (kind, reason) == ("discards", wanted))


@pytest.mark.process
def test_the_tables_of_three_daemons_agree(spark: SparkSession, tmp_path: Path) -> None:
    good, unknown, long = (
        encode(topic, value, timestamp_ms=1) for topic, value in ((b"t", b"v"), (b"none", b"v"), (b"t", bytes(70_000)))
    )
    with ExitStack() as stack:
        broker = stack.enter_context(DevBroker(topics={"t": 1}))
        daemons = []
        for number in range(3):
            directory = tmp_path / str(number)
            directory.mkdir()
            settings = {
                "input.unix_stream.enable": "true", "input.unix_stream.path": f'"{directory}/stream"',
                "batching.message_max_bytes": 50_000,
            }  # fmt: skip
            daemons.append(stack.enter_context(Daemon(directory, broker.bootstrap, settings)))
        hosts = [daemon.url("").rstrip("/") for daemon in daemons]

        def sample() -> DataFrame:
            return collect_fleet(spark, hosts, str(tmp_path), progress=Progress("fleet", io.StringIO()))

        send_to(daemons[0], long)
        daemons[0].wait_for(
            lambda: daemons[0].get("/discards/json")["unfinished_report"]["discard_topic"], "the first report", 20
        )
        sample()
        for number, daemon in enumerate(daemons):
            send_to(daemon, good, *[long] * number, *[unknown] * 2)
            send_to(daemon, encode_begin("task"), good, good, good)  # without its end
            daemon.wait_settled(6 + number + (number == 0))
        wait_until(lambda: reported(hosts, "LONG_MSG") == 4, "all reports", 60)
        found = rank_daemons(sample())
    assert [(row["daemon"], row["discarded"], row["abandoned"]) for row in found.daemons] == [
        (hosts[2], 4, 3), (hosts[1], 3, 3), (hosts[0], 2, 3)
    ]  # fmt: skip
    assert [(row["topic"], row["discarded"]) for row in found.topics] == [("(no topic)", 6), ("t", 3)]
    assert [(row["reason"], row["discarded"], row["daemons"]) for row in found.reasons] == [
        ("BAD_TOPIC", 6, 3), ("LONG_MSG", 3, 2)
    ]  # fmt: skip
