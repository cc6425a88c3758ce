"""Real processes with fake mains: start, messages, restart and end of each."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from bruce_mp.config.load import load_config
from bruce_mp.ipc.control_messages import Broker, Dispatchers, Drain, PeerDied, RefreshMetadata, Stop
from bruce_mp.journal.recorder import JOURNAL, JournalRecorder
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry, Slab, create_slab
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.telemetry.books import counter_total
from bruce_mp.telemetry.counters import Counter
from support.fake_daemon import FakeDaemon
from support.filled_slab import FilledSlab
from support.processes import long_lived_trees, time_limit, wait_until
from support.slabs import Input, datagram, set_state

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

PATIENCE_S = 60
FIRST = Broker(1, "kafka1", 9092)
SECOND = Broker(2, "kafka2", 9092)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeDaemon]:
    """Yield a daemon for tests that end none of its processes."""
    with FakeDaemon(tmp_path_factory.mktemp("running")) as daemon:
        daemon.start_ready()
        assert daemon.process is not None
        long_lived_trees.add(daemon.process.pid)
        yield daemon
        assert daemon.end() == 0


def fill(path: Path, count: int = 3, topic: bytes = b"clicks") -> None:
    slab = FilledSlab(path, known=(topic,))
    slab.receive(topic, count)
    slab.close()


def sockets_and_pipes(pid: int) -> set[str]:
    """Return the sockets and pipes of a process, without its standard streams."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        target = str(entry.readlink())
        if int(entry.name) > 2 and target.startswith(("socket:", "pipe:")):
            found.add(target)
    return found


def test_a_forked_process_keeps_only_the_sockets_that_it_serves(tmp_path: Path) -> None:
    """Else the end of a process or of a client would go unnoticed, because another process holds the descriptor."""
    with FakeDaemon(tmp_path) as daemon:
        daemon.start_ready()
        assert daemon.process is not None
        old = daemon.pid_of("router")
        os.kill(old, signal.SIGKILL)  # its successor is forked while the supervisor has pipes to the others
        daemon.wait_for("router is ready", 2)
        pids = {name: daemon.pid_of(name) for name in ("input", "router", "status")}
        supervisor = {each for each in sockets_and_pipes(daemon.process.pid) if each.startswith("socket:")}
        held = {name: sockets_and_pipes(pid) for name, pid in pids.items()}
        assert {name: len(found & supervisor) for name, found in held.items()} == {"input": 1, "router": 0, "status": 1}
        assert [pair for pair in combinations(held, 2) if held[pair[0]] & held[pair[1]]] == []
        assert psutil.Process(daemon.process.pid).num_threads() == 1, "a fork copies no threads, but their locks"
        assert daemon.end() == 0


def test_sigterm_without_held_messages_removes_everything_and_exits_0(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path) as daemon:
        daemon.start_ready()
        assert daemon.socket_path.is_socket()
        assert daemon.slab_path.is_file()
        assert daemon.end() == 0
        assert not daemon.socket_path.exists()
        assert not daemon.slab_path.exists()
        assert daemon.received_by("input") == [str(Drain())]
        assert daemon.received_by("router") == [str(Drain()), str(Stop())]
        assert daemon.received_by("status") == [str(Stop())]


def test_a_process_that_is_stopped_is_killed_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DAEMON_HUNG_S", str(time_limit(2)))
    with FakeDaemon(tmp_path) as daemon:
        daemon.start_ready()
        stopped = daemon.pid_of("router")
        os.kill(stopped, signal.SIGSTOP)
        daemon.wait_for("Process router has died: signal 9 (Killed), sent by the supervisor because it stored no")
        daemon.wait_for("Process router is ready", times=2)
        assert daemon.pid_of("router") != stopped
        assert daemon.end() == 0


def test_a_process_that_hangs_during_boot_is_killed_and_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DAEMON_HUNG_BOOT_S", str(time_limit(3)))
    with FakeDaemon(tmp_path, router="support.fake_daemon.hanging_boot") as daemon:
        daemon.start_ready()
        assert (
            "Process router has died: signal 9 (Killed), sent by the supervisor because it stored no" in daemon.text()
        )
        assert daemon.end() == 0


