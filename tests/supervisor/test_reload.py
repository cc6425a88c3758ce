"""Reloads with real processes and fake mains: configurations sent, refused and confirmed."""

from __future__ import annotations

import os
import re
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from bruce_mp.ipc.control_messages import Broker, Dispatchers, ReloadRequest
from support.fake_daemon import FakeDaemon
from support.processes import long_lived_trees, time_limit, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

EVERYBODY = ("input", "router", "dispatcher-0", "status")


@contextmanager
def daemon_in(directory: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(directory) as daemon:
        daemon.start_ready()
        daemon.send_as("router", Dispatchers({0: Broker(1, "kafka1", 9092)}))
        daemon.wait_for("Process dispatcher-0 is ready")
        yield daemon
        assert daemon.end() == 0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with daemon_in(tmp_path) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeDaemon]:
    with daemon_in(tmp_path_factory.mktemp("shared")) as daemon:
        assert daemon.process is not None
        long_lived_trees.add(daemon.process.pid)
        yield daemon


@pytest.fixture
def unchanged(shared: FakeDaemon) -> FakeDaemon:
    """Return a daemon whose settings no test changes."""
    shared.configure("")
    return shared


def configs(daemon: FakeDaemon, name: str) -> list[str]:
    return [line for line in daemon.received_by(name) if line.startswith("NewConfig")]


def begun(daemon: FakeDaemon) -> list[str]:
    """Return the configurations with which the lives of the dispatcher began."""
    return [line for line in daemon.received_by("dispatcher-0") if line.startswith("max_in_flight")]


def outcomes(daemon: FakeDaemon) -> list[str]:
    return [line for line in daemon.received_by("status") if line.startswith("ReloadOutcome")]


def ask(daemon: FakeDaemon, number: int, *, only_check: bool = False) -> str:
    before = len(outcomes(daemon))
    daemon.send_as("status", ReloadRequest(number, only_check))
    wait_until(lambda: len(outcomes(daemon)) > before, "an outcome")
    return outcomes(daemon)[-1]


def test_sighup_sends_a_changed_configuration_to_every_process(daemon: FakeDaemon) -> None:
    daemon.configure("delivery.max_in_flight = 2\nrate_limit.configs.few = { interval_ms = 1000 }")
    daemon.signal(signal.SIGHUP)
    daemon.wait_for(f"Reloaded {daemon.config}: delivery.max_in_flight, rate_limit.configs.few.interval_ms.")
    for name in EVERYBODY:
        (config,) = configs(daemon, name)
        assert "max_in_flight=2" in config
    wait_until(
        lambda: "reload_count=1, refused=''" in daemon.active_config_messages()[-1], "the config of the status process"
    )


def test_a_change_that_needs_a_restart_refuses_the_whole_reload(daemon: FakeDaemon) -> None:
    daemon.configure("input.tcp.enable = true\ninput.streams.workers = 2\ndelivery.max_in_flight = 2")
    outcome = ask(daemon, 7)
    why = (
        "input.tcp.enable from false to true (restart to apply: the sockets are bound at the start); "
        "input.streams.workers from 0 to 2 (restart to apply: "
        "the daemon divides the slab among the inputs at the start)."
    )
    assert "number=7, accepted=False" in outcome
    assert f"Reload refused: {why} The old configuration stays in force." in outcome
    assert f"Reload refused: {why} The old configuration stays in force." in daemon.text()
    assert f"refused='{why}'" in daemon.active_config_messages()[-1]
    assert not any(configs(daemon, name) for name in EVERYBODY)
    daemon.configure("delivery.max_in_flight = 2")
    assert "number=8, accepted=True" in ask(daemon, 8)
    assert "reload_count=1, refused=''" in daemon.active_config_messages()[-1]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("delivery.max_in_flight = 9", "delivery.max_in_flight = 9 is not allowed: give an integer from 1 to 5"),
        ("delivery.max_in_flight =", "this is not TOML"),
        ("logging.file = { enable = true, path = '/nowhere/log' }", "The log file /nowhere/log cannot be opened"),
    ],
)
def test_an_invalid_file_is_refused_with_the_error_of_a_start(unchanged: FakeDaemon, settings: str, why: str) -> None:
    unchanged.configure(settings)
    assert why in ask(unchanged, 1)
    assert not any(configs(unchanged, name) for name in EVERYBODY)
    unchanged.wait_for(why)
    assert "Reload refused: " in unchanged.text()


