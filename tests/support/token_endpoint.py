"""A server of tokens and credentials on loopback, with or without TLS, that answers as a test says."""

from __future__ import annotations

import json
import ssl
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from support.certificates import Certificate

__all__ = ["Answer", "TokenEndpoint", "serve_tokens"]


@dataclass
class Answer:
    """An answer; `body` is sent as it is, or as JSON."""

    body: Any = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class TokenRequest:
    """A request that the endpoint received; `form` has the decoded body."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    form: dict[str, str]


class TokenEndpoint:
    """The answers by path, and the requests so far; a list of answers is used up to its last one."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.answers: dict[str, list[Answer]] = {}
        self.requests: list[TokenRequest] = []

    @property
    def token_url(self) -> str:
        return f"{self.base}/token"

    def answer(self, *answers: Answer, path: str = "/token") -> None:
        """Set the answers of a path."""
        self.answers[path] = list(answers)

    def respond(self, request: TokenRequest) -> Answer:
        self.requests.append(request)
        answers = self.answers.get(request.path) or [Answer(b"no such page", 404)]
        return answers.pop(0) if len(answers) > 1 else answers[0]


@contextmanager
def serve_tokens(certificate: Certificate | None = None) -> Iterator[TokenEndpoint]:
    """Serve until the end of the `with` statement, over TLS with a certificate."""

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            received = TokenRequest(
                self.command, *self.path.partition("?")[::2], dict(self.headers.items()), dict(parse_qsl(content))
            )
            answer = endpoint.respond(received)
            body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(len(body)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = _serve  # noqa: N815 - the names that http.server calls

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.both)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scheme = "http" if certificate is None else "https"
    endpoint = TokenEndpoint(f"{scheme}://127.0.0.1:{server.server_port}")
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
