"""A daemon's status pages, as the commands read them.

Where they are is said by `--url`, or by the configuration that the daemon runs with: it has written the address into
its run directory, where it stays true if somebody edits the configuration meanwhile.  Proxies of the environment are
not asked: the daemon is on this host.
"""

from __future__ import annotations

import socket
from argparse import ArgumentTypeError
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from bruce_mp.config.addresses import HostPort, UnixPath, parse_listen
from bruce_mp.config.load import load_config
from bruce_mp.config.sections import Http
from bruce_mp.errors import BruceError, ExitCode
from bruce_mp.pipes.credentials import read_secret
from bruce_mp.supervisor.run_dir import HTTP_ADDRESS

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Mapping

    from bruce_mp.config.model import Config

__all__ = ["Pages", "UnreadableError", "add_address", "add_token", "pages_of"]

_Page = TypeVar("_Page")

TIMEOUT_S: Final = 5.0
POST_TIMEOUT_S: Final = 45.0
"""A daemon answers only when it has done what it was asked to."""
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to connect if the daemon listens there


class UnreadableError(BruceError):
    """The daemon does not answer, or not as it should."""

    exit_code = ExitCode.UNREADABLE


def add_address(parser: ArgumentParser) -> None:
    """The options that say which daemon is meant."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--url",
        type=_address,
        metavar="URL",
        help=f"its status pages: http://HOST:PORT or unix:/PATH (default http://{Http().listen})",
    )
    where.add_argument("--config", type=Path, metavar="FILE", help="its configuration")


def _address(text: str) -> HostPort | UnixPath:
    try:
        return parse_listen(text.removeprefix("http://").rstrip("/"))
    except ValueError as error:
        raise ArgumentTypeError(f"{error}; give http://HOST:PORT or unix:/PATH") from error


def add_token(parser: ArgumentParser) -> None:
    """The option with which a daemon is asked to change something."""
    text = "file with the token that the daemon wants, if --config does not say where it is"
    parser.add_argument("--token-file", metavar="FILE", help=text)


def pages_of(args: Namespace) -> Pages:
    """The pages of the daemon that the options mean.  Raises ConfigError, or UnreadableError when it cannot be told."""
    config = None if args.config is None else load_config(args.config)
    address = (args.url or Http().address) if config is None else _address_in(config)
    return Pages(address, lambda: _token(getattr(args, "token_file", None), Http() if config is None else config.http))


def _token(file: str | None, http: Http) -> str | None:
    """Raises ConfigError when it cannot be read."""
    if file is not None:
        return read_secret(file, None, "The token")
    return read_secret(http.token_file, http.token_env, "The token of the daemon")


def _address_in(config: Config) -> HostPort | UnixPath:
    address = config.http.address
    place = Path(config.daemon.run_dir, HTTP_ADDRESS)
    try:
        return parse_listen(place.read_text("utf-8"))
    except OSError as error:
        if isinstance(address, UnixPath) or address.port:
            return address
        raise UnreadableError(
            f"http.listen has port 0, and {place}, where a running daemon notes the port that it got, cannot be read: "
            f"{error.strerror}. Start the daemon, or give --url."
        ) from error


class Pages:
    """The pages at an address.  `token` is asked for when something is to be changed; it may raise ConfigError."""

    def __init__(self, address: HostPort | UnixPath, token: Callable[[], str | None] = lambda: None) -> None:
        self._address = address
        self._token = token

    def get(self, page: str, shape: type[_Page]) -> _Page:
        """The JSON page `/page/json` as a `shape`.  Raises UnreadableError."""
        try:
            return msgspec.json.decode(self._fetch(f"/{page}/json"), type=shape)
        except msgspec.DecodeError as error:
            raise UnreadableError(
                f"What answers at {self._address} is not a bruce daemon of this version: /{page}/json: {error}."
            ) from error

    def post(self, path: str) -> tuple[int, str]:
        """Have the daemon do something; the status and the text of its answer.  Raises UnreadableError."""
        token = self._token()
        headers = {} if token is None else {"Authorization": b"Bearer " + token.encode()}
        status, body = self._ask("POST", path, POST_TIMEOUT_S, headers)
        return status, body.decode("utf-8", "replace")

    def _fetch(self, path: str) -> bytes:
        status, body = self._ask("GET", path, TIMEOUT_S)
        if status != 200:
            text = body.decode("utf-8", "replace").strip()
            raise UnreadableError(f"{self._address} answered {path} with {status}: {text}")
        return body

    def _ask(
        self, method: str, path: str, timeout_s: float, headers: Mapping[str, bytes] = MappingProxyType({})
    ) -> tuple[int, bytes]:
        connection = _connection(self._address, timeout_s)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError as error:
            raise UnreadableError(
                f"No daemon answers at {self._address}: {error.strerror or error}. Start it, or say with --url or "
                "--config where it is."
            ) from error
        except HTTPException as error:
            raise UnreadableError(f"What answers at {self._address} does not speak HTTP: {error!r}.") from error
        finally:
            connection.close()


def _connection(address: HostPort | UnixPath, timeout_s: float) -> HTTPConnection:
    if isinstance(address, UnixPath):
        return _UnixConnection(address.path, timeout_s)
    return HTTPConnection(_ANY_ADDRESS.get(address.host, address.host), address.port, timeout=timeout_s)


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
