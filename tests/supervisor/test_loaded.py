"""Modules in the daemon's processes: an unneeded one costs time at each start, and memory.

A module that a process loads itself, after the fork, counts for each process; with 30 brokers there are 30 dispatchers.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from bruce_mp.client import DatagramClient
from bruce_mp.devbroker.control import DevBroker
from bruce_mp.supervisor.processes.programs import PROGRAMS
from support.daemon import Daemon

NOT_KAFKA_S_CLIENTS: Final = {"kafka.admin", "kafka.consumer", "kafka.producer", "kafka.net", "kafka.protocol.admin"}
NOT_CODECS: Final = {"cramjam", "lz4", "snappy", "zstandard"}
NOT_SECURITY: Final = {"hmac", "secrets", "ssl", "bruce_mp.protocol.kafka.scram"}
NOT_A_DAEMON_S: Final = {"argparse", "asyncio", "email", "http", "psutil", "tomllib", "bruce_mp.config.load"}
NOT_PAGES: Final = {"flask", "jinja2", "werkzeug"}
ON_THE_PATH: Final = NOT_CODECS | NOT_SECURITY | NOT_A_DAEMON_S | NOT_PAGES
UNWANTED: Final = {
    PROGRAMS.datagram_input: {"kafka", *ON_THE_PATH},
    PROGRAMS.stream_input: {"kafka", *ON_THE_PATH},
    PROGRAMS.router: NOT_KAFKA_S_CLIENTS | ON_THE_PATH,
    PROGRAMS.dispatcher: NOT_KAFKA_S_CLIENTS | ON_THE_PATH,
    PROGRAMS.status: {"kafka", *NOT_CODECS},
    PROGRAMS.journal: {"kafka", *ON_THE_PATH},
}
PACKED: Final = {"compression.configs.quick.type": "lz4", "compression.topics.packed": "quick"}


@pytest.mark.process
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_process_loads_only_the_packages_it_needs(program: str) -> None:
    """Run beside the daemon's command alone, because the supervisor has the modules of all programs."""
    imports = f"import sys, bruce_mp.cli, bruce_mp.supervisor.processes.bootstrap, {program}"
    command = [sys.executable, "-c", f"{imports}; print(*sys.modules)"]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split()
    assert program in loaded
    assert not UNWANTED[program].intersection(loaded)


def libraries(pid: int) -> str:
    """Return the shared libraries and extension modules of a process."""
    return " ".join({line.split()[5] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if ".so" in line})


@pytest.mark.process
@pytest.mark.usefixtures("unforked")
def test_a_dispatcher_loads_only_the_configured_codec(tmp_path: Path) -> None:
    """Also after a delivery; and the codec is present before the first batch that uses it."""
    with DevBroker(topics={"plain": 1, "packed": 1}) as broker, Daemon(tmp_path, broker.bootstrap, PACKED) as daemon:
        with DatagramClient(daemon.socket_path) as client:
            client.send("plain", b"value")
        assert daemon.wait_settled(1).delivered == 1
        loaded = libraries(daemon.pids()["dispatcher-0"])
    assert "/lz4/" in loaded
    assert not [name for name in ("/cramjam/", "/zstandard/") if name in loaded]
