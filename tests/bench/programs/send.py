"""`send.c` for machines without a C compiler: the same arguments, the same output, at some four times the cost."""

from __future__ import annotations

import os
import socket
import sys
import time
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def read_datagrams(path: Path) -> list[bytes]:
    data = path.read_bytes()
    datagrams, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        datagrams.append(data[at : at + size])
        at += size
    return datagrams


def send_all(sock: socket.socket, datagrams: Sequence[bytes], first: int, messages: int, rate: float) -> None:
    start = time.monotonic()
    send = sock.send
    for number, datagram in enumerate(islice(cycle(datagrams), first, first + messages)):
        if rate:
            time.sleep(max(0.0, start + number / rate - time.monotonic()))
        send(datagram)


def main() -> None:
    path, file, *numbers = sys.argv[1:]
    messages, senders, rate = int(numbers[0]), int(numbers[1]), float(numbers[2])
    datagrams = read_datagrams(Path(file))
    go, start_signal = os.pipe()
    children = []
    for sender in range(senders):
        child = os.fork()
        if not child:
            os.close(start_signal)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            sock.connect(path)
            os.read(go, 1)  # the end of the pipe is the starting signal
            share = messages * (sender + 1) // senders - messages * sender // senders
            send_all(sock, datagrams, sender * 7, share, rate / senders)
            os._exit(0)
        children.append(child)
    start = time.monotonic()
    os.close(start_signal)
    if any([os.waitpid(child, 0)[1] for child in children]):  # noqa: C419  all of them have to be waited for
        sys.exit("a sender failed")
    print(f"SENT {messages} {time.monotonic() - start:.6f}")


if __name__ == "__main__":
    main()
