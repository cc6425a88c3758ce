from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from bruce_mp.config.addresses import HostPort
from bruce_mp.errors import StartError
from bruce_mp.supervisor.run_dir import HTTP_ADDRESS, acquire_run_dir, is_in_use, running_daemon, write_address
from bruce_mp.supervisor.slab import lock_retry
from support.as_user import unprivileged_directory

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lock_retry, "TIMEOUT_S", 0.0)
    return tmp_path / "run"


def test_the_run_directory_is_private_and_locked(path: Path) -> None:
    lock = acquire_run_dir(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    with pytest.raises(StartError, match="belongs to a daemon that is running"):
        acquire_run_dir(path)
    os.close(lock)
    os.close(acquire_run_dir(path))


def test_a_daemon_runs_even_if_its_pid_file_is_gone(path: Path) -> None:
    assert (is_in_use(path), running_daemon(path)) == (False, None)
    lock = acquire_run_dir(path)
    assert (is_in_use(path), running_daemon(path)) == (True, os.getpid())
    (path / "supervisor.pid").unlink()
    assert is_in_use(path)
    with pytest.raises(StartError, match=f"A daemon uses .* its pid is not in {path}/supervisor.pid"):
        running_daemon(path)
    os.close(lock)
    assert (is_in_use(path), running_daemon(path)) == (False, None)


def test_a_run_directory_open_to_others_is_refused(path: Path) -> None:
    path.mkdir(mode=0o700)
    path.chmod(0o710)
    with pytest.raises(StartError, match=r"has mode 0710.*chmod 0700"):
        acquire_run_dir(path)


def test_a_run_directory_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(StartError, match=r"belongs to user \d+, and the daemon runs as user 4711"):
        acquire_run_dir(path)


def test_a_link_to_a_run_directory_is_refused(path: Path) -> None:
    (path.parent / "real").mkdir(mode=0o700)
    path.symlink_to("real")
    with pytest.raises(StartError, match="is not a directory"):
        acquire_run_dir(path)


def test_a_missing_parent_of_the_run_directory_is_named(path: Path) -> None:
    with pytest.raises(StartError, match=f"Create the directory {path},"):
        acquire_run_dir(path / "bruce")


@pytest.mark.parametrize("mode", [0o500, 0o300])
def test_a_run_directory_without_a_permission_of_its_owner_is_named(mode: int) -> None:
    with unprivileged_directory() as directory:
        path = directory / "run"
        path.mkdir()
        path.chmod(mode)
        with pytest.raises(StartError, match=rf"{path} cannot be used: Permission denied\. Make room, .*chmod 0700"):
            acquire_run_dir(path)


def test_the_pid_of_an_earlier_daemon_is_replaced_without_access_to_its_file() -> None:
    with unprivileged_directory() as directory:
        path = directory / "run"
        path.mkdir(mode=0o700)
        (path / "supervisor.pid").touch(0o400)  # stands for the file of another user
        os.close(acquire_run_dir(path))
        assert (path / "supervisor.pid").read_text() == str(os.getpid())


def test_an_address_replaces_the_file_so_that_no_reader_sees_a_part(tmp_path: Path) -> None:
    file = tmp_path / HTTP_ADDRESS
    write_address(file, HostPort("127.0.0.1", 1))
    with file.open() as before:
        write_address(file, HostPort("127.0.0.1", 22222))
        assert (before.read(), file.read_text()) == ("127.0.0.1:1", "127.0.0.1:22222")
    assert [path.name for path in tmp_path.iterdir()] == [HTTP_ADDRESS]
