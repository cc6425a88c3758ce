"""The rule that a test ends the processes that it starts, and the tools that enforce it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil
import pytest

from support import processes

pytestmark = pytest.mark.process

TESTS: Final = Path(__file__).parents[1]
SLEEP: Final = "import time; time.sleep(600)"


def test_a_spawned_process_dies_with_its_parent() -> None:
    script = (
        "import sys; from support import processes; "
        f"print(processes.spawn([sys.executable, '-c', {SLEEP!r}]).pid, flush=True); {SLEEP}"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(TESTS)}
    )
    with parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        processes.wait_until(lambda: str(processes.WRAPPER) not in child.cmdline(), "it has become the command")
        parent.kill()
    assert not processes.still_alive([child])


def start_orphan() -> psutil.Process:
    script = (
        "import subprocess, sys; "
        f"print(subprocess.Popen([sys.executable, '-c', {SLEEP!r}], stdout=subprocess.DEVNULL).pid, flush=True)"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True, timeout=60)
    return psutil.Process(int(done.stdout))


def test_an_orphan_becomes_a_descendant_of_the_subreaper() -> None:
    orphan = start_orphan()
    try:
        assert orphan in processes.descendants()
    finally:
        processes.kill([orphan])
    assert orphan not in processes.descendants()


def test_a_dead_orphan_is_reaped_unless_excluded() -> None:
    orphan = start_orphan()
    orphan.kill()
    os.waitid(os.P_PID, orphan.pid, os.WEXITED | os.WNOWAIT)
    processes.reap_orphans({orphan})
    assert psutil.pid_exists(orphan.pid)
    processes.reap_orphans(())
    assert not psutil.pid_exists(orphan.pid)


def test_an_ended_process_is_not_a_descendant() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # ended, and still a zombie
    assert ended.pid not in {process.pid for process in processes.descendants()}
    ended.wait()


def test_spawn_passes_the_exit_code_on() -> None:
    assert processes.spawn([sys.executable, "-c", "raise SystemExit(7)"]).wait(60) == 7


def test_a_spawned_process_receives_signals() -> None:
    process = processes.spawn([sys.executable, "-c", SLEEP])
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM


LEAKING: Final = f"""
import subprocess, sys, pytest
pytestmark = pytest.mark.process
def test_leak():
    global kept
    kept = subprocess.Popen([sys.executable, "-c", {SLEEP!r}])
"""
LEAKING_SESSION: Final = f"""
import subprocess, sys, pytest
pytestmark = pytest.mark.process
@pytest.fixture(scope="session")
def server():
    return subprocess.Popen([sys.executable, "-c", {SLEEP!r}])
def test_with_server(server):
    assert server.poll() is None
"""


@pytest.mark.parametrize(
    ("source", "subject"), [(LEAKING, "The test"), (LEAKING_SESSION, "The session")], ids=["test", "session"]
)
def test_a_test_or_session_that_leaks_a_process_fails(tmp_path: Path, source: str, subject: str) -> None:
    done = run_pytest(tmp_path, source)
    assert done.returncode == 1, done.stdout
    assert f"{subject} left processes behind" in done.stdout
    assert re.search(r"1 passed.*, 1 error in", done.stdout)


def run_pytest(directory: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run tests of `source` under the rules of our conftest.py."""
    (directory / "test_it.py").write_text(source)
    (directory / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(directory)]
    return subprocess.run(
        [*command, *options, str(directory)],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PYTHONPATH": str(TESTS)},
    )  # fmt: skip


STARTING: Final = """
import multiprocessing, os, subprocess, pytest
def test_subprocess():
    subprocess.run(["true"])
def test_fork():
    os.waitpid(os.fork() or os._exit(0), 0)
def test_multiprocessing():
    process = multiprocessing.get_context("spawn").Process(target=int)
    process.start()
    process.join()
@pytest.mark.process
def test_marked():
    subprocess.run(["true"])
def test_nothing():
    pass
"""


def test_an_unmarked_test_fails_when_it_starts_a_process(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, STARTING, "-W", "ignore")
    failed = re.findall(r"ERROR at teardown of (\w+) ", done.stdout)
    assert failed == ["test_subprocess", "test_fork", "test_multiprocessing"], done.stdout


HIDDEN_MARK: Final = """
import pytest
@pytest.mark.process
@getattr(pytest.mark, "quiet")
def test_hidden():
    pass
"""


def test_a_mark_that_a_search_of_the_file_misses_is_an_error(tmp_path: Path) -> None:
    """`scripts/test` collects only the files in which it finds the mark of a part, so the test would never run."""
    done = run_pytest(tmp_path, HIDDEN_MARK)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert "test_it.py: scripts/test looks for" in done.stderr


def test_a_unit_run_reports_the_number_of_skipped_process_tests(tmp_path: Path) -> None:
    """The controller of two workers reports it; below, a run without workers reports others."""
    done = run_pytest(tmp_path, STARTING, "-W", "ignore", "--unit", "-n", "2", "-k", "marked or nothing")
    assert "Left out: 1 tests that start a process (test_it.py)." in done.stdout
    assert "1 passed" in done.stdout


PROCESSES_ONLY: Final = """
import pytest
pytestmark = [pytest.mark.process]
raise AssertionError("imported")
"""


def test_a_file_whose_tests_all_start_processes_is_not_imported_in_vain(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, PROCESSES_ONLY, "-m", "not process")
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout
    assert "Left out: 1 files whose tests all start a process (test_it.py)." in done.stdout


SOAKING: Final = """
import pytest
@pytest.mark.soak
def test_long():
    pass
def test_short():
    pass
"""


@pytest.mark.parametrize(
    ("options", "ran", "sentence"),
    [
        ([], "test_short", "1 tests that take long, which scripts/test --soak runs (test_it.py)"),
        (["--soak"], "test_long", "1 tests that scripts/test runs (test_it.py)"),
    ],
    ids=["default", "soak"],
)
def test_a_run_names_the_skipped_tests_by_their_length(
    tmp_path: Path, options: list[str], ran: str, sentence: str
) -> None:
    done = run_pytest(tmp_path, SOAKING, "-W", "ignore", "--verbose", *options)
    assert re.findall(r"::(\w+) PASSED", done.stdout) == [ran], done.stdout
    assert f"Left out: {sentence}." in done.stdout
