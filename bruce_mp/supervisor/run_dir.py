"""The run directory, which holds the sockets between the processes of one daemon.

A program that connects to these sockets could make the daemon mark undelivered messages as delivered. The daemon
therefore refuses a directory that other users can enter.
"""

from __future__ import annotations

import fcntl
import os
import stat
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import StartError, creation_remedy
from bruce_mp.supervisor.slab.lock_retry import retry_lock

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.config.addresses import HostPort, UnixPath

__all__ = [
    "HTTP_ADDRESS",
    "TCP_ADDRESS",
    "acquire_run_dir",
    "create_run_dir",
    "is_in_use",
    "running_daemon",
    "write_address",
]

HTTP_ADDRESS: Final = "http.address"
"""File with the address of the status pages, written as in the setting `http.listen`."""
TCP_ADDRESS: Final = "input.tcp.address"
"""File with the address of the TCP input, if there is one."""

_PID_FILE: Final = "supervisor.pid"


def is_in_use(path: Path) -> bool:
    """Return True if a daemon uses this run directory. Raise StartError if the user may not read the directory."""
    try:
        os.close(_lock(path))
    except StartError:
        return True
    except PermissionError as error:
        raise StartError(
            f"The run directory {path} cannot be read: {error.strerror}. Run this as the daemon's user, or as root."
        ) from error
    except OSError:
        return False
    return False


def running_daemon(path: Path) -> int | None:
    """Return the pid of the supervisor of the daemon that uses this run directory, or None if no daemon does.

    Raise StartError if the user may not read the directory, or if the file with the pid is gone.
    """
    if not is_in_use(path):
        return None
    file = path / _PID_FILE
    try:
        return int(file.read_text("ascii"))
    except (OSError, ValueError) as error:
        raise StartError(
            f"A daemon uses the run directory {path}, but its pid is not in {file}. Write the pid of the daemon's "
            'process "bruce: supervisor" to that file.'
        ) from error


def acquire_run_dir(path: Path) -> int:
    """Create the directory if necessary, lock it, and return the descriptor that holds the lock.

    Raise StartError if the directory cannot be created, is open to other users, or belongs to a running daemon.
    """
    create_run_dir(path)
    try:
        descriptor = retry_lock(lambda: _lock(path), StartError)
    except OSError as error:
        raise _unusable(path, error) from error
    _replace(path / _PID_FILE, str(os.getpid()))
    return descriptor


def create_run_dir(path: Path) -> None:
    """Create the directory if necessary. Raise StartError if it cannot be created or is open to other users."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        remedy = f"{creation_remedy(error, path.parent)}, or set another daemon.run_dir."
        raise StartError(f"The run directory {path} cannot be created: {error.strerror}. {remedy}") from error
    _check_access(path, status)


def write_address(path: Path, address: HostPort | UnixPath) -> None:
    """Write the address to a file of the run directory. Raise StartError if that fails."""
    _replace(path, str(address))


def _replace(path: Path, text: str) -> None:
    """Write the text to a new file and rename it to `path`, so that no program reads an incomplete text."""
    new = path.with_suffix(".new")
    try:
        new.write_text(text, "utf-8")
        new.replace(path)
    except OSError as error:
        raise _unusable(path.parent, error) from error


def _unusable(path: Path, error: OSError) -> StartError:
    return StartError(
        f"The run directory {path} cannot be used: {error.strerror}. Make room, or give the daemon's user the "
        "directory and its files (chown -R, chmod 0700), or set another daemon.run_dir."
    )


def _check_access(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise StartError(f"The run directory {path} is not a directory; remove it or set another daemon.run_dir.")
    if status.st_uid != os.geteuid():
        raise StartError(
            f"The run directory {path} belongs to user {status.st_uid}, and the daemon runs as user {os.geteuid()}; "
            "start it as that user, change the owner of the directory (chown), or set another daemon.run_dir."
        )
    if status.st_mode & 0o077:
        raise StartError(
            f"The run directory {path} has mode {stat.S_IMODE(status.st_mode):04o}: others can enter it and tamper "
            f"with the daemon. Forbid that (chmod 0700 {path}) or set another daemon.run_dir."
        )


def _lock(path: Path) -> int:
    """Return a descriptor that holds the lock of the directory. Raise StartError if another daemon has the lock."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StartError(
            f"The run directory {path} belongs to a daemon that is running; stop it or set another daemon.run_dir."
        ) from error
    return descriptor