def test_sigint_ends_the_daemon(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path) as daemon:
        daemon.start_ready()
        daemon.signal(signal.SIGINT)
        assert daemon.wait() == 0


def test_a_dead_process_is_restarted_and_the_router_notified(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path) as daemon:
        daemon.start_ready()
        slab = Slab(daemon.slab_path)
        expected: list[str] = []
        for restarts, name in enumerate(("input", "status", "router"), start=1):
            before = daemon.pid_of(name)
            os.kill(before, signal.SIGKILL)
            daemon.wait_for(f"Process {name} is ready", times=2)
            assert daemon.pid_of(name) != before
            assert f"Process {name} has died: signal 9" in daemon.text()
            expected += [str(PeerDied(name))] if name != "router" else []
            wait_until(lambda: daemon.received_by("router") == expected, "PeerDied")  # noqa: B023 - called at once
            assert counter_total(slab, Counter.ProcessRestarted) == restarts
        assert daemon.end() == 0
        assert str(PeerDied("router")) not in daemon.received_by("router")


def test_signals_of_the_terminal_do_not_end_a_process(running: FakeDaemon) -> None:
    router = running.pid_of("router")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        os.kill(router, number)
    running.send_as("status", RefreshMetadata())
    wait_until(lambda: str(RefreshMetadata()) in running.received_by("router"), "the forwarded word")
    assert running.pid_of("router") == router


def test_dispatchers_start_move_and_stop_on_the_routers_request(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path) as daemon:
        daemon.start_ready()
        daemon.send_as("router", Dispatchers({0: FIRST, 7: SECOND}))
        daemon.wait_for("Process dispatcher-0 is ready")
        daemon.wait_for("Process dispatcher-7 is ready")
        kept = daemon.pid_of("dispatcher-7")

        moved = Broker(1, "elsewhere", 9092)
        daemon.send_as("router", Dispatchers({0: moved, 7: SECOND}))
        daemon.wait_for("Process dispatcher-0 is ready", times=2)
        assert daemon.received_by("dispatcher-0") == [f"{Stop()} as broker 1 at kafka1"]
        wait_until(lambda: daemon.received_by("router") == [str(PeerDied("dispatcher-0"))], "PeerDied")
        assert daemon.pid_of("dispatcher-7") == kept

        daemon.send_as("router", Dispatchers({7: SECOND}))
        daemon.wait_for("Process dispatcher-0 has ended")
        assert daemon.received_by("dispatcher-0")[1:] == [f"{Stop()} as broker 1 at elsewhere"]
        slab = Slab(daemon.slab_path)
        assert ProcessRow(slab, lay.ROW_FIRST_DISPATCHER).pid == 0
        assert ProcessRow(slab, lay.ROW_FIRST_DISPATCHER + 7).pid == kept

        daemon.send_as("router", Dispatchers({0: moved, 7: SECOND}))
        daemon.wait_for("Process dispatcher-0 is ready", times=3)
        assert daemon.end() == 0
        assert daemon.received_by("dispatcher-7") == [f"{word} as broker 2 at kafka2" for word in (Drain(), Stop())]


def test_a_dead_dispatcher_restarts_for_its_broker(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path) as daemon:
        daemon.start_ready()
        daemon.send_as("router", Dispatchers({3: FIRST}))
        daemon.wait_for("Process dispatcher-3 is ready")
        os.kill(daemon.pid_of("dispatcher-3"), signal.SIGKILL)
        daemon.wait_for("Process dispatcher-3 is ready", times=2)
        wait_until(lambda: daemon.received_by("router") == [str(PeerDied("dispatcher-3"))], "PeerDied")
        assert daemon.end() == 0


def test_five_failed_boots_end_the_daemon_with_the_reason(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path, router="support.fake_daemon.failing_start") as daemon:
        daemon.start()
        assert daemon.wait(PATIENCE_S) == 70
        lives = re.findall(r"Process router (has started|has died)(?:.* Next start in (.*) s\.)?", daemon.text())
        assert [what for what, _ in lives] == [*["has started", "has died"] * 4, "has started"]
        delays = [float(delay) for _, delay in lives if delay]
        assert delays[0] == 0
        assert set(delays) <= {0, 0.25, 0.5, 1}, "test_policy.py has their order, which long lives change"
        reason = "Process router failed 5 times in a row before it was ready; last: The moon is in the wrong phase"
        assert reason in daemon.text()
        assert "Traceback" not in daemon.text()
        assert daemon.slab_path.exists()


