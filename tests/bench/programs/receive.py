"""`receive.c` for machines without a C compiler: the same arguments, the same output, at a little more cost."""

from __future__ import annotations

import select
import socket
import struct
import sys
import time

PATIENCE = struct.pack("ll", 5, 0)  # struct timeval
SIZE_BYTES = 4


def main() -> None:
    kind, _, path = sys.argv[1].partition(":")
    if kind == "datagram":
        receive_datagrams(path, int(sys.argv[2]))
    else:
        receive_streams(path, int(sys.argv[2]), int(sys.argv[3]))


def receive_streams(path: str, wanted: int, senders: int) -> None:
    """Read all connections with epoll until they end, and count the messages by their sizes."""
    start = cpu = 0.0
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, select.epoll() as epoll:
        listener.bind(path)
        listener.listen(senders)
        print("READY", flush=True)
        streams = [listener.accept()[0] for _ in range(senders)]
        rests = {stream.fileno(): (stream, bytearray()) for stream in streams}
        for stream in streams:
            epoll.register(stream, select.EPOLLIN)
        received, cpu = 0, time.process_time()
        while received < wanted and (ready := epoll.poll(5)):
            start = start or time.monotonic()
            for descriptor, _ in ready:
                stream, rest = rests[descriptor]
                data = stream.recv(1 << 18)
                if not data:
                    epoll.unregister(descriptor)
                rest += data
                received += cut(rest)
        cpu = time.process_time() - cpu
    print(f"RECEIVED {received} {time.monotonic() - start:.6f} {cpu:.6f}")


def cut(rest: bytearray) -> int:
    """Remove the whole messages, and return their number."""
    at = count = 0
    while len(rest) - at >= SIZE_BYTES:
        size = int.from_bytes(rest[at : at + SIZE_BYTES], "big")
        if len(rest) - at < size:
            break
        at, count = at + size, count + 1
    del rest[:at]
    return count


def receive_datagrams(path: str, wanted: int) -> None:
    """Receive with one call for each datagram."""
    buffer = bytearray(1 << 18)
    received, start = 0, 0.0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, PATIENCE)  # settimeout() would poll before each recv
        print("READY", flush=True)
        cpu = time.process_time()
        receive = sock.recv_into
        try:
            while received < wanted:
                receive(buffer)
                if not received:
                    start = time.monotonic()
                received += 1
        except BlockingIOError:
            pass
        cpu = time.process_time() - cpu
    print(f"RECEIVED {received} {time.monotonic() - start:.6f} {cpu:.6f}")


if __name__ == "__main__":
    main()
