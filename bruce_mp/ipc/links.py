"""ZeroMQ links between the processes.

If a receiver is killed, the frames in its queue are lost. So a frame is only a *doorbell*: it names records in the
slab, and the messages stay there. The receiver checks each frame against the slab, and a process that starts sweeps the
slab for the records of lost frames. Only the links to the status process carry data. They have a high-water mark; the
other links need none, because their frames name records in the slab, and its room for records is limited.

The receiver binds a link's socket, and the sender connects to it; either may start first. The socket files lie in the
run directory (mode 0700). A receiver logs and ignores a malformed frame, because such a frame must not end a process.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import zmq

from bruce_mp.errors import SlabError, StartError
from bruce_mp.ipc.frames import pack_parcels, unpack_parcels

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.ipc.frames import Parcel

__all__ = [
    "CLOSE_TIMEOUT_MS",
    "COPIES",
    "JOURNAL_REQUESTS",
    "REPORTS",
    "ROUTER_FROM_DISPATCHERS",
    "ROUTER_FROM_INPUTS",
    "LinkReceiver",
    "LinkSender",
    "Links",
    "dispatcher_link",
]

# Names of the links; `dispatcher_link` has the names of the links to dispatchers.
ROUTER_FROM_INPUTS: Final = "router-runs"
ROUTER_FROM_DISPATCHERS: Final = "router-events"
REPORTS: Final = "status-reports"  # discards and other events, to the status process
COPIES: Final = "status-copies"  # copies of messages for the status process's files
JOURNAL_REQUESTS: Final = "journal-requests"  # from stream inputs to the journal process: write the journal now
log = logging.getLogger(__name__)
_HIGH_WATER_MARKS: Final = {REPORTS: 100, COPIES: 20}
"""Number of frames that a link to the status process queues; a sender keeps the data that a full link refuses."""

_READABLE: Final = int(zmq.POLLIN)  # an int, because `&` with the enum would cost more than the rest of the check
_RECONNECT_MS: Final = 10
"""Time between two tries to connect, a tenth of ZeroMQ's default, because messages wait while a receiver restarts."""
CLOSE_TIMEOUT_MS: Final = 500
"""Maximum time that a process, when it ends, waits for the status process to receive its last frames."""


def dispatcher_link(slot: int) -> str:
    """Return the name of the link to the dispatcher in a slot."""
    return f"dispatcher-{slot}"


class LinkSender:
    """The sending end of a link; it never blocks."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket

    def send(self, parcels: list[Parcel]) -> None:
        """Send parcels in one frame, in order; an empty list sends nothing."""
        if parcels:
            self._socket.send(pack_parcels(parcels), zmq.DONTWAIT)

    def send_bytes(self, data: bytes) -> bool:
        """Send one frame. Return False if the link is full; the frame is then not sent."""
        try:
            self._socket.send(data, zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Close the link and drop its unsent frames."""
        self._socket.close(linger=0)


class LinkReceiver:
    """The receiving end of a link."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket

    def receive(self) -> list[Parcel] | None:
        """Return the parcels of the next frame that has any, or None if no such frame waits."""
        while (data := self.receive_bytes()) is not None:
            try:
                if parcels := unpack_parcels(data):
                    return parcels
            except SlabError as error:
                log.warning("%s The receiver ignores the frame; its records stay in the slab.", error)
        return None

    def receive_bytes(self) -> bytes | None:
        """Return the bytes of the next frame, or None if no frame waits."""
        # Without this check, `recv` would raise an exception for an empty queue, which costs more.
        has_frame = int(self.socket.get(zmq.EVENTS)) & _READABLE
        return self.socket.recv(zmq.DONTWAIT) if has_frame else None


class Links:
    """The links of one process; `directory` is the run directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._receivers: dict[Path, zmq.Socket[bytes]] = {}

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.ipc"

    def sender(self, name: str) -> LinkSender:
        """Return the sending end of a link, which connects as soon as the receiver has bound the link."""
        socket = self._context.socket(zmq.PUSH)
        socket.setsockopt(zmq.SNDHWM, _HIGH_WATER_MARKS.get(name, 0))
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"ipc://{self._path(name)}")
        return LinkSender(socket)

    def receiver(self, name: str) -> LinkReceiver:
        """Bind a link and return its receiving end. Raises StartError if the bind fails.

        A socket file that a dead process has left is replaced.
        """
        socket = self._context.socket(zmq.PULL)
        socket.setsockopt(zmq.RCVHWM, _HIGH_WATER_MARKS.get(name, 0))
        socket.setsockopt(zmq.LINGER, 0)
        try:
            _bind(socket, self._path(name))
        except StartError:
            socket.close()
            raise
        self._receivers[self._path(name)] = socket
        return LinkReceiver(socket)

    def restore_files(self) -> None:
        """Bind the links again whose socket files are gone: processes that start later could not connect.

        The present connections continue.
        """
        for path, socket in self._receivers.items():
            try:
                if not path.is_socket():
                    _bind(socket, path)
                    log.warning(
                        "The socket file %s was gone, and is there again: no program should remove it.",
                        path,
                        extra={"about": path},
                    )
            except (OSError, StartError) as error:
                log.error("%s", error)

    def close(self, timeout_ms: int = 0) -> None:
        """Wait for at most `timeout_ms` until the sent frames have reached their receivers, and close all links."""
        self._context.destroy(linger=timeout_ms)


def _bind(socket: zmq.Socket[bytes], path: Path) -> None:
    """Bind a socket to a path, also a second time."""
    try:
        socket.bind(f"ipc://{path}")
    except zmq.ZMQError as error:
        raise StartError(
            f"The socket {path} cannot be created: {error.strerror}. Check the path and the permissions of the "
            "directory; no other program should use the directory."
        ) from error