def test_a_missing_main_module_is_a_failed_boot_with_a_traceback(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path, status="support.fake_daemon.nowhere") as daemon:
        daemon.start()
        assert daemon.wait() == 70
        assert "Process status failed 5 times in a row" in daemon.text()
        assert "last: a bug; the log has its traceback" in daemon.text()
        assert "ModuleNotFoundError" in daemon.text()
        assert "Traceback" in daemon.text()


def test_an_unexpected_error_of_the_supervisor_ends_the_daemon_and_leaves_the_slab(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path) as daemon:
        daemon.start_ready()
        pids = [daemon.pid_of(name) for name in ("input", "router", "status")]
        daemon.send_as("router", Dispatchers({10**9: FIRST}))  # the slab has no row for this slot
        assert daemon.wait() == 70
        assert not any(map(psutil.pid_exists, pids))
        assert "CRIT: Unexpected error; the daemon ends, and its slab stays." in daemon.text()
        assert "Traceback" in daemon.text()
        assert daemon.slab_path.exists()
        daemon.start_ready()
        assert daemon.end() == 0


def test_a_run_directory_that_cannot_be_written_refuses_an_upgrade(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path) as daemon:
        daemon.start_ready()
        (daemon.run_dir / "upgrade.new").mkdir()  # where the note is drafted
        daemon.signal(signal.SIGUSR2)
        daemon.wait_for(f"The state of the upgrade cannot be written to {daemon.run_dir}: Is a directory.")
        assert daemon.end() == 0


def test_undelivered_messages_stay_in_the_slab_and_are_reported(tmp_path: Path) -> None:
    fill(tmp_path / "slab")
    settings = "delivery.shutdown_max_delay_ms = 200\nlogging.stdout_stderr = false\n"
    with FakeDaemon(
        tmp_path, f'{settings}logging.file = {{enable = true, path = "{tmp_path / "file.log"}"}}'
    ) as daemon:
        daemon.start()
        wait_until((tmp_path / "file.log").exists, "the log")
        wait_until(lambda: (tmp_path / "file.log").read_text().count("is ready") == 3, "ready")
        assert daemon.end() == 0
        assert "bruce: 3 messages could not be delivered." in daemon.text()
        assert "  clicks: 3\n" in daemon.text()
        assert "  clicks: 3\n" in (tmp_path / "file.log").read_text()
        assert daemon.slab_path.exists()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_slab_that_someone_removed_is_not_promised_to_the_next_start(tmp_path: Path, *, is_replaced: bool) -> None:
    fill(tmp_path / "slab")
    with FakeDaemon(tmp_path, "delivery.shutdown_max_delay_ms = 200") as daemon:
        daemon.start_ready()
        daemon.slab_path.unlink()
        if is_replaced:
            daemon.slab_path.write_bytes(b"another file")
        assert daemon.end() == 0
        assert "next start delivers them" not in daemon.text()
        assert f"Someone deleted or replaced the slab {daemon.slab_path} while the daemon ran." in daemon.text()
        assert "They are lost; send them again" in daemon.text()
        assert "  clicks: 3\n" in daemon.text()
        assert daemon.slab_path.exists() == is_replaced


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_restarted_process_keeps_the_slab_that_someone_removed(tmp_path: Path, *, is_replaced: bool) -> None:
    with FakeDaemon(tmp_path) as daemon:
        daemon.start_ready()
        slab = Slab(daemon.slab_path)
        daemon.slab_path.unlink()
        if is_replaced:  # by the slab of another daemon
            create_slab(daemon.slab_path, slab.geometry, 0)
        os.kill(daemon.pid_of("router"), signal.SIGKILL)
        daemon.wait_for("Process router is ready", times=2)
        assert ProcessRow(slab, lay.ROW_ROUTER).pid == daemon.pid_of("router")
        descriptors = [entry.readlink() for entry in Path(f"/proc/{daemon.pid_of('router')}/fd").iterdir()]
        assert descriptors.count(Path(f"{daemon.slab_path} (deleted)")) == 2, "for the flock and for the shares' lock"
        assert daemon.end() == 0


