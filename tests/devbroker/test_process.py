"""`python -m bruce_mp.devbroker`: arguments, signals, exit status."""

from __future__ import annotations

import argparse
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from bruce_mp.devbroker.control import connect
from bruce_mp.devbroker.process import main, parse_positive, parse_size, parse_topic

pytestmark = pytest.mark.process
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a broker; the fixture kills remaining processes at the end."""
    with ExitStack() as stack:

        def run(*arguments: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "bruce_mp.devbroker", *arguments]
            pipe = subprocess.PIPE
            process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
            stack.callback(process.kill)
            return process

        yield run


def ready(process: subprocess.Popen[str]) -> tuple[str, str]:
    assert process.stdout is not None
    return process.stdout.readline(), process.stdout.readline()


def test_the_process_prints_its_addresses_and_ends_on_a_signal(start: Start) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        process = start("--brokers", "3", "--topic", "hits:4")
        bootstrap, control = ready(process)
        assert bootstrap.startswith("BOOTSTRAP 127.0.0.1:")
        assert bootstrap.count(",") == 2
        assert control.startswith("CONTROL 127.0.0.1:")
        for address in (*bootstrap.split()[1].split(","), control.split()[1]):
            host, port = address.split(":")
            socket.create_connection((host, int(port)), 5).close()
        process.send_signal(number)
        out, err = process.communicate(timeout=10)
        assert (process.returncode, out, err) == (0, "", "")


def test_the_process_ends_while_clients_are_connected(start: Start) -> None:
    process = start()
    host, port = ready(process)[0].split()[1].split(":")
    with socket.create_connection((host, int(port)), 5):
        process.terminate()
        assert process.communicate(timeout=10) == ("", "")
    assert process.returncode == 0


def test_the_process_ends_at_the_end_of_its_input_with_until_eof(start: Start) -> None:
    process = start("--until-eof")
    ready(process)
    process.communicate("not the end yet\n", timeout=10)
    assert process.returncode == 0


def test_a_port_in_use_is_reported(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start("--port", str(taken.getsockname()[1]))
        _, err = process.communicate(timeout=10)
    assert process.returncode == 1
    assert "cannot start" in err
    assert "in use" in err


def test_the_port_option_sets_the_first_port(start: Start) -> None:
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        assert ready(start("--brokers", "2", "--port", str(port)))[0].startswith(f"BOOTSTRAP 127.0.0.1:{port},")


def test_the_control_socket_of_another_broker_is_not_replaced(start: Start, tmp_path: Path) -> None:
    control = str(tmp_path / "control")
    assert ready(start("--control", control))[1] == f"CONTROL {control}\n"
    assert stat.S_IMODE(Path(control).stat().st_mode) == 0o600
    _, err = start("--control", control).communicate(timeout=60)
    assert f"in use; remove it if no broker runs there: '{control}'" in err
    with closing(connect(control)) as channel:
        channel.sendall(b'{"do":"list_faults"}\n')
        assert channel.recv(100) == b'{"ok":true,"result":[]}\n'


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--topic", "hits"], ["--topic", "hits:x"], ["--brokers", "0"], ["--max-bytes", "1t"]),
        *(["--odd"], ["--fault", "odd"], ["--control", "name"]),
        *(["--port", "99999"], ["--port", "-1"], ["--control", "65536"]),
    ],
)
def test_invalid_arguments_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_argument_values_are_parsed_or_refused() -> None:
    assert [parse_size(text) for text in ("7", "64k", "256m", "1G")] == [7, 65536, 256 << 20, 1 << 30]
    assert parse_topic("a.b:12") == ("a.b", 12)
    for parse, text in (
        (parse_size, "0"),
        (parse_size, "-1"),
        (parse_topic, ":"),
        (parse_topic, "a:100001"),
        (parse_positive, "0"),
        (parse_positive, "-3"),
    ):
        with pytest.raises(argparse.ArgumentTypeError):
            parse(text)
