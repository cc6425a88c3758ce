"""Measure receive coalescing with a long queue of datagrams, in a separate network namespace, which has its own limit.

    python -m support.long_queue DIRECTORY

The program sends MESSAGES messages at an even pace, and prints the number of batches that the input received: first of
a new daemon, then after an upgrade.  Each number is the least of some tries, because a busy machine delays the sender.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.protocol.client.messages import encode
from bruce_mp.slab import layout as lay
from support.daemon import Daemon

__all__ = ["MESSAGES", "in_namespace", "may_have_namespaces"]

MESSAGES: Final = 5000
TRIES: Final = 3
SEND_INTERVAL_S: Final = 0.00005
QUEUE_LIMIT: Final = 512
QUEUE_LIMIT_FILE: Final = Path("/proc/sys/net/unix/max_dgram_qlen")
SET_FLAGS: Final = 0x8914
"""SIOCSIFFLAGS, see netdevice(7)."""
UP: Final = 1
WITHIN_S: Final = 100
TESTS: Final = Path(__file__).parents[1]
AS_ROOT: Final = () if os.getuid() == 0 else ("--user", "--map-root-user")
NAMESPACE: Final = ("unshare", "--net", *AS_ROOT)


def in_namespace(directory: Path) -> list[int]:
    """Run the program in a namespace, and return the numbers that it printed."""
    command = [*NAMESPACE, sys.executable, "-m", "support.long_queue", str(directory)]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode == 0, done.stderr
    counts: list[int] = json.loads(done.stdout)
    return counts


def may_have_namespaces() -> bool:
    """Return True if this user may create a network namespace here and set its queue's length."""
    if shutil.which(NAMESPACE[0]) is None:
        return False
    command = [*NAMESPACE, "test", "-w", QUEUE_LIMIT_FILE]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def main(directory: Path) -> None:
    QUEUE_LIMIT_FILE.write_text(f"{QUEUE_LIMIT}\n")
    _raise_loopback()
    with DevBroker(topics={"red": 4}) as broker, Daemon(directory, broker.bootstrap) as daemon:
        counts = [_least_batches(daemon)]
        daemon.upgrade()
        counts.append(_least_batches(daemon))
    print(json.dumps(counts))


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sH22x", b"lo", UP))


def _least_batches(daemon: Daemon) -> int:
    return min(_batches(daemon) for _ in range(TRIES))


def _batches(daemon: Daemon) -> int:
    """Send the messages, and return the number of batches: each changes the version of the input's row twice."""
    with daemon.open_slab() as slab:
        version = (slab.row_at(lay.ROW_FIRST_INPUT) + lay.ROW_VERSION) >> 3
        before, received = slab.longs[version], daemon.books().received
        _send(daemon.socket_path)
        daemon.wait_settled(received + MESSAGES)
        return (slab.longs[version] - before) // 2


def _send(path: Path) -> None:
    message = encode(b"red", b"value", b"", timestamp_ms=0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(path))
        due = time.monotonic()
        for _ in range(MESSAGES):
            while time.monotonic() < due:
                pass
            sender.send(message)
            due += SEND_INTERVAL_S


if __name__ == "__main__":
    main(Path(sys.argv[1]))
