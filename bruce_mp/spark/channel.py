"""A task's connection to the daemon of its host: it sends frames and receives answers.

Sending blocks while the daemon does not read; this is the back-pressure.  The daemon writes only answers to barriers
and the reason for which it ends an attempt, so the task reads only for an answer and after an error.  Each wait ends
with the answer, with the end of the connection, or after `timeout_ms` without progress.  Connecting is retried while
the daemon restarts.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import AttemptEndedError, RemoteProtocolError
from bruce_mp.protocol.client.answer_reader import AnswerReader
from bruce_mp.protocol.client.barrier import TOKEN_BYTES, BarrierAnswer, encode_barrier
from bruce_mp.protocol.client.inquiry import InquiryAnswer, encode_inquiry
from bruce_mp.spark.errors import TaskError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from bruce_mp.protocol.client.barrier import Level

__all__ = ["Channel"]

_SEND_BUFFER: Final = 1 << 20
_ANSWER_BYTES: Final = 8192
_END_REASON_TIMEOUT_S: Final = 1.0
_NO_LISTENER: Final = frozenset({errno.ENOENT, errno.ECONNREFUSED})
_RETRY_S: Final = 0.1
_ANSWER_GRACE_S: Final = 10.0
"""Time that a task waits for an answer beyond the daemon's own time limit."""


class Channel:
    """One stream connection.  `address` is the path of a UNIX socket or `host:port`.  Raise `TaskError`.

    `$NAME` in the address stands for a variable of this host's environment, for hosts that differ.
    """

    def __init__(self, address: str, timeout_ms: int, connect_timeout_ms: int) -> None:
        self._address = address = os.path.expandvars(address)
        self._timeout_s = timeout_ms / 1000
        self._reader = AnswerReader()
        try:
            self._socket = _connect_in_time(address, self._timeout_s, connect_timeout_ms / 1000)
        except OSError as error:
            raise TaskError(
                f"{address} on {socket.gethostname()}: no daemon accepts connections: {_reason(error)}. Each host that "
                "runs tasks needs a running daemon with a stream input (input.unix_stream.path or input.tcp.port)."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, data: bytes | memoryview) -> None:
        """Send whole frames, and block while the socket's buffer is full."""
        view = memoryview(data)
        try:
            while view:
                view = view[self._socket.send(view) :]
        except TimeoutError as error:
            raise TaskError(
                f"{self._address}: the daemon read nothing for {self._timeout_s:.0f} s. Either its slab is full and "
                "Kafka accepts nothing (see its status page); or, with option 'fence', the spill files have reached "
                "input.streams.max_spill_size (see its log). Raise 'timeoutMs' to wait longer."
            ) from error
        except OSError as error:
            raise self._connection_error(error) from error

    def request_outcome(self, level: Level, limit_ms: int) -> BarrierAnswer:
        """Send a barrier and return its answer, after at most the time limit and a grace period."""
        self.send(encode_barrier(os.urandom(TOKEN_BYTES), level, limit_ms))
        answer = self._receive(limit_ms / 1000)
        assert isinstance(answer, BarrierAnswer)  # the daemon answers in the kind of the request
        return answer

    def inquire(self, name: bytes = b"") -> InquiryAnswer | None:
        """Return the daemon's limits and the outcome of the unique attempt `name`; None from an older daemon."""
        self.send(encode_inquiry(os.urandom(TOKEN_BYTES), name))
        answer = self._receive(self._timeout_s)
        return answer if isinstance(answer, InquiryAnswer) else None

    def _receive(self, time_limit_s: float) -> BarrierAnswer | InquiryAnswer:
        self._socket.settimeout(time_limit_s + _ANSWER_GRACE_S)
        answers: list[BarrierAnswer | InquiryAnswer] = []
        while not answers:
            try:
                data = self._socket.recv(_ANSWER_BYTES)
                answers = self._reader.feed(data)
            except TimeoutError as error:
                raise TaskError(f"{self._address}: the daemon did not answer in time.") from error
            except AttemptEndedError as error:
                raise TaskError(f"{self._address}: {error}") from error
            except OSError as error:
                raise self._connection_error(error) from error
            if not data:
                raise self._connection_error(None)
        self._socket.settimeout(self._timeout_s)
        return answers[0]

    def _connection_error(self, error: OSError | None) -> TaskError:
        """Return the error for an ended connection, with the daemon's reason if it sent one."""
        end_reason = self._read_end_reason()
        if end_reason:
            return TaskError(f"{self._address}: {end_reason}")
        cause = "it closed the connection" if error is None else _reason(error)
        return TaskError(
            f"{self._address}: the connection ended before the daemon answered for this task's messages: {cause}. The "
            "daemon gave no reason, as after a kill. An attempt whose end it had not read leaves nothing in Kafka; "
            "other messages may be in Kafka or not. Its log has the details."
        )

    def _read_end_reason(self) -> str:
        """Return the reason that the daemon sent when it ended the attempt, or an empty string."""
        self._socket.settimeout(_END_REASON_TIMEOUT_S)
        try:
            while data := self._socket.recv(_ANSWER_BYTES):
                self._reader.feed(data)
        except AttemptEndedError as error:
            return str(error)
        except (OSError, RemoteProtocolError):
            pass
        return ""


def _connect_in_time(address: str, timeout_s: float, retry_s: float) -> socket.socket:
    """Connect, and retry while no process listens, because Spark retries faster than a daemon restarts."""
    deadline = time.monotonic() + retry_s
    while True:
        try:
            return _connect(address, timeout_s)
        except OSError as error:
            if error.errno not in _NO_LISTENER or time.monotonic() >= deadline:
                raise
        time.sleep(_RETRY_S)


def _connect(address: str, timeout_s: float) -> socket.socket:
    host, separator, port = address.rpartition(":")
    if separator and port.isdigit() and "/" not in host:
        return socket.create_connection((host, int(port)), timeout_s)
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        opened.settimeout(timeout_s)
        opened.connect(address)
    except OSError:
        opened.close()
        raise
    return opened


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)
