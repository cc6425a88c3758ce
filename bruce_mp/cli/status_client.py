"""Client of a daemon's status pages, for the subcommands.

`--url` gives the address of the pages. `--config` gives the run directory, in which the running daemon stores this
address, because the configuration may have been edited since the daemon's start. The client ignores proxies that the
environment names, because the daemon runs on this host.
"""

from __future__ import annotations

import socket
import sys
from argparse import ArgumentTypeError
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from bruce_mp.config.addresses import HostPort, UnixPath, parse_listen
from bruce_mp.config.load import load_status_settings
from bruce_mp.config.sections import Http
from bruce_mp.errors import BruceError, ConfigError, ExitCode
from bruce_mp.network.credentials import read_secret
from bruce_mp.status.pages.health import HealthPage
from bruce_mp.supervisor.run_dir import HTTP_ADDRESS

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Container, Mapping

    from bruce_mp.config.load import StatusSettings

__all__ = ["StatusClient", "UnreadableError", "add_address", "add_token", "request_change", "status_client"]

_Page = TypeVar("_Page")

TIMEOUT_S: Final = 5.0
"""Time limit for a GET response, which usually takes milliseconds."""
POST_TIMEOUT_S: Final = 45.0
"""Time limit for a POST response, which a daemon sends after it has finished the requested action."""
_LOOPBACK_FOR: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - no socket is bound to it
"""The address to connect to if the daemon listens on all addresses."""

_USER_REMEDY: Final = "Run this as the daemon's user or as root"


class UnreadableError(BruceError):
    """The response of a daemon is missing or invalid."""

    exit_code = ExitCode.UNREADABLE


def add_address(parser: ArgumentParser) -> None:
    """Add the options that select a daemon."""
    group = parser.add_mutually_exclusive_group()
    help_text = f"the daemon's status pages: http://HOST:PORT or unix:/PATH (default http://{Http().listen})"
    group.add_argument("--url", type=_address, metavar="URL", help=help_text)
    group.add_argument("--config", type=Path, metavar="FILE", help="the daemon's configuration file, instead of --url")


def _address(text: str) -> HostPort | UnixPath:
    try:
        return parse_listen(text.removeprefix("http://").rstrip("/"))
    except ValueError as error:
        raise ArgumentTypeError(f"{error}; give http://HOST:PORT or unix:/PATH") from error


def add_token(parser: ArgumentParser) -> None:
    """Add the option for the token of requests that change the daemon's state."""
    help_text = "file with the token of the daemon (http.token_file); default: the token that --config names"
    parser.add_argument("--token-file", metavar="FILE", help=help_text)


def status_client(args: Namespace) -> StatusClient:
    """Return a client for the daemon that the options select. Raise ConfigError or UnreadableError."""
    settings = None if args.config is None else _load_settings(args.config)
    address = (args.url or Http().address) if settings is None else _address_of_running(settings)
    http = Http() if settings is None else settings.http
    return StatusClient(address, lambda: _read_token(getattr(args, "token_file", None), http))


def _load_settings(path: Path) -> StatusSettings:
    try:
        return load_status_settings(path)
    except ConfigError as error:
        remark = "The daemon was not asked, and keeps its settings; --url names it without the file."
        raise ConfigError(f"{error}\n{remark}") from error


def _read_token(file: str | None, http: Http) -> str | None:
    """Return the token in `file`, else the token that the settings `http` name, else None.

    Raise ConfigError for an unreadable or invalid token.
    """
    if file is not None:
        token = read_secret(file, None, "The token")
    else:
        token = read_secret(http.token_file, http.token_env, "The token of the daemon")
    if token is not None and not token.isprintable():
        raise ConfigError("The token has line breaks or control characters. Write it as one line of text.")
    return token


def _address_of_running(settings: StatusSettings) -> HostPort | UnixPath:
    """Return the address that is stored in the run directory, else the configured address.

    Raise UnreadableError if no address is stored and the configured port is 0.
    """
    address = settings.http.address
    file = Path(settings.run_dir, HTTP_ADDRESS)
    try:
        return parse_listen(file.read_text("utf-8"))
    except (OSError, ValueError) as error:  # ValueError: the file has no address
        if isinstance(address, UnixPath) or address.port:
            return address
        reason = error.strerror if isinstance(error, OSError) else error
        remedy = _USER_REMEDY if isinstance(error, PermissionError) else "Start the daemon"
        raise UnreadableError(
            f"http.listen has port 0, and {file}, where a running daemon stores its port, cannot be read: {reason}. "
            f"{remedy}, or give --url."
        ) from error


