"""Links between the processes: UNIX stream sockets whose frames are doorbells and own no message.

If a receiver is killed, the frames in its queue are lost. So a frame between the other processes only names records in
the slab: each receiver checks it against the slab, and each process sweeps the slab at its start. These links have no
high-water mark, because the slab bounds the number of frames. The links to the status process carry data and have one.

The receiver binds; the sender connects with its first frame, and may start first. It notices the death of a receiver
when it sends, and repeats the frame that the receiver has not taken as a whole. The sockets lie in the run directory
(mode 0700). A receiver logs and ignores a malformed frame, because it must not end a process.

    frame: u32 size, that many bytes
"""

from __future__ import annotations

import logging
import select
import socket
import time
from collections import deque
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import SlabError, StartError
from bruce_mp.ipc.frames import pack_parcels, unpack_parcels

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bruce_mp.ipc.frames import Parcel
    from bruce_mp.ipc.loop import Loop

__all__ = [
    "CLOSE_TIMEOUT_MS",
    "COPIES",
    "JOURNAL_REQUESTS",
    "READ_BYTES",
    "REPORTS",
    "ROUTER_FROM_DISPATCHERS",
    "ROUTER_FROM_INPUTS",
    "LinkReceiver",
    "LinkSender",
    "Links",
    "dispatcher_link",
]

ROUTER_FROM_INPUTS: Final = "router-runs"
ROUTER_FROM_DISPATCHERS: Final = "router-events"
REPORTS: Final = "status-reports"
COPIES: Final = "status-copies"
JOURNAL_REQUESTS: Final = "journal-requests"
log = logging.getLogger(__name__)
_SIZE: Final = Struct("<I")
_HIGH_WATER_MARKS: Final = {REPORTS: 100, COPIES: 20}
"""Frames beside those in the receiver's queue that a link to the status process keeps.

A sender keeps the data that a full link refuses."""

_RETRY_S: Final = 0.01
"""Interval of the tries to connect, short because messages wait while a receiver restarts."""
_ACCEPT_RETRY_S: Final = 1.0
"""Pause of a receiver that has no free descriptor."""
READ_BYTES: Final = 64 * 1024
"""Bytes of one sender that the loop serves before it serves its other sources again."""
CLOSE_TIMEOUT_MS: Final = 500
"""Maximum time that an ending process waits until the status process has received its last frames."""


def dispatcher_link(slot: int) -> str:
    """Return the name of the link to the dispatcher of a slot."""
    return f"dispatcher-{slot}"


class LinkSender:
    """The sending end of a link; it never blocks. Without a `limit` it keeps all frames for an absent receiver."""

    def __init__(self, loop: Loop, path: Path, limit: int | None) -> None:
        self._loop = loop
        self._path = path
        self._limit = limit
        self._socket: socket.socket | None = None
        self._unsent: deque[memoryview] = deque()
        self._taken = 0
        """Bytes of the first unsent frame that the receiver's queue has."""

    def send(self, parcels: list[Parcel]) -> None:
        """Send parcels in one frame, in order; an empty list sends nothing."""
        if parcels:
            self.send_bytes(pack_parcels(parcels))

    def send_bytes(self, data: bytes) -> bool:
        """Send one frame. Return False if the link is full, so that the frame was not sent."""
        if self._limit is not None and len(self._unsent) >= self._limit:
            return False
        self._unsent.append(memoryview(_SIZE.pack(len(data)) + data))
        if len(self._unsent) == 1:  # else the loop sends the frames before it
            self._send_unsent()
        return True

    def close(self, deadline: float = 0.0) -> None:
        """Close the link, and drop the frames that the receiver does not take until `deadline`."""
        while self._unsent and time.monotonic() < deadline:
            try:
                is_done = self._transmit()
            except OSError:
                self._disconnect()
                is_done = False
            if not is_done:
                time.sleep(_RETRY_S)
        self._unsent.clear()
        self._disconnect()

    def _send_unsent(self) -> None:
        """Send the unsent frames; the loop calls again while the receiver is absent or its queue is full."""
        try:
            is_done = self._transmit()
        except OSError:
            if self._socket is None:
                self._loop.call_later(_RETRY_S, self._send_unsent)
            else:  # another receiver may have taken the place of the dead one
                self._disconnect()
                self._send_unsent()
            return
        if not is_done:
            self._loop.watch(self._socket, lambda _: self._send_unsent(), select.POLLOUT)
        elif self._socket is not None:
            self._loop.unwatch(self._socket)

    def _transmit(self) -> bool:
        """Send the unsent frames, and return False if the receiver's queue is full; raise OSError if it is absent."""
        while self._unsent:
            receiver = self._socket or self._connect()
            try:
                self._taken += receiver.send(self._unsent[0][self._taken :])
            except BlockingIOError:
                return False
            if self._taken == len(self._unsent[0]):
                self._unsent.popleft()
                self._taken = 0
        return True

    def _connect(self) -> socket.socket:
        receiver = socket.socket(socket.AF_UNIX)
        receiver.setblocking(False)
        try:
            receiver.connect(str(self._path))
        except OSError:
            receiver.close()
            raise
        self._socket = receiver
        return receiver

    def _disconnect(self) -> None:
        self._taken = 0
        if self._socket is not None:
            self._loop.unwatch(self._socket)
            self._socket.close()
            self._socket = None