def test_the_end_without_held_messages_leaves_the_file_that_replaced_the_slab(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path) as daemon:
        daemon.start_ready()
        daemon.slab_path.unlink()
        daemon.slab_path.write_bytes(b"another file")
        assert daemon.end() == 0
        assert daemon.slab_path.read_bytes() == b"another file"
        daemon.slab_path.unlink()
        daemon.start_ready()
        daemon.slab_path.unlink()
        assert daemon.end() == 0
        assert "Traceback" not in daemon.text()


def test_an_empty_slab_that_cannot_be_removed_is_reported(tmp_path: Path) -> None:
    directory = tmp_path / "directory"
    directory.mkdir()
    with FakeDaemon(tmp_path) as daemon:
        daemon.config.write_text(daemon.config.read_text().replace(str(daemon.slab_path), f"{directory}/slab"))
        daemon.is_privileged = False
        daemon.start_ready()
        directory.chmod(0o500)
        assert daemon.end() == 0
        assert f"The empty slab {directory}/slab cannot be removed: Permission denied. Give the" in daemon.text()
        assert "bruce has ended: " in daemon.text()


def test_a_completed_delivery_ends_the_shutdown_early(tmp_path: Path) -> None:
    fill(tmp_path / "slab")
    with FakeDaemon(tmp_path, router="support.fake_daemon.delivering") as daemon:
        daemon.start_ready()
        assert "Adopted the slab" in daemon.text()
        started = time.monotonic()
        assert daemon.end() == 0
        assert time.monotonic() - started < 10  # of the 30 s limit
        assert not daemon.slab_path.exists()


def test_a_second_sigterm_ends_the_wait_for_deliveries(tmp_path: Path) -> None:
    fill(tmp_path / "slab")
    with FakeDaemon(tmp_path) as daemon:
        daemon.start_ready()
        daemon.signal(signal.SIGTERM)
        wait_until(lambda: str(Drain()) in daemon.received_by("router"), "draining")
        started = time.monotonic()
        assert daemon.end() == 0
        assert time.monotonic() - started < 10  # of the 30 s limit
        assert daemon.slab_path.exists()


def test_a_process_that_dies_while_draining_is_started_again_and_drains(tmp_path: Path) -> None:
    fill(tmp_path / "slab")
    with FakeDaemon(tmp_path) as daemon:
        daemon.start_ready()
        daemon.signal(signal.SIGTERM)
        wait_until(lambda: daemon.received_by("router") == [str(Drain())], "draining")
        os.kill(daemon.pid_of("router"), signal.SIGKILL)
        wait_until(lambda: daemon.received_by("router") == [str(Drain())] * 2, "draining again")
        assert daemon.end() == 0


def test_a_process_that_ignores_the_shutdown_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DAEMON_STOP_S", str(time_limit(2)))
    unresponsive = "support.fake_daemon.unresponsive"
    with FakeDaemon(tmp_path, input=unresponsive, status=unresponsive) as daemon:
        daemon.start_ready()
        assert daemon.end() == 0
        assert daemon.text().count("signal 9 (Killed), sent by the supervisor because it did not exit in time") == 2
        assert not daemon.slab_path.exists()


def test_senders_fail_immediately_after_the_shutdown_begins(tmp_path: Path) -> None:
    fill(tmp_path / "slab")
    with FakeDaemon(tmp_path) as daemon, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        daemon.start_ready()
        sender.connect(str(daemon.socket_path))
        sender.send(b"taken")
        daemon.signal(signal.SIGTERM)
        wait_until(lambda: str(Drain()) in daemon.received_by("router"), "draining")
        assert not daemon.socket_path.exists()
        with pytest.raises(BrokenPipeError):
            sender.send(b"not taken")
        assert daemon.end() == 0


def test_unresponsive_processes_die_with_the_supervisor(tmp_path: Path) -> None:
    unresponsive = "support.fake_daemon.unresponsive"
    with FakeDaemon(tmp_path, input=unresponsive, router=unresponsive, status=unresponsive) as daemon:
        daemon.start_ready()
        orphans = [psutil.Process(daemon.pid_of(name)) for name in ("input", "router", "status")]
        daemon.signal(signal.SIGKILL)
        assert daemon.wait() == -signal.SIGKILL
        assert not psutil.wait_procs(orphans, timeout=5)[1]


