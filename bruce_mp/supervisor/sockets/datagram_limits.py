"""Kernel limits for datagrams: the largest size that clients can send, and the queue length of a socket.

A UNIX datagram must fit into its sender's send buffer, so clients may be unable to send datagrams of
`input.max_datagram_size` bytes. Therefore the daemon tests at its start if it can send a datagram of that size to
itself.
"""

from __future__ import annotations

import errno
import logging
import socket
from pathlib import Path
from typing import Final

from bruce_mp.errors import StartError

__all__ = ["check_datagram_size", "queue_length", "warn_of_short_queue"]

QUEUE_LENGTH_FILE: Final = Path("/proc/sys/net/unix/max_dgram_qlen")
MIN_QUEUE_LENGTH: Final = 512
"""Number of datagrams that the kernel should queue while the datagram input restarts; Linux' default is 10."""

log = logging.getLogger(__name__)


def check_datagram_size(size: int, *, allow_large: bool) -> None:
    """Raise StartError if clients cannot send datagrams of `size` bytes.

    Unless `allow_large` is True, also raise StartError if clients must raise SO_SNDBUF to send such datagrams.
    """
    if _can_send(size, is_buffer_raised=False):
        return
    if not _can_send(size, is_buffer_raised=True):
        raise StartError(
            f"input.max_datagram_size = {size} is too large: the kernel transfers no datagram of that size. Make it "
            "smaller, or raise the sysctl net.core.wmem_max."
        )
    if not allow_large:
        raise StartError(
            f"input.max_datagram_size = {size}: clients can send that only with a raised SO_SNDBUF. Make it smaller, "
            "raise the sysctl net.core.wmem_default, or set input.allow_large_datagrams = true."
        )
    log.warning("Clients must raise SO_SNDBUF to send datagrams of input.max_datagram_size = %d bytes.", size)


def _can_send(size: int, *, is_buffer_raised: bool) -> bool:
    """Return True if a datagram of `size` bytes can be sent, after SO_SNDBUF is set to `size` if `is_buffer_raised`."""
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with sender, receiver:
        sender.setblocking(False)
        if is_buffer_raised:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        try:
            sender.send(bytes(size))
        except OSError as error:
            if error.errno not in {errno.EMSGSIZE, errno.ENOBUFS, errno.EAGAIN}:
                raise
            return False
    return True


def queue_length() -> int | None:
    """Return the maximum number of datagrams in the queue of a new socket, or None if it cannot be read."""
    try:
        return int(QUEUE_LENGTH_FILE.read_text("ascii"))
    except (OSError, ValueError):
        return None


def warn_of_short_queue() -> None:
    """Log a warning if the queue of a new socket is shorter than `MIN_QUEUE_LENGTH`."""
    length = queue_length()
    if length is not None and length < MIN_QUEUE_LENGTH:
        log.warning(
            "Only %d datagrams may wait at a socket: a burst blocks its sender, or is refused. Raise the limit before "
            "the daemon starts: sysctl -w net.unix.max_dgram_qlen=%d",
            length,
            MIN_QUEUE_LENGTH,
        )