class LinkReceiver:
    """The receiving end of a link; the loop passes each frame to `on_frame`."""

    def __init__(self, loop: Loop, listener: socket.socket, on_frame: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._listener = listener
        self._on_frame = on_frame
        self._senders: dict[socket.socket, bytearray] = {}
        """The bytes of an incomplete frame, by sender."""
        self._watch_listener()

    def serve_waiting(self) -> None:
        """Serve the frames that wait now."""
        while self._accept():
            pass
        for sender in list(self._senders):
            while self._read(sender):
                pass

    def close(self) -> None:
        """Close the link and drop its frames."""
        for end in (self._listener, *self._senders):
            self._loop.unwatch(end)
            end.close()
        self._senders.clear()

    def _watch_listener(self) -> None:
        self._loop.watch(self._listener, lambda _: self._accept())

    def _accept(self) -> bool:
        """Accept a sender; return False if none waits."""
        try:
            sender, _ = self._listener.accept()
        except BlockingIOError:
            return False
        except OSError as error:
            log.warning("The link %s cannot accept a process: %s.", self._listener.getsockname(), error.strerror)
            self._loop.unwatch(self._listener)
            self._loop.call_later(_ACCEPT_RETRY_S, self._watch_listener)
            return False
        sender.setblocking(False)
        self._senders[sender] = bytearray()
        self._loop.watch(sender, lambda _: self._read(sender))
        return True

    def _read(self, sender: socket.socket) -> bool:
        """Serve frames of at most READ_BYTES; return False if none waits."""
        try:
            data = sender.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # the sender was killed
            data = b""
        if not data:
            del self._senders[sender]
            self._loop.unwatch(sender)
            sender.close()
            return False
        unread = self._senders[sender]
        unread += data
        for frame in _cut_frames(unread):
            self._on_frame(frame)
        return True


class Links:
    """The links of one process; `directory` is the run directory."""

    def __init__(self, directory: Path, loop: Loop) -> None:
        self._directory = directory
        self._loop = loop
        self._senders: list[LinkSender] = []
        self._receivers: list[LinkReceiver] = []

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.ipc"

    def sender(self, name: str) -> LinkSender:
        """Return the sending end of a link; the receiver may bind it later."""
        sender = LinkSender(self._loop, self._path(name), _HIGH_WATER_MARKS.get(name))
        self._senders.append(sender)
        return sender

    def receiver(self, name: str, on_frame: Callable[[bytes], None]) -> LinkReceiver:
        """Bind a link, over the socket file of a dead process if there is one. Raises StartError if the bind fails."""
        path = self._path(name)
        listener = socket.socket(socket.AF_UNIX)
        listener.setblocking(False)
        try:
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            listener.listen(socket.SOMAXCONN)
        except OSError as error:
            listener.close()
            raise StartError(
                f"The socket {path} cannot be created: {error.strerror or error}. Check that path and "
                "the permissions of the directory; only the daemon should use it."
            ) from error
        receiver = LinkReceiver(self._loop, listener, on_frame)
        self._receivers.append(receiver)
        return receiver

    def parcel_receiver(self, name: str, on_parcels: Callable[[list[Parcel]], None]) -> LinkReceiver:
        """Bind a link, as `receiver` does, whose frames are parcels."""
        return self.receiver(name, partial(_pass_parcels, on_parcels))

    def close(self, timeout_ms: int = 0) -> None:
        """Close all links, after at most `timeout_ms` in which the receivers may take the sent frames."""
        deadline = time.monotonic() + timeout_ms / 1000
        for sender in self._senders:
            sender.close(deadline)
        for receiver in self._receivers:
            receiver.close()


def _cut_frames(unread: bytearray) -> list[bytes]:
    """Remove the complete frames from the front of `unread`, and return their contents."""
    frames: list[bytes] = []
    at = 0
    while (start := at + _SIZE.size) <= len(unread):
        (size,) = _SIZE.unpack_from(unread, at)
        if start + size > len(unread):
            break
        at = start + size
        frames.append(bytes(unread[start:at]))
    del unread[:at]
    return frames


def _pass_parcels(on_parcels: Callable[[list[Parcel]], None], frame: bytes) -> None:
    try:
        parcels = unpack_parcels(frame)
    except SlabError as error:
        log.warning("%s The receiver ignores the frame; its records stay in the slab.", error)
        return
    if parcels:
        on_parcels(parcels)
