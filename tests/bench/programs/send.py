"""`send.c` for machines without a C compiler: the same arguments, the same output, at about four times the cost."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

STAMP_BYTES = 8
SIZE_BYTES = 4
ANY_PARTITION = 256
TOPIC_AT = 12


def read_messages(path: Path) -> list[bytes]:
    data = path.read_bytes()
    messages, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        messages.append(data[at : at + size])
        at += size
    return messages


def connect_to(name: str) -> socket.socket:
    kind, _, rest = name.partition(":")
    if kind == "tcp":
        return socket.create_connection(("127.0.0.1", int(rest)))
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM if kind == "unix" else socket.SOCK_DGRAM)
    sock.connect(rest)
    return sock


def stamped(message: bytes) -> bytes:
    """Return a message whose last bytes are the present monotonic time in ns."""
    return message[:-STAMP_BYTES] + time.monotonic_ns().to_bytes(STAMP_BYTES, sys.byteorder)


def dated(message: bytes) -> bytes:
    """Return an AnyPartition message with the present time as timestamp, which follows the topic."""
    at = TOPIC_AT + int.from_bytes(message[TOPIC_AT - 2 : TOPIC_AT], "big")
    if int.from_bytes(message[4:6], "big") != ANY_PARTITION:
        return message
    return message[:at] + (time.time_ns() // 1_000_000).to_bytes(8, "big") + message[at + 8 :]


class Load(NamedTuple):
    """The load of one sender.

    It sends `wanted` messages from index `first` on, `per_write` in a write, at `rate` messages per second (0: as fast
    as possible). `stamp` and `date` apply `stamped` and `dated`.
    """

    messages: Sequence[bytes]
    first: int
    wanted: int
    rate: float
    per_write: int
    stamp: bool
    date: bool


def send_all(sock: socket.socket, load: Load) -> None:
    start = time.monotonic()
    done = 0
    while done < load.wanted:
        if load.rate:
            time.sleep(max(0.0, start + done / load.rate - time.monotonic()))
        at = (load.first + done) % len(load.messages)
        some = load.messages[at : at + min(load.per_write, load.wanted - done)]
        some = list(map(dated, some)) if load.date else some
        sock.sendall(b"".join(map(stamped, some) if load.stamp else some))
        done += len(some)


def main() -> None:
    address, file, *numbers = sys.argv[1:]
    wanted, senders, rate = int(numbers[0]), int(numbers[1]), float(numbers[2])
    per_write, stamp, bare = map(int, numbers[3:])
    messages = [message[SIZE_BYTES if bare else 0 :] for message in read_messages(Path(file))]
    go, start_signal = os.pipe()
    children = []
    for sender in range(senders):
        child = os.fork()
        if not child:
            os.close(start_signal)
            sock = connect_to(address)
            os.read(go, 1)  # the end of the pipe is the starting signal
            share = wanted * (sender + 1) // senders - wanted * sender // senders
            send_all(
                sock, Load(messages, sender * 7, share, rate / senders, per_write, bool(stamp), rate > 0 and not bare)
            )
            os._exit(0)
        children.append(child)
    start = time.monotonic()
    os.close(start_signal)
    if any([os.waitpid(child, 0)[1] for child in children]):  # noqa: C419  all of them have to be waited for
        sys.exit("a sender failed")
    print(f"SENT {wanted} {time.monotonic() - start:.6f}")


if __name__ == "__main__":
    main()
