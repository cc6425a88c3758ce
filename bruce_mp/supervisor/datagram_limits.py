"""What the kernel lets a client send in one datagram, and how many may wait.

A UNIX datagram must fit into its sender's send buffer, so `input.max_datagram_size` may promise more than a client can
have.  The kernel is asked at the start, by sending one of that size, rather than a client at noon.
"""

from __future__ import annotations

import errno
import logging
import socket
from pathlib import Path
from typing import Final

from bruce_mp.errors import StartError

__all__ = ["check_datagram_size", "queue_length", "warn_of_short_queue"]

QUEUE_LENGTH: Final = Path("/proc/sys/net/unix/max_dgram_qlen")
QUEUE_ENOUGH: Final = 512

log = logging.getLogger(__name__)


def check_datagram_size(size: int, *, allow_large: bool) -> None:
    """Raises StartError when clients cannot send datagrams of `size` bytes, or only with a raised SO_SNDBUF and that
    is not allowed.
    """
    if _goes_through(size, raise_buffer=False):
        return
    if not _goes_through(size, raise_buffer=True):
        raise StartError(
            f"input.max_datagram_size = {size} is too large: the kernel lets no datagram of that size through. Make it "
            "smaller, or raise the sysctl net.core.wmem_max."
        )
    if not allow_large:
        raise StartError(
            f"input.max_datagram_size = {size}: clients can send that only with a raised SO_SNDBUF. Make it smaller, "
            "raise the sysctl net.core.wmem_default, or set input.allow_large_datagrams = true."
        )
    log.warning("Clients must raise SO_SNDBUF to send datagrams of input.max_datagram_size = %d bytes.", size)


def _goes_through(size: int, *, raise_buffer: bool) -> bool:
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with sender, receiver:
        sender.setblocking(False)
        if raise_buffer:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        try:
            sender.send(bytes(size))
        except OSError as error:
            if error.errno not in {errno.EMSGSIZE, errno.ENOBUFS, errno.EAGAIN}:
                raise
            return False
    return True


def queue_length() -> int | None:
    """How many datagrams may wait at a socket that is made now; None: the kernel does not say."""
    try:
        return int(QUEUE_LENGTH.read_text("ascii"))
    except (OSError, ValueError):
        return None


def warn_of_short_queue() -> None:
    """Log a warning when so few datagrams may wait that a burst blocks its sender."""
    length = queue_length()
    if length is not None and length < QUEUE_ENOUGH:
        log.warning(
            "Only %d datagrams may wait at a socket: a burst blocks its sender, or is refused. Raise the limit before "
            "the daemon starts: sysctl -w net.unix.max_dgram_qlen=%d",
            length,
            QUEUE_ENOUGH,
        )