def test_every_process_holds_the_locks_for_its_lifetime(running: FakeDaemon) -> None:
    for name in ("input", "router", "status"):
        descriptors = Path(f"/proc/{running.pid_of(name)}/fd").iterdir()
        assert {running.slab_path, running.run_dir} <= {path.readlink() for path in descriptors}


def test_a_start_that_fails_leaves_no_empty_slab(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path) as daemon:
        daemon.socket_path.mkdir()
        daemon.start()
        assert daemon.wait() == 1
        assert "input.unix_datagram.path" in daemon.text()
        assert not daemon.slab_path.exists()


def journal_delivered(daemon: FakeDaemon) -> Path:
    """Leave the slab of a daemon that was killed after all deliveries, and before its journal knew of them.

    Return the journal.
    """
    config = load_config(daemon.config)
    create_slab(daemon.slab_path, Geometry.for_size(config.slab.size, config.input.max_datagram_size), now_ms=1)
    slab = Slab(daemon.slab_path)
    source = Input(slab, topics=[(b"clicks", 1)])
    source.receive([datagram(b"clicks")] * 3)
    segments = source.close_all()
    JournalRecorder(slab, Path(config.journal_path)).record()
    set_state(slab, segments, RunState.DELIVERED)
    return Path(config.journal_path) / JOURNAL


def test_a_start_that_fails_leaves_no_journal_of_delivered_messages(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path, f'slab.sync = "interval"\nslab.journal_dir = "{tmp_path}"') as daemon:
        journal = journal_delivered(daemon)
        daemon.socket_path.mkdir()
        daemon.start()
        assert daemon.wait() == 1
        assert not daemon.slab_path.exists()
        assert not journal.parent.exists()
        daemon.socket_path.rmdir()
        daemon.start_ready()
        assert "Restored" not in daemon.text()
        assert daemon.end() == 0


def test_an_end_that_cannot_remove_the_journal_keeps_the_empty_slab(tmp_path: Path) -> None:
    """Otherwise, the next start would deliver the messages of the journal again."""
    with FakeDaemon(tmp_path, f'slab.sync = "interval"\nslab.journal_dir = "{tmp_path}"') as daemon:
        journal = journal_delivered(daemon)
        content = journal.read_bytes()
        daemon.start_ready()
        journal.unlink()
        journal.mkdir()  # stands for a journal that cannot be removed
        assert daemon.end() == 0
        assert (
            f"The journal {journal} cannot be removed: Is a directory. Remove it before the next start" in daemon.text()
        )
        assert daemon.slab_path.exists()
        journal.rmdir()
        journal.write_bytes(content)
        daemon.start_ready()
        assert "Restored" not in daemon.text()
        assert daemon.end() == 0
        assert not daemon.slab_path.exists()
        assert not journal.parent.exists()


def test_sighup_and_sigusr1_do_not_end_the_daemon(running: FakeDaemon) -> None:
    running.signal(signal.SIGHUP)
    running.wait_for(f"Reloaded {running.config}: nothing has changed.")
    running.signal(signal.SIGUSR1)
    slab = Slab(running.slab_path)
    wait_until(lambda: counter_total(slab, Counter.GotLogfileReopenRequest) == 1, "the counter")


def test_an_idle_supervisor_sleeps(running: FakeDaemon) -> None:
    assert running.process is not None
    process = psutil.Process(running.process.pid)
    slab = Slab(running.slab_path)
    at = slab.row_at(lay.ROW_SUPERVISOR) + lay.ROW_HEARTBEAT_MS
    first, before = slab.read_signed(at), process.num_ctx_switches().voluntary
    wait_until(lambda: slab.read_signed(at) - first > 1500, "two heartbeats")
    assert process.num_ctx_switches().voluntary - before < 20


def test_the_address_of_the_status_pages_is_published(running: FakeDaemon) -> None:
    host, _, port = (running.run_dir / "http.address").read_text().rpartition(":")
    socket.create_connection((host, int(port))).close()
