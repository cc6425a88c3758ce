"""Events for the operator: the program of `events.command`, the log lines of pauses, and changes of the health."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from msgspec import structs

from bruce_mp.config.sections import Events
from bruce_mp.status.event_hook import DaemonEvent, EventHook
from bruce_mp.status.state_watch import HealthWatch, PauseWatch
from bruce_mp.telemetry.broker_status import NO_LEADER, PausedScope
from support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.status_pages import OfflineStatusPages

pytestmark = pytest.mark.process


class Hook:
    """A hook with a program that appends its event to a file."""

    def __init__(self, directory: Path, script: str = "", **settings: Any) -> None:
        self.file = directory / "events"
        self.pid_file = directory / "pid"
        body = script or f'echo "$BRUCE_EVENT $BRUCE_STATE $BRUCE_TEXT" >> {self.file}'
        command = ("/bin/sh", "-c", body.replace("PID_FILE", str(self.pid_file)))
        values: dict[str, Any] = {"command": command, "interval_s": 1} | settings
        self.config = Events(**values)
        self.hook = EventHook(self.config)
        self.hook.start()

    def lines(self) -> list[str]:
        return self.file.read_text().splitlines() if self.file.exists() else []


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Hook]]:
    made: list[Hook] = []

    def build(script: str = "", **settings: Any) -> Hook:
        made.append(Hook(tmp_path, script, **settings))
        return made[-1]

    yield build
    for each in made:
        each.hook.stop()


def test_program_gets_the_event_in_its_environment_and_no_secret(
    make: Callable[..., Hook], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BRUCE_TOKEN", "secret")
    hook = make(f"env > {tmp_path}/env.new; mv {tmp_path}/env.new {tmp_path}/env")
    hook.hook.post(DaemonEvent("health", "problem", "One line.\nAnother\0."))
    wait_until((tmp_path / "env").exists, "the program")
    text = (tmp_path / "env").read_text()
    assert "BRUCE_EVENT=health\n" in text
    assert "BRUCE_TEXT=One line.\nAnother.\n" in text
    assert "secret" not in text


def test_last_event_of_each_kind_runs_after_the_interval(make: Callable[..., Hook]) -> None:
    hook = make(interval_s=2)
    started = time.monotonic()
    hook.hook.post(DaemonEvent("health", "warning", "0"))
    wait_until(lambda: len(hook.lines()) == 1, "the first event")
    for number in range(50):
        hook.hook.post(DaemonEvent("health", "problem", str(number)))
        hook.hook.post(DaemonEvent("paused", "paused", str(number)))
    wait_until(lambda: len(hook.lines()) == 3, "the last events")
    assert time.monotonic() - started >= 4
    assert hook.lines() == ["health warning 0", "health problem 49", "paused paused 49"]


def test_shorter_interval_of_a_reload_ends_the_wait(make: Callable[..., Hook]) -> None:
    hook = make(interval_s=3600)
    hook.hook.post(DaemonEvent("health", "warning", "0"))
    wait_until(lambda: len(hook.lines()) == 1, "the first event")
    hook.hook.post(DaemonEvent("health", "problem", "1"))
    time.sleep(0.1)  # the thread waits for the end of the interval
    hook.hook.apply_config(structs.replace(hook.config, interval_s=1))
    wait_until(lambda: len(hook.lines()) == 2, "the second event")


def test_program_that_hangs_is_killed_with_its_children(
    make: Callable[..., Hook], caplog: pytest.LogCaptureFixture
) -> None:
    hook = make("sleep 60 & echo $! > PID_FILE; wait", timeout_s=1)
    hook.hook.post(DaemonEvent("health", "problem", ""))
    wait_until(lambda: "did not end within 1 s, and was killed" in caplog.text, "the end")
    child = int(hook.pid_file.read_text())
    wait_until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie", "its child's end")
    hook.hook.apply_config(Events(command=("/bin/sh", "-c", f"echo next > {hook.file}")))
    hook.hook.post(DaemonEvent("health", "healthy", ""))
    wait_until(lambda: hook.lines() == ["next"], "the next program")


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_program_that_changes_its_user_and_hangs_does_not_stop_the_events(
    make: Callable[..., Hook], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    hook = make("echo $$ > PID_FILE; exec sleep 60", timeout_s=1)
    with monkeypatch.context() as changed:
        changed.setattr(os, "killpg", refuse)
        hook.hook.post(DaemonEvent("health", "problem", ""))
        wait_until(lambda: "did not end within 1 s, and runs on, because it has changed" in caplog.text, "the warning")
    os.kill(int(hook.pid_file.read_text()), signal.SIGKILL)
    hook.hook.apply_config(Events(command=("/bin/sh", "-c", f"echo next > {hook.file}")))
    hook.hook.post(DaemonEvent("health", "healthy", ""))
    wait_until(lambda: hook.lines() == ["next"], "the next program")


@pytest.mark.parametrize(
    ("command", "said"),
    [(("/no/such/program",), "cannot be started: No such file"), (("/bin/false",), "ended with code 1")],
)
def test_failure_of_the_program_is_logged(
    make: Callable[..., Hook], caplog: pytest.LogCaptureFixture, command: tuple[str, ...], said: str
) -> None:
    make(command=command).hook.post(DaemonEvent("health", "problem", ""))
    wait_until(lambda: f"events.command ({command[0]}) {said}" in caplog.text, "the warning")


def test_stop_kills_a_running_program(make: Callable[..., Hook]) -> None:
    hook = make("echo $$ > PID_FILE; exec sleep infinity")
    hook.hook.post(DaemonEvent("health", "problem", ""))
    wait_until(lambda: hook.pid_file.exists() and bool(hook.pid_file.read_text()), "the program")
    hook.hook.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(int(hook.pid_file.read_text()), 0)


def test_stop_ignores_a_program_that_ends_at_this_moment(
    make: Callable[..., Hook], monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = make("echo $$ > PID_FILE; exec sleep infinity")
    hook.hook.post(DaemonEvent("health", "problem", ""))
    wait_until(lambda: hook.pid_file.exists() and bool(hook.pid_file.read_text()), "the program")
    kill_group = os.killpg

    def end_first(pid: int, number: int) -> None:
        kill_group(pid, number)
        wait_until(lambda: not psutil.pid_exists(pid), "the end of the program")
        kill_group(pid, number)

    monkeypatch.setattr(os, "killpg", end_first)
    hook.hook.stop()


def test_stop_just_before_the_start_runs_no_program(make: Callable[..., Hook], monkeypatch: pytest.MonkeyPatch) -> None:
    hook = make()

    def stop(_event: DaemonEvent) -> dict[str, str]:
        with suppress(RuntimeError):  # the thread cannot join itself
            hook.hook.stop()
        return {}

    monkeypatch.setattr(DaemonEvent, "environment", stop)
    hook.hook.post(DaemonEvent("health", "problem", ""))
    wait_until(lambda: "events" not in {thread.name for thread in threading.enumerate()}, "the end of the thread")
    assert not hook.lines()


# --- pauses -----------------------------------------------------------------------------------------------------------
def scope(partition: int, state: str = "waiting", slot: int | None = 3, topic: bytes = b"news") -> PausedScope:
    return PausedScope(slot, topic, partition, state, 0)


def test_one_line_names_the_partitions_that_pause_and_one_those_that_flow_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    posted: list[DaemonEvent] = []
    watch = PauseWatch(posted.append)
    watch.record([scope(number) for number in range(7)], is_complete=True)
    watch.record([scope(number, NO_LEADER, slot=None) for number in range(7)], is_complete=True)
    for _ in range(3):
        watch.record([], is_complete=True)
    paused, flowing = [record.getMessage() for record in caplog.records]
    names = "news-0, news-1, news-2, news-3, news-4 and 2 more."
    assert paused == f"Paused (waiting), so messages wait; see /brokers: {names}"
    assert flowing == f"Messages flow again: {names}"
    assert posted == [DaemonEvent("paused", "paused", paused), DaemonEvent("flowing", "flowing", flowing)]


def test_partition_that_is_paused_in_turn_does_not_flow() -> None:
    posted: list[DaemonEvent] = []
    watch = PauseWatch(posted.append)
    for paused in ([scope(1)], [], [], [scope(1)], [], [scope(1)]):
        watch.record(paused, is_complete=True)
    assert [event.kind for event in posted] == ["paused"]


def test_partition_outside_an_incomplete_list_does_not_flow() -> None:
    posted: list[DaemonEvent] = []
    watch = PauseWatch(posted.append)
    watch.record([scope(1)], is_complete=True)
    for _ in range(5):
        watch.record([scope(2)], is_complete=False)
    assert [event.kind for event in posted] == ["paused", "paused"]


def test_dispatcher_is_named(caplog: pytest.LogCaptureFixture) -> None:
    PauseWatch(lambda _: None).record([scope(-1, topic=b"")], is_complete=True)
    assert "see /brokers: all partitions of dispatcher-3." in caplog.text


# --- health -----------------------------------------------------------------------------------------------------------
def test_change_of_the_health_is_an_event(daemon: OfflineStatusPages, make: Callable[..., Hook]) -> None:
    hook = make()
    view = daemon.view()
    watch = HealthWatch(view.evidence, hook.hook)
    watch.check()
    wait_until(lambda: len(hook.lines()) == 1, "the problem")
    assert hook.lines()[0].startswith("health problem Problem: No metadata has been fetched from Kafka yet.")
    daemon.fetch_metadata(daemon.now_ms, daemon.now_ms)
    for _ in range(3):
        watch.check()
    wait_until(lambda: len(hook.lines()) == 2, "the end of the problem")
    assert hook.lines()[1] == "health healthy "
