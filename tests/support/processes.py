"""Processes that a test starts, and the proof that it ended them all.

* `spawn` starts a command that dies with this process, however this process ends.
* `become_subreaper` makes orphans our children: a process with a killed parent (our tests kill some) still
  shows up in `descendants`, where it would otherwise hide below process 1.  When it ends it stays a zombie until the
  test is over, so ask `descendants` or `still_alive`, and not whether the number of the process is gone.
* `family` and `descendants` read the children of each process, because psutil looks at all processes of the machine.
* `descendants` is what the leak checks of `conftest.py` compare; it leaves out the helpers that `multiprocessing` and
  `fork_server` keep until the interpreter ends, and zombies, which have ended and only wait to be reaped.
* `long_lived` names the processes that may be started during one test and used by the next: a restarted broker of a
  cluster that the whole session shares.  They must be gone at the end of the session like all others.
* `long_lived_trees` names the processes that start and end their own children: Spark's JVM with its workers.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Final, cast

import psutil

from support.activated import activated
from support.as_user import without_privilege
from support.fork_server import FORK_SERVER

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

PR_SET_CHILD_SUBREAPER: Final = 36
MAX_LOAD_FACTOR: Final = 20.0
"""A loaded machine makes time limits at most this many times as long."""
WRAPPER: Final = Path(__file__).with_name("die_with_parent.py")
BRUCE: Final = (sys.executable, "-m", "bruce_mp")
BRUCE_S: Final = 120.0
KEPT_BY_SESSION: Final = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "support/fork_server.py")

long_lived: Final[set[int]] = set()
long_lived_trees: Final[set[int]] = set()


def spawn(
    command: Sequence[str | Path],
    *,
    output: IO[bytes] | int = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
    input: int = subprocess.DEVNULL,  # noqa: A002 - as subprocess has it
    sockets: Mapping[str, socket.socket] | None = None,
    is_privileged: bool = True,
) -> subprocess.Popen[bytes]:
    """Start `command` (first word: a path) with both outputs to `output`, and with `sockets` as from systemd.

    One that is not `is_privileged` is subject to file permissions, even as root.  Call it from a thread that lives as
    long as the process should: the kernel takes the thread for the parent.
    """
    words, passed = list(map(str, command)), sockets or {}
    if _can_fork(words) and input == subprocess.DEVNULL and FORK_SERVER.can_start(env):
        number = output if isinstance(output, int) else output.fileno()
        forked = FORK_SERVER.start(
            words[2], words[3:], stdin=input, stdout=number, stderr=subprocess.STDOUT, sockets=passed,
            is_privileged=is_privileged,
        )  # fmt: skip
        return cast("subprocess.Popen[bytes]", forked)
    wrapped = activated(words if is_privileged else without_privilege(words), passed)
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(WRAPPER), str(os.getpid()), *wrapped], stdin=input, stdout=output,
        stderr=subprocess.STDOUT, env=env, pass_fds=[each.fileno() for each in passed.values()],
    )  # fmt: skip


def spawn_sender(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a module of `tests/support` that sends messages."""
    words = [sys.executable, "-m", f"support.{module}", *arguments]
    env = None if FORK_SERVER.can_start() else {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return spawn(words, output=sys.stderr.fileno(), env=env)


def _can_fork(words: Sequence[str]) -> bool:
    """Return True for a daemon, `bruce hold`, and a module of tests."""
    python, option, module, command, *_ = [*words, "", "", "", ""]
    is_bruce = module == "bruce_mp" and command in {"run", "hold"}
    return (python, option) == BRUCE[:2] and (is_bruce or module.startswith("support."))


def run_program(*command: str | Path, time_limit_s: float, directory: Path | None = None, **environment: str) -> str:
    """Return the output of a program, of both streams, that ends with 0."""
    done = subprocess.run(
        command, cwd=directory, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=time_limit_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def run_bruce(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `bruce WORDS...` to its end."""
    if not environment and FORK_SERVER.can_start():
        return _run_forked(list(map(str, words)))
    return subprocess.run(
        [*BRUCE, *words], env=os.environ | environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=BRUCE_S, check=False,
    )  # fmt: skip


def _run_forked(words: list[str]) -> subprocess.CompletedProcess[str]:
    with TemporaryFile() as output, TemporaryFile() as errors:
        forked = FORK_SERVER.start(
            "bruce_mp", words, stdin=subprocess.DEVNULL, stdout=output.fileno(), stderr=errors.fileno()
        )
        try:
            code = forked.wait(BRUCE_S)
        except subprocess.TimeoutExpired:
            forked.kill()
            forked.wait()
            raise
        for file in (output, errors):
            file.seek(0)
        return subprocess.CompletedProcess([*BRUCE, *words], code, output.read().decode(), errors.read().decode())


def become_subreaper() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def family() -> set[psutil.Process]:
    """Return the descendants of this process, also those that have ended and wait to be reaped."""
    found: set[psutil.Process] = set()
    parents = [os.getpid()]
    while parents:
        with suppress(OSError):
            for pid in children_of(parents.pop()):
                parents.append(pid)
                with suppress(psutil.NoSuchProcess):
                    found.add(psutil.Process(pid))
    return found


def descendants() -> set[psutil.Process]:
    """Return the living descendants of this process."""
    return {process for process in family() if _is_of_test(process)}


def children_of(pid: int) -> list[int]:
    """Return the pids of a process's children, without the look at all processes that psutil takes."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # the thread has ended
            found += map(int, (task / "children").read_text().split())
    return found


def title_of(pid: int) -> str:
    """Return the command line of a process; empty for one that has ended."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()


def may_stay(process: psutil.Process) -> bool:
    """Return True if the test that started the process may leave it to the next."""
    with suppress(psutil.Error):
        ancestry = {process.pid, *(parent.pid for parent in process.parents())}
        return process.pid in long_lived or not ancestry.isdisjoint(long_lived_trees)
    return True  # the process ended during the checks


def reap_orphans(known: Collection[psutil.Process]) -> None:
    """Reap the adopted dead processes that no test waits for, so that checks of their process ids see their end.

    `known` are left to the `Popen` that started them.
    """
    for pid in children_of(os.getpid()):
        with suppress(psutil.NoSuchProcess, ChildProcessError):
            process = psutil.Process(pid)
            if process not in known and process.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(process.pid, os.WNOHANG)


def _is_of_test(process: psutil.Process) -> bool:
    """Return True for a running process that is no helper of the session."""
    with suppress(psutil.Error):
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return not any(name in word for word in process.cmdline() for name in KEPT_BY_SESSION)
    return False  # the process ended during the checks


def still_alive(processes: Iterable[psutil.Process], grace: float = 3.0) -> list[psutil.Process]:
    """Return the processes that still run after `grace` seconds: a killed process may need a moment."""
    return psutil.wait_procs(list(processes), timeout=time_limit(grace))[1]


def describe(processes: Iterable[psutil.Process]) -> str:
    return "\n".join(f"  pid {process.pid}: {_command(process)}" for process in processes)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200]
    except psutil.Error as error:
        return str(error)


def kill(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL and wait for the end of the processes."""
    victims = list(processes)
    for process in victims:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(victims, timeout=10)


class NotInTimeError(AssertionError):
    """An event did not come within its time limit; `scripts/test` runs such a test once more."""


def time_limit(seconds: float) -> float:
    """Return a time limit for an event on this machine: longer by the number of processes that share a core."""
    return seconds * min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), MAX_LOAD_FACTOR)


def is_over(began: float, timeout: float) -> bool:
    """Return True if a wait that began at this monotonic time has lasted for its time limit."""
    waited = time.monotonic() - began
    return waited > timeout and waited > time_limit(timeout)


def wait_until(condition: Callable[[], bool], what: str, timeout: float = 30.0) -> None:
    """Poll `condition()` until it is true; raise `NotInTimeError` with `what` after the time limit."""
    began = time.monotonic()
    while not condition():
        if is_over(began, timeout):
            raise NotInTimeError(f"After {timeout:g} s still not: {what}")
        time.sleep(0.02)
