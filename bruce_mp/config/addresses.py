"""Parse the addresses in the configuration: `host:port`, `[ipv6]:port` and `unix:/path`."""

from __future__ import annotations

import ipaddress
import re
from typing import Final, NamedTuple

from bruce_mp.config.paths import SOCKET_PATH_MAX, check_path

__all__ = ["HostPort", "UnixPath", "check_host", "is_loopback", "parse_host_port", "parse_listen"]

_UNIX: Final = "unix:"
_HOST_PORT: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%\w+)?)\]|([^\s:\[\]/]+)):([0-9]{1,5})")


class HostPort(NamedTuple):
    """A TCP address; `host` has no brackets, even for IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UnixPath(NamedTuple):
    """The path of a UNIX socket."""

    path: str

    def __str__(self) -> str:
        return _UNIX + self.path


def parse_host_port(text: str, *, lowest_port: int = 1) -> HostPort:
    """Parse `host:port` with a port from `lowest_port` to 65535. For another text, raise ValueError with the reason."""
    match = _HOST_PORT.fullmatch(text)
    if match is None:
        raise ValueError(f'"{text}" is not of the form host:port')
    if not lowest_port <= int(match[3]) <= 65535:
        raise ValueError(f"port {match[3]} is not from {lowest_port} to 65535")
    return HostPort(match[1] or match[2], int(match[3]))


def parse_listen(text: str) -> HostPort | UnixPath:
    """Parse `host:port` or `unix:/path`, an address to listen on. For another text, raise ValueError with the reason.

    With port 0, the kernel chooses the port when the socket is bound.
    """
    if text.startswith(_UNIX):
        return UnixPath(check_path(text.removeprefix(_UNIX), SOCKET_PATH_MAX))
    address = parse_host_port(text, lowest_port=0)
    check_host(address.host)
    return address


def check_host(host: str) -> None:
    """Raise ValueError with the reason if `host` cannot be a host name or an address."""
    try:
        host.encode("idna")  # as getaddrinfo() does, which raises this error later
    except UnicodeError:
        raise ValueError(f'"{host}" is not a host name') from None


def is_loopback(host: str) -> bool:
    """Return True if `host` is `localhost` or a loopback address, which only programs of this host can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
