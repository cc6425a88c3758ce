from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

import bruce_mp
from bruce_mp.cli import main
from bruce_mp.cli.check_config import directory_warnings
from bruce_mp.cli.commands import COMMANDS
from bruce_mp.config.load import load_config
from bruce_mp.kernels import CHOICE
from support.as_user import STRANGERS

if TYPE_CHECKING:
    from collections.abc import Iterator

BAD_HOST = ["status", "--url", "http://a..b:9090"]
CONF = Path(bruce_mp.__file__).parents[1] / "conf"


def overriding(settings: list[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: bruce {name} ")
    assert callable(importlib.import_module(COMMANDS[name].module).main)


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"dev-broker"}))
def test_the_help_ends_with_the_exit_statuses(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert capsys.readouterr().out.rpartition("\n\n")[2].startswith("Exit status: 0")


def test_the_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert all(f"  {name}  " in out for name in COMMANDS)


def test_version_option_prints_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"bruce {bruce_mp.__version__}, {CHOICE.sentence}\n"


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["run"], ["check", "--url", "nowhere"], ["--", "run"], BAD_HOST])
def test_wrong_usage_exits_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_an_invalid_interval_names_the_allowed_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["top", "--interval", "x"])
    assert end.value.code == 2
    assert "argument --interval: x is not a number of seconds from 0.5" in capsys.readouterr().err


def test_an_expected_error_prints_one_sentence_and_sets_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", "nowhere.toml"]) == 1
    assert capsys.readouterr().err == "bruce: nowhere.toml: cannot read the configuration: No such file or directory.\n"


@pytest.fixture
def unread() -> Iterator[int]:
    """The write end of a pipe without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("send", "--help"),
        ("check-config", str(CONF / "bruce.toml")),
        ("run", "--config", str(CONF / "bruce.toml"), "--check"),
    ],
)
def test_a_closed_output_pipe_ends_the_command_quietly(unread: int, arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "bruce_mp", *arguments]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(command, stdout=unread, stderr=subprocess.PIPE, check=False, env=buffered)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.process
def test_a_closed_output_pipe_ends_an_unbuffered_command_quietly(unread: int) -> None:
    command = [sys.executable, "-u", "-m", "bruce_mp", "check-config", str(CONF / "bruce.toml")]
    ended = subprocess.run(command, stdout=unread, stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.process
def test_a_closed_error_pipe_ends_the_command_quietly(unread: int) -> None:
    command = [sys.executable, "-m", "bruce_mp", "check-config", "nowhere.toml"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=unread, check=False)
    assert (ended.returncode, ended.stdout) == (128 + signal.SIGPIPE, b"")


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ("--help", 1),
        (f"check-config {CONF / 'bruce.toml'}", 1),
        ("monitor --state /dev/null --url unix:/nowhere", 2),
    ],
)
def test_a_full_output_ends_the_command_with_one_sentence(arguments: str, status: int) -> None:
    command = f"{sys.executable} -m bruce_mp {arguments} >/dev/full"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(command, shell=True, stderr=subprocess.PIPE, check=False, env=buffered)
    text = b"bruce: standard output cannot be written: No space left on device.\n"
    assert (ended.returncode, ended.stderr) == (status, text)


@pytest.mark.process
@pytest.mark.parametrize("options", [[], ["-u"]])
def test_a_full_output_ends_a_write_within_the_command_with_one_sentence(options: list[str]) -> None:
    script = """
import sys
from bruce_mp.cli.commands import run_with_sigpipe
sys.exit(run_with_sigpipe(lambda: print("x" * 100_000) or 0))
"""
    with open("/dev/full", "w") as full:  # noqa: PTH123
        command = [sys.executable, *options, "-c", script]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    text = b"bruce: standard output cannot be written: No space left on device.\n"
    assert (ended.returncode, ended.stderr) == (1, text)


@pytest.mark.process
def test_check_config_succeeds_with_closed_standard_output() -> None:
    command = f"{sys.executable} -m bruce_mp check-config {CONF / 'bruce.toml'} >&-"
    ended = subprocess.run(command, shell=True, stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.process
def test_a_closed_standard_error_keeps_the_exit_status() -> None:
    command = f"{sys.executable} -m bruce_mp check --url unix:/nowhere 2>&-"
    ended = subprocess.run(command, shell=True, stdout=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stdout) == (4, b"")


@pytest.mark.process
def test_a_broken_connection_is_not_reported_as_closed_output() -> None:
    script = """
