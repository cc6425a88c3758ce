"""Addresses in the configuration: `host:port`, `[ipv6]:port` and `unix:/path`."""

from __future__ import annotations

import ipaddress
import re
from typing import Final, NamedTuple

from bruce_mp.config.paths import SOCKET_PATH_MAX, check_path

__all__ = ["HostPort", "UnixPath", "is_loopback", "parse_host_port", "parse_listen"]

_UNIX: Final = "unix:"
_HOST_PORT: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%\w+)?)\]|([^\s:\[\]/]+)):([0-9]{1,5})")


class HostPort(NamedTuple):
    """A TCP address; an IPv6 host is without its brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UnixPath(NamedTuple):
    """A UNIX stream socket's path."""

    path: str

    def __str__(self) -> str:
        return _UNIX + self.path


def parse_host_port(text: str, *, lowest_port: int = 1) -> HostPort:
    """`ValueError`, saying what is wrong, if `text` is not `host:port` with a port from `lowest_port` to 65535."""
    match = _HOST_PORT.fullmatch(text)
    if match is None:
        raise ValueError(f'"{text}" is not of the form host:port')
    if not lowest_port <= int(match[3]) <= 65535:
        raise ValueError(f"port {match[3]} is not from {lowest_port} to 65535")
    return HostPort(match[1] or match[2], int(match[3]))


def parse_listen(text: str) -> HostPort | UnixPath:
    """An address to listen on; port 0 lets the kernel choose.  `ValueError`, saying why, if it is none."""
    if text.startswith(_UNIX):
        return UnixPath(check_path(text.removeprefix(_UNIX), SOCKET_PATH_MAX))
    return parse_host_port(text, lowest_port=0)


def is_loopback(host: str) -> bool:
    """Whether only programs of this host reach `host`: an address of the loopback interface, or `localhost`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
