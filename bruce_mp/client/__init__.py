"""Python clients of the daemon. They need the standard library only, not the daemon's dependencies.

with DatagramClient("/run/bruce.dgram") as client:
    client.send("clicks", b"value", key=b"key")

with StreamClient("/run/bruce.stream", linger=0.01) as client:
    for row in rows:
        client.send("rows", row)
    print(client.flush(timeout=60).delivered)
"""

from bruce_mp.client.base import Client, Stats
from bruce_mp.client.datagram import DatagramClient
from bruce_mp.client.errors import (
    AttemptLostError,
    ClientClosedError,
    DaemonUnreachableError,
    MessageRefusedError,
    MessageTooLargeError,
    SendError,
    SendTimeoutError,
)
from bruce_mp.client.flush import FlushError, Outcome
from bruce_mp.client.stream import StreamClient, TcpClient
from bruce_mp.protocol.client.key_hashes import partition_key_of

__all__ = [
    "AttemptLostError",
    "Client",
    "ClientClosedError",
    "DaemonUnreachableError",
    "DatagramClient",
    "FlushError",
    "MessageRefusedError",
    "MessageTooLargeError",
    "Outcome",
    "SendError",
    "SendTimeoutError",
    "Stats",
    "StreamClient",
    "TcpClient",
    "partition_key_of",
]