def request_change(args: Namespace, path: str) -> int:
    """Send a POST request and print the response. Return the exit status: 0, or 1 if the daemon refuses the change.

    Raise UnreadableError if the daemon does not respond, or responds with an HTTP status other than 200 and 409.
    """
    status, text = status_client(args).post(path)
    if status == HTTPStatus.OK:
        print(text, end="")
        return ExitCode.OK
    if status == HTTPStatus.UNAUTHORIZED:
        text = f"{text.strip()}. Give the token of the running daemon as --token-file."
    if status != HTTPStatus.CONFLICT:
        raise UnreadableError(f"The daemon answered {path} with {status}: {text.strip()}")
    sys.stderr.write(text)
    return ExitCode.SETUP


class StatusClient:
    """HTTP client for the pages at an address.

    Only `post` needs a token: it calls `read_token`, and raises ConfigError if that call does.
    """

    def __init__(self, address: HostPort | UnixPath, read_token: Callable[[], str | None] = lambda: None) -> None:
        self._address = address
        self._read_token = read_token

    def get(self, page: str, page_type: type[_Page], query: str = "") -> _Page:
        """Read `/PAGE/json` into the type `page_type`. Raise UnreadableError."""
        path = f"/{page}/json"
        return self._decode(self._fetch(f"{path}?{query}" if query else path), path, page_type)

    def _decode(self, body: bytes, path: str, page_type: type[_Page]) -> _Page:
        try:
            return msgspec.json.decode(body, type=page_type)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnreadableError(
                f"The server at {self._address} is not a bruce daemon of this version: {path} has other fields. "
                "Use the commands of the daemon's version."
            ) from error

    def get_health(self) -> HealthPage:
        """Read `/healthz`. Raise UnreadableError."""
        # A daemon that is not ready responds with 503.
        body = self._fetch("/healthz", {HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE})
        return self._decode(body, "/healthz", HealthPage)

    def post(self, path: str) -> tuple[int, str]:
        """Send a POST request. Return the status and the text of the response. Raise UnreadableError."""
        token = self._read_token()
        headers = {} if token is None else {"Authorization": b"Bearer " + token.encode()}
        status, body = self._send("POST", path, POST_TIMEOUT_S, headers)
        return status, body.decode("utf-8", "replace")

    def _fetch(self, path: str, accepted: Container[int] = frozenset({HTTPStatus.OK})) -> bytes:
        """Return the body of a GET response with an accepted status. Raise UnreadableError."""
        status, body = self._send("GET", path, TIMEOUT_S)
        if status not in accepted:
            text = body.decode("utf-8", "replace").strip().partition("\n")[0]
            raise UnreadableError(f"{self._address} answered {path} with {status}: {text}")
        return body

    def _send(
        self, method: str, path: str, timeout_s: float, headers: Mapping[str, bytes] | None = None
    ) -> tuple[int, bytes]:
        connection = _create_connection(self._address, timeout_s)
        try:
            connection.request(method, path, headers=headers or {})
            response = connection.getresponse()
            return response.status, response.read()
        except PermissionError as error:
            raise UnreadableError(f"{self._address}: {error.strerror}. {_USER_REMEDY}.") from error
        except OSError as error:
            raise UnreadableError(
                f"No daemon answers at {self._address}: {error.strerror or error}. Start it, or give its address with "
                "--url or --config."
            ) from error
        except HTTPException as error:
            raise UnreadableError(f"The server at {self._address} does not speak HTTP. Check the address.") from error
        finally:
            connection.close()


def _create_connection(address: HostPort | UnixPath, timeout_s: float) -> HTTPConnection:
    if isinstance(address, UnixPath):
        return _UnixConnection(address.path, timeout_s)
    return HTTPConnection(_LOOPBACK_FOR.get(address.host, address.host), address.port, timeout=timeout_s)


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
