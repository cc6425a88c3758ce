"""The peer of a stream connection (the client's process): its credentials, admission by the allow list, and loss."""

from __future__ import annotations

import socket
from array import array
from struct import Struct
from typing import TYPE_CHECKING, Final

from bruce_mp.config.accounts import TCP_USER
from bruce_mp.discards.reporter import PeerCredentials
from bruce_mp.slab.sender_usage import SenderSums

if TYPE_CHECKING:
    from bruce_mp.input.sender_quotas import SenderQuotas

__all__ = ["admit_peer", "describe_origin", "origin_of", "peer_of", "set_tcp_options"]

_CREDENTIALS: Final = Struct("iII")
"""Linux' `struct ucred`: pid, uid, gid."""
_PEERGROUPS: Final = 59
"""Linux' `SO_PEERGROUPS`; Python's socket module lacks it."""
_GROUPS_BYTES: Final = 1024
"""The largest buffer that Python's `getsockopt` allows, in bytes: room for 256 groups."""
_TCP_OPTIONS: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 120),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
)
"""Level, name and value of each option.  A connection counts as lost if its peer's host is silent for 5 minutes."""


def peer_of(peer_socket: socket.socket) -> PeerCredentials | None:
    """Return the process and user of the peer; None for a TCP peer, because the kernel does not tell them."""
    if peer_socket.family != socket.AF_UNIX:
        return None
    pid, uid, _ = _credentials_of(peer_socket)
    return PeerCredentials(pid, uid)


def origin_of(peer_socket: socket.socket, peer: PeerCredentials | None) -> int | str:
    """Return the user id of a UNIX peer, or the address of a TCP peer; TCP_USER for a TCP peer that has gone."""
    if peer is not None:
        return peer.uid
    try:
        return str(peer_socket.getpeername()[0])
    except OSError:  # the peer has disconnected already
        return TCP_USER


def describe_origin(origin: int | str, peer: PeerCredentials | None) -> str:
    """Return a text for the log: the user and process of a UNIX peer, or the address of a TCP peer."""
    return str(origin) if peer is None else f"user {peer.uid} (process {peer.pid})"


def set_tcp_options(peer_socket: socket.socket) -> None:
    """Send small answers at once, and find out that the peer's host has vanished: its open attempt takes room."""
    for option in _TCP_OPTIONS:
        peer_socket.setsockopt(*option)


def admit_peer(peer_socket: socket.socket, quotas: SenderQuotas, now_ms: int) -> bool:
    """Return True if the allow list admits the peer's user or one of its groups; else log and count the refusal.

    A TCP peer is always admitted, because its user is unknown.
    """
    if peer_socket.family != socket.AF_UNIX or quotas.rules.allow_list is None:
        return True
    pid, uid, gid = _credentials_of(peer_socket)
    if quotas.admits(uid, (gid, *_groups_of(peer_socket))):
        return True
    quotas.add_sums(uid, SenderSums(refused=1), now_ms)
    quotas.warn_refused(uid, pid, "A connection")
    return False


def _groups_of(peer_socket: socket.socket) -> array[int]:
    """Return the supplementary groups of the peer; none on Linux before 4.13, or if there are more than 256."""
    try:
        return array("I", peer_socket.getsockopt(socket.SOL_SOCKET, _PEERGROUPS, _GROUPS_BYTES))
    except OSError:
        return array("I")


def _credentials_of(peer_socket: socket.socket) -> tuple[int, int, int]:
    credentials = peer_socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(credentials)
    return pid, uid, gid