def test_a_report_names_the_first_problems_or_changes_and_counts_the_others(unchanged: FakeDaemon) -> None:
    def configure(level: int) -> None:
        topics = "".join(f"'topic-with-a-long-name-{number:04}' = 'zstd-fast'\n" for number in range(1000))
        config = f"compression.configs.zstd-fast = {{ type = 'zstd', level = {level} }}\n" * (level > 0)
        unchanged.configure(f"{config}[compression.topics]\n{topics}")

    configure(0)
    for only_check in (True, False):
        outcome = ask(unchanged, 1, only_check=only_check)
        assert "accepted=False" in outcome
        assert "topic-with-a-long-name-0019" in outcome
        assert "topic-with-a-long-name-0020" not in outcome
        assert "\\nand 980 more problems." in outcome
    configure(1)
    outcome = ask(unchanged, 1, only_check=True)
    assert "accepted=True" in outcome
    assert re.search(r"\\n  and \d{3} more'", outcome)
    assert len(outcome) < 9000


def test_a_check_changes_nothing_and_reports_the_outcome(daemon: FakeDaemon) -> None:
    assert "accepted=True, text='Nothing has changed.'" in ask(daemon, 1, only_check=True)
    daemon.configure("delivery.max_in_flight = 2")
    assert "accepted=True, text='It would be applied:\\n  delivery.max_in_flight from 5 to 2'" in ask(
        daemon, 2, only_check=True
    )
    daemon.configure("input.tcp.enable = true")
    assert "accepted=False, text='It would be refused: input.tcp.enable" in ask(daemon, 3, only_check=True)
    assert not any(configs(daemon, name) for name in EVERYBODY)
    assert "reload_count=0, refused=''" in daemon.active_config_messages()[-1]


def test_an_unchanged_file_is_a_successful_reload(unchanged: FakeDaemon) -> None:
    assert f"accepted=True, text='Reloaded {unchanged.config}: nothing has changed.'" in ask(unchanged, 1)
    assert not any(configs(unchanged, name) for name in EVERYBODY)


def test_a_process_started_later_gets_the_reloaded_configuration(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path, dispatcher="support.fake_daemon.recording_setting") as daemon:
        daemon.start_ready()
        daemon.configure("delivery.max_in_flight = 2")
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("Reloaded")
        daemon.send_as("router", Dispatchers({0: Broker(1, "kafka1", 9092)}))
        wait_until(lambda: begun(daemon) == ["max_in_flight=2"], "a dispatcher with the new value")
        daemon.configure("delivery.max_in_flight = 3")
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("Reloaded", times=2)
        os.kill(daemon.pid_of("dispatcher-0"), signal.SIGKILL)
        wait_until(lambda: begun(daemon) == ["max_in_flight=2", "max_in_flight=3"], "its successor with the newer")
        assert daemon.end() == 0


def test_a_process_that_does_not_apply_a_reload_is_killed_and_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DAEMON_RELOAD_S", str(time_limit(1)))
    with FakeDaemon(tmp_path) as daemon:
        daemon.start_ready()
        stopped = daemon.pid_of("router")
        os.kill(stopped, signal.SIGSTOP)
        daemon.configure("delivery.max_in_flight = 2")
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("signal 9 (Killed), sent by the supervisor because it did not confirm the new configuration")
        daemon.wait_for("Reloaded")
        daemon.wait_for("Process router is ready", times=2)
        assert daemon.end() == 0


def test_requests_during_a_reload_are_done_once_afterwards(daemon: FakeDaemon) -> None:
    for number in range(20):
        daemon.configure(f"delivery.max_in_flight = {number % 4 + 1}")
        daemon.signal(signal.SIGHUP)
    assert "accepted=True" in ask(daemon, 1)
    for name in EVERYBODY:
        assert "max_in_flight=4" in configs(daemon, name)[-1]


def test_a_daemon_in_shutdown_does_not_reload(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path, input="support.fake_daemon.unresponsive") as daemon:
        daemon.start_ready()
        daemon.signal(signal.SIGTERM)
        daemon.wait_for("Shutting down")
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("Reload refused: the daemon is shutting down. The old configuration stays in force.")
        daemon.wait()