from bruce_mp.cli.commands import run_with_sigpipe
def breaks(): raise BrokenPipeError
run_with_sigpipe(breaks)
"""
    ended = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, check=False)
    assert ended.returncode == 1
    assert ended.stderr.endswith(b"BrokenPipeError\n")


@pytest.mark.process
def test_the_command_module_imports_no_heavy_package() -> None:
    heavy = "{'kafka', 'flask', 'zmq', 'waitress', 'psutil', 'argparse', 'bruce_mp.supervisor'}"
    script = f"import sys, bruce_mp.cli; sys.exit(bool({heavy} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.process
def test_the_supervisor_imports_no_package_of_its_processes() -> None:
    heavy = "{'kafka', 'flask', 'zmq', 'waitress', 'psutil'}"
    script = f"import sys, bruce_mp.cli.run; sys.exit(bool({heavy} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize("name", ["bruce.toml", "bruce.minimal.toml"])
def test_the_shipped_configurations_are_valid(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", str(CONF / name)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{CONF / name}: OK\n")
    assert "/run/bruce.dgram, up to 64k each" in out


def test_check_config_prints_the_number_of_stream_workers(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["input.unix_stream.enable=true", "input.tcp.enable=true", "input.streams.workers=3"]
    assert main(["check-config", str(CONF / "bruce.minimal.toml"), *overriding(settings)]) == 0
    assert "/run/bruce.stream, 127.0.0.1:9000, messages up to 2m, workers: 3\n" in capsys.readouterr().out


def test_check_config_prints_how_brokers_are_reached(capsys: pytest.CaptureFixture[str]) -> None:
    login = ["kafka.sasl.mechanism=PLAIN", "kafka.sasl.username=bruce", "kafka.sasl.password_env=PASSWORD"]
    options = overriding(["kafka.tls.enable=true", *login])
    assert main(["check-config", str(CONF / "bruce.minimal.toml"), *options]) == 0
    assert "  brokers       localhost:9092, with TLS and PLAIN\n" in capsys.readouterr().out


def test_check_config_rejects_an_unknown_user(capsys: pytest.CaptureFixture[str]) -> None:
    invalid_user = 'input.unix_datagram.allow_users=["no-such-user"]'
    assert main(["check-config", str(CONF / "bruce.minimal.toml"), "--set", invalid_user]) == 1
    assert 'there is no user "no-such-user" on this host' in capsys.readouterr().err


def test_check_config_applies_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    options = overriding(["slab.size=64m", "kafka.required_acks=0"])
    assert main(["check-config", str(CONF / "bruce.toml"), *options]) == 0
    out = capsys.readouterr().out
    assert "64m" in out
    assert "Note: kafka.required_acks = 0" in out
    assert main(["check-config", str(CONF / "bruce.toml"), "--set", "slab.size=huge"]) == 1
    assert "slab.size" in capsys.readouterr().err


def settings_below(directory: Path) -> list[str]:
    """Return overrides that put every file of a daemon into its own subdirectory of `directory`."""
    return [
        f'daemon.run_dir="{directory}/run/private"',
        f'slab.path="{directory}/slab/s"',
        f'input.unix_datagram.path="{directory}/dgram/in"',
        "input.unix_stream.enable=true",
        f'input.unix_stream.path="{directory}/stream/in"',
        f'http.listen="unix:{directory}/http/pages"',
        "logging.file.enable=true",
        f'logging.file.path="{directory}/log/bruce.log"',
        "discard_log.enable=true",
        f'discard_log.path="{directory}/discards/below/discard.log"',
    ]


SETTINGS_WITH_DIRECTORIES = {
    "run": "daemon.run_dir",
    "slab": "slab.path",
    "dgram": "input.unix_datagram.path",
    "stream": "input.unix_stream.path",
    "http": "http.listen",
    "log": "logging.file.path",
}


def test_check_config_names_missing_directories_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = overriding(settings_below(tmp_path))
    assert main(["check-config", str(CONF / "bruce.minimal.toml"), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, setting in SETTINGS_WITH_DIRECTORIES.items():
        directory = tmp_path / name
        assert (
            f"Note: {setting}: the current user cannot create files in {directory}: No such file or directory. Create "
            f"the directory {directory}, with write permission for the daemon's user."
        ) in lines
    assert not any("discard_log.path" in line for line in lines)  # the daemon creates these directories
    for name in SETTINGS_WITH_DIRECTORIES:
        (tmp_path / name).mkdir()
    assert main(["check-config", str(CONF / "bruce.minimal.toml"), *options]) == 0
    assert "Note:" not in capsys.readouterr().out


def test_check_config_asks_for_no_directory_that_the_daemon_creates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [*settings_below(tmp_path), f'http.listen="unix:{tmp_path}/run/private/status"']
    for name in ("run", "slab", "dgram", "stream", "log"):
        (tmp_path / name).mkdir()
    assert main(["check-config", str(CONF / "bruce.minimal.toml"), *overriding(settings)]) == 0
    assert "Note:" not in capsys.readouterr().out


@pytest.fixture
def open_path() -> Iterator[Path]:
    """Return a directory that other users can enter, unlike `tmp_path`."""
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def test_check_config_names_closed_directories_with_the_remedy(open_path: Path) -> None:
    for name in (*SETTINGS_WITH_DIRECTORIES, "run/private", "discards"):
        (open_path / name).mkdir()
    config = load_config(CONF / "bruce.minimal.toml", settings_below(open_path))
    closed = {**SETTINGS_WITH_DIRECTORIES, "run/private": "daemon.run_dir", "discards": "discard_log.path"}
    del closed["run"]
    for name in closed:
        (open_path / name).chmod(0o555)
    with a_common_user():
        warnings = list(directory_warnings(config))
    for name, setting in closed.items():
        directory = open_path / name
        assert (
            f"{setting}: the current user cannot create files in {directory}: Permission denied. Give the daemon's "
            f"user write permission in {directory}."
        ) in warnings
    assert len(warnings) == len(closed)


@contextmanager
def a_common_user() -> Iterator[None]:
    """Drop root's privileges within the block."""
    if not STRANGERS:
        yield
        return
    os.seteuid(STRANGERS[0].uid)
    try:
        yield
    finally:
        os.seteuid(0)


def test_check_config_joins_settings_with_the_same_directory(tmp_path: Path) -> None:
    settings = [f'daemon.run_dir="{tmp_path}/x/run"', f'input.unix_datagram.path="{tmp_path}/x/in"']
    config = load_config(CONF / "bruce.minimal.toml", settings)
    [warning] = directory_warnings(config)
    assert warning.startswith("daemon.run_dir, input.unix_datagram.path: ")
