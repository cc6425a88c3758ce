"""`bruce monitor` against fake pages, and against a real daemon."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

import pytest

from bruce_mp.cli import main
from bruce_mp.cli.monitoring.checks import CHECKS
from bruce_mp.devbroker.control import DevBroker
from bruce_mp.status.pages.counters import read_counters
from support.daemon import Daemon
from support.filled_slab import NOW_MS, FilledSlab
from support.json_pages import HEALTHY, JsonPages
from support.ports import ReservedPort
from support.traffic import Load, start_senders

HEAD = {"pid": 4711, "version": "0.1.0", "since": 1000, "now": 2000}
COUNTERS = ("MsgDiscardedNoMem", "MsgDiscardedMalformed", "ProcessRestarted", "ConnectorConnectFail", "GetMetadataFail")


class FakeDaemon:
    """Pages of a healthy daemon, which a test modifies."""

    def __init__(self) -> None:
        self.books = {"received": 10, "delivered": 6, "discarded": {}, "held": {"queued": 4}, "consistent": True}
        self.books["possible_duplicates"] = 0
        self.held: dict[str, Any] = {"topics": [], "messages": 4, "oldest_ms": 1500, "slab_in_use": 0.25}
        self.processes: list[dict[str, Any]] = []
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.health = HEALTHY

    def pages(self) -> JsonPages:
        return JsonPages(
            {
                "/books/json": lambda: HEAD | self.books,
                "/held/json": lambda: HEAD | self.held,
                "/processes/json": lambda: HEAD | {"processes": self.processes},
                "/healthz": lambda: HEAD | self.health,
                "/counters/json": lambda: (
                    HEAD | {"counters": [{"name": name, "value": value} for name, value in self.counters.items()]}
                ),
            }
        )


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "deeper" / "state"


def monitor(capsys: pytest.CaptureFixture[str], url: str, state: Path, *options: str) -> tuple[int, str]:
    code = main(["monitor", "--url", url.rstrip("/"), "--state", str(state), *options])
    return code, capsys.readouterr().out


def line_of_state(name: str) -> dict[str, Any]:
    return {"name": name, "pid": 1, "state": "stalled", "incarnation": 1, "restarts": 0, "heartbeat_age_ms": 99_000}


def test_a_healthy_daemon_is_ok(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeDaemon().pages() as pages:
        code, first = monitor(capsys, pages.url, state)
        assert (code, first.partition(" | ")[0]) == (
            0,
            "BRUCE OK: received 10 = delivered 6 + discarded 0 + held 4 (queued 4); first check",
        )
        code, second = monitor(capsys, pages.url, state)
    assert code == 0
    assert second.count("\n") == 1
    assert "first check" not in second
    assert "discards=U;;0" in first
    assert "discards=0;;0" in second
    assert "oldest=1.5s;60;300" in second
    assert "slab=25%;75;90" in second
    assert stat.S_IMODE(state.stat().st_mode) == 0o600


def test_every_check_prints_its_performance_data(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeDaemon().pages() as pages:
        _, text = monitor(capsys, pages.url, state)
    values = text.partition(" | ")[2].split()
    assert [value.partition("=")[0] for value in values] == [check.option.replace("-", "_") for check in CHECKS]
    assert all(re.fullmatch(r"[a-z_]+=(U|[\d.]+[s%]?);[\d.]*;[\d.]*", value) for value in values)


def test_a_counter_increase_alarms_once(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeDaemon()
    fake.counters["MsgDiscardedNoMem"] = 5
    with fake.pages() as pages:
        assert monitor(capsys, pages.url, state)[0] == 0
        fake.counters["MsgDiscardedNoMem"] = 7
        code, text = monitor(capsys, pages.url, state)
        assert code == 2
        assert text.startswith("BRUCE CRITICAL: 2 messages were discarded since the last check; /discards")
        assert monitor(capsys, pages.url, state)[0] == 0


def test_counters_of_a_new_slab_count_from_0(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeDaemon()
    fake.counters["MsgDiscardedNoMem"] = 5
    with fake.pages() as pages:
        monitor(capsys, pages.url, state)
        fake.counters["MsgDiscardedNoMem"] = 3
        code, text = monitor(capsys, pages.url, state)
    assert (code, "discards=3;" in text) == (2, True)


@pytest.mark.parametrize(
    ("change", "options", "expected"),
    [
        ({"books": {"delivered": 5}}, (), (2, "1 messages are unaccounted for")),
        ({"books": {"delivered": 5, "consistent": False}}, (), (0, "first check")),
        ({"books": {"unaccounted": 2}}, (), (2, "2 messages are unaccounted for")),
        ({"books": {"held": {"queued": 5, "router": -1}}}, (), (2, "1 messages are unaccounted for")),
        ({"held": {"oldest_ms": 61_000}}, (), (1, "waited for 61s")),
        ({"held": {"oldest_ms": 301_000}}, (), (2, "waited for 301s")),
        ({"held": {"oldest_ms": 301_000}}, ("--oldest-warning=400", "--oldest-critical=500"), (0, "first check")),
        ({"held": {"slab_in_use": 0.8}}, (), (1, "80% of the slab")),
        ({"held": {"slab_in_use": 0.95}}, (), (2, "95% of the slab")),
        ({"held": {"messages": 9}}, ("--held-warning=8",), (1, "9 messages are held")),
        ({}, ("--held-warning=2000000", "--held-critical=12345678"), (0, " held=4;2000000;12345678")),
        ({"health": {"metadata_age_ms": 1_900_000}}, (), (1, "metadata are 1900s old")),
        ({"health": {"metadata_age_ms": None}}, ("--metadata-age-critical=999",), (2, "metadata are 1000s old")),
        ({"health": {"problems": ["A.", "B."]}}, (), (2, "BRUCE CRITICAL: 2 problems on /healthz: A. B. |")),
        ({"health": {"warnings": ["C."]}}, (), (1, "BRUCE WARNING: 1 warnings on /healthz: C. |")),
        ({"health": {"warnings": ["C."]}}, ("--warnings-warning=1",), (0, "first check")),
        ({"processes": [line_of_state("router")]}, (), (2, "1 processes are dead or stalled")),
    ],
)
def test_a_present_fault_sets_the_exit_code_and_the_text(
    state: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
    options: tuple[str, ...],
    expected: tuple[int, str],
) -> None:
    fake = FakeDaemon()
    for name, value in change.items():
        before = getattr(fake, name)
        setattr(fake, name, before | value if isinstance(value, dict) else value)
    with fake.pages() as pages:
        code, text = monitor(capsys, pages.url, state, *options)
    assert (code, expected[1] in text) == (expected[0], True), text


@pytest.mark.parametrize(
    ("counter", "rise", "code"),
    [
        ("MsgDiscardedMalformed", 1, 1),
        ("ProcessRestarted", 1, 1),
        ("ConnectorConnectFail", 10, 0),
        ("ConnectorConnectFail", 11, 1),
        ("ConnectorConnectFail", 101, 2),
        ("GetMetadataFail", 1, 2),
    ],
)
def test_a_counter_increase_sets_the_exit_code(
    state: Path, capsys: pytest.CaptureFixture[str], counter: str, rise: int, code: int
) -> None:
    fake = FakeDaemon()
    with fake.pages() as pages:
        monitor(capsys, pages.url, state)
        fake.counters[counter] += rise
        assert monitor(capsys, pages.url, state)[0] == code


def test_several_faults_are_all_reported_and_the_worst_sets_the_exit_code(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeDaemon()
    fake.held |= {"oldest_ms": 70_000}
    fake.processes = [line_of_state("input")]
    with fake.pages() as pages:
        code, text = monitor(capsys, pages.url, state)
    assert code == 2
    assert [line.partition(" | ")[0] for line in text.splitlines()] == [
        "BRUCE CRITICAL: 1 processes are dead or stalled; /processes lists them, and the log says why.",
        "The oldest message has waited for 70s; /brokers gives the reason.",
    ]


def test_an_unreachable_daemon_is_critical(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = ReservedPort()
    code, text = monitor(capsys, f"http://127.0.0.1:{port.number}", state)
    port.release()
    assert code == 2
    assert re.fullmatch(r"BRUCE CRITICAL: No daemon answers at .*: Connection refused\. Start it, or give .*\n", text)
    assert not state.exists()


@pytest.mark.parametrize("content", [b"mine", b'{"now": 1, "counters": {"\xe9": 1}}'])
def test_a_foreign_state_file_is_unknown_and_kept(
    state: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    state.parent.mkdir()
    state.write_bytes(content)
    with FakeDaemon().pages() as pages:
        code, text = monitor(capsys, pages.url, state)
    assert code == 3
    assert "is not a state file of bruce monitor" in text
    assert state.read_bytes() == content


def test_a_foreign_state_file_hides_no_fault(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state.parent.mkdir()
    state.write_text("mine")
    fake = FakeDaemon()
    fake.processes = [line_of_state("router")]
    with fake.pages() as pages:
        code, text = monitor(capsys, pages.url, state)
    assert code == 2
    assert text.startswith("BRUCE CRITICAL: 1 processes are dead or stalled")
    assert "is not a state file of bruce monitor" in text


def test_a_state_file_that_cannot_be_written_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    with FakeDaemon().pages() as pages:
        code, text = monitor(capsys, pages.url, tmp_path / "file" / "state")
    assert code == 3
    assert "state file" in text


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--no-such-option", "unrecognized arguments"), ("--url=http://a..b:9090", "a..b"),
        ("--held-warning=nan", "'nan' is not a number."), ("--held-critical=inf", "'inf' is not a number."),
        ("--held-critical=many", "'many' is not a number."),
    ],
)  # fmt: skip
def test_invalid_options_are_unknown(option: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["monitor", "--state", "/dev/null", option])
    assert exit_.value.code == 3
    out = capsys.readouterr().out
    assert out.startswith("BRUCE UNKNOWN: ")
    assert text in out


def test_the_counters_that_are_watched_exist(tmp_path: Path) -> None:
    slab = FilledSlab(tmp_path / "slab")
    known = {line.name for line in read_counters(slab.slab, NOW_MS).counters}
    slab.close()
    watched = {name for check in CHECKS for name in check.counters}
    assert len(watched) > 20
    assert watched <= known
    meant = {f"MsgDiscarded{name}" for name in ("RateLimit", "AbandonedAttempt", "OverQuota")}  # deliberate discards
    assert {name for name in known if name.startswith("MsgDiscarded")} - watched == meant


def wait_quiet(daemon: Daemon) -> None:
    """Wait until all processes run and nothing is reported; on a busy machine that takes a moment."""

    def quiet() -> bool:
        health = daemon.health()
        return "dispatcher-0" in daemon.pids() and health["ready"] and not health["warnings"]

    daemon.wait_for(quiet, "no problems and no warnings", 30)


@pytest.mark.process
def test_monitor_reads_a_real_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str], state: Path) -> None:
    load = Load(("clicks",), senders=1, messages=500, largest=200)
    with DevBroker(brokers=1, topics={"clicks": 2}) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        options = ("monitor", "--config", str(daemon.config_path), "--state", str(state))
        wait_quiet(daemon)
        assert main(options) == 0
        with capsys.disabled():  # a sender writes to the real standard output
            (sender,) = start_senders(load, daemon.socket_path)
            assert sender.wait(60) == 0
        daemon.wait_settled(load.total)
        wait_quiet(daemon)
        assert main(options) == 0
        assert "delivered 500" in capsys.readouterr().out.splitlines()[1]
        text = daemon.get_text("/metrics")
        assert f"bruce_ack_delay_seconds_count {load.total}\n" in text
        assert f"bruce_messages_delivered_total {load.total}\n" in text


def test_every_check_is_in_the_documents() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    rows = dict(re.findall(r"^\| `--([a-z-]+)-` .*\| (.+? / .+?) \|$", text, re.MULTILINE))
    shown = {check.option: f"{_limit(check.warning)} / {_limit(check.critical)}" for check in CHECKS}
    assert rows == shown


def _limit(limit: float | None) -> str:
    return "-" if limit is None else f"{limit:g}"
