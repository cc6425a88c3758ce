from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from bruce_mp.cli import main
from support.fake_daemon import FakeDaemon
from support.filled_slab import FilledSlab
from support.json_pages import HEALTHY, JsonPages

if TYPE_CHECKING:
    from pathlib import Path

HEAD = {"pid": 4711, "version": "0.1.0", "since": 0, "now": 60}
PAGES = {
    "/server_info/json": HEAD,
    "/books/json": HEAD
    | {
        "received": 8, "delivered": 1, "discarded": {}, "held": {"queued": 7}, "possible_duplicates": 0,
        "consistent": True,
    },
    "/processes/json": HEAD
    | {
        "processes": [
            {
                "name": "router", "pid": 4712, "state": "running", "incarnation": 3, "restarts": 2,
                "heartbeat_age_ms": 5, "pss": 3 << 20, "cpu_seconds": 1.25,
            },
            {
                "name": "dispatcher-0", "pid": 0, "state": "stopped", "incarnation": 1, "restarts": 0,
                "heartbeat_age_ms": 5,
            },
        ]
    },
    "/brokers/json": HEAD
    | {
        "metadata_failing_since": 7,
        "metadata_error": "Connection refused.",
        "brokers": [{"node": 1, "address": "kafka1:9092", "connection": "failed", "queued": 20, "in_flight": 3}],
        "paused": [{"scope": "broker 1", "state": "waiting", "since": 7, "reason": "Connection refused."}],
        "paused_count": 1,
    },
    "/queues/json": HEAD
    | {"sending": [{"topic": "clicks", "batch": 1, "send_wait": 20, "ack_wait": 3}], "new": 4, "spill": 9},
}  # fmt: skip
BROKEN = {"ready": False, "problems": ["No broker can be reached."], "warnings": ["It rains."], "metadata_age_ms": None}
PAGES["/healthz"] = HEAD | HEALTHY | BROKEN
EXPECTED = """\
bruce 0.1.0, process 4711, since 1970-01-01 00:00:00 UTC
received 8 = delivered 1 + discarded 0 + held 7 (queued 7)
Problem: No broker can be reached.
Warning: It rains.

PROCESS        PID    STATE  RESTARTS   MEMORY    CPU
router        4712  running         2  3.0 MiB  1.2 s
dispatcher-0     0  stopped         0        -      -

Metadata requests fail: Connection refused.

BROKER      ADDRESS  CONNECTION  WAITING  IN FLIGHT
1       kafka1:9092      failed       20          3

Paused: broker 1

Not yet claimed by the router: 4

In spill files: 9

TOPIC   BATCH  SEND WAIT  ACK WAIT
clicks      1         20         3
"""


def serve(**brokers: Any) -> JsonPages:
    pages = PAGES | {"/brokers/json": PAGES["/brokers/json"] | brokers}
    return JsonPages({path: lambda page=page: page for path, page in pages.items()})  # type: ignore[misc]


def test_status_prints_readable_tables(capsys: pytest.CaptureFixture[str]) -> None:
    with serve() as pages:
        assert main(["status", "--url", pages.url]) == 0
    assert capsys.readouterr().out == EXPECTED


def test_status_counts_the_paused_scopes_that_the_page_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(paused_count=1234) as pages:
        assert main(["status", "--url", pages.url]) == 0
    assert "Paused: broker 1 and 1233 more\n" in capsys.readouterr().out


def test_status_json_equals_the_pages(capsys: pytest.CaptureFixture[str]) -> None:
    with serve() as pages:
        assert main(["status", "--json", "--url", pages.url]) == 0
    assert json.loads(capsys.readouterr().out) == {path.split("/")[1]: page for path, page in PAGES.items()}


def test_a_token_of_several_lines_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text("secret\n\n")
    with serve() as pages:
        assert main(["reload", "--url", pages.url, "--token-file", str(tmp_path / "token")]) == 1
    error = capsys.readouterr().err
    assert error == "bruce: The token has line breaks or control characters. Write it as one line of text.\n"


@pytest.mark.parametrize("command", ["reload", "status"])
def test_a_broken_configuration_file_is_no_way_to_the_daemon(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bruce.toml").write_text("[http\n")
    assert main([command, "--config", str(tmp_path / "bruce.toml")]) == 1
    problem, remark = capsys.readouterr().err.splitlines()
    assert "bruce.toml:1:6: this is not TOML" in problem
    assert remark.endswith("The daemon was not asked, and keeps its settings; --url names it without the file.")


@pytest.mark.process
def test_a_real_status_process_is_understood(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slab = FilledSlab(tmp_path / "slab", known=(b"clicks",))
    slab.receive(b"clicks", 3)
    slab.close()
    settings = "delivery.shutdown_max_delay_ms = 0"
    with FakeDaemon(tmp_path, settings, status="bruce_mp.status.process") as daemon:
        daemon.start_ready()
        assert main(["check", "--config", str(daemon.config)]) == 0
        out, error = capsys.readouterr()
        assert out == "received 3 = delivered 0 + discarded 0 + held 3 (router 3)\n"
        assert "Problem: No metadata has been fetched" in error
        assert main(["status", "--config", str(daemon.config)]) == 0
        out = capsys.readouterr().out
        assert "supervisor" in out
        assert "Not yet claimed by the router: 3" in out
        assert daemon.end() == 0


def test_the_page_of_another_program_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with JsonPages({path: lambda: b'{"version": "\xe9"}' for path in PAGES}) as pages:
        assert main(["status", "--url", pages.url]) == 4
    assert "is not a bruce daemon of this version" in capsys.readouterr().err
