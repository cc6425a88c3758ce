"""Sending to the daemon from Python.  Needs the standard library only, and nothing of the daemon's dependencies.

with DatagramClient("/run/bruce.dgram") as client:
    client.send("clicks", b"value", key=b"key")
"""

from bruce_mp.client.datagram import (
    DaemonUnreachableError,
    DatagramClient,
    MessageTooLargeError,
    SendError,
    SendTimeoutError,
)

__all__ = ["DaemonUnreachableError", "DatagramClient", "MessageTooLargeError", "SendError", "SendTimeoutError"]
