"""A task's connection to the daemon of its host: send frames and receive answers.

A send blocks while the daemon does not read, so a task is not faster than the daemon. The daemon writes only answers
and, if it ends an attempt, the reason. So a task reads only while it waits for an answer, and after an error.
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
    from typing import Self

    from bruce_mp.protocol.client.barrier import Level

__all__ = ["Channel"]

_SEND_BUFFER_BYTES: Final = 1 << 20
_RECEIVE_BYTES: Final = 8192
_END_REASON_TIMEOUT_S: Final = 1.0
"""Longest wait, after an error of the connection, for the reason why the daemon ended the attempt."""
_NO_LISTENER_ERRORS: Final = frozenset({errno.ENOENT, errno.ECONNREFUSED})
_RETRY_INTERVAL_S: Final = 0.1
_ANSWER_GRACE_S: Final = 10.0
"""Wait after the time limit of a request: the daemon may answer at the limit, and the answer needs time to arrive."""


class Channel:
    """One stream connection to a daemon; its methods raise `TaskError`.

    `address` is the path of a UNIX socket or `host:port`, in which `$NAME` is a variable of this host's environment. A
    send waits up to `timeout_ms` for the daemon to read. While no daemon listens, the constructor retries for
    `connect_timeout_ms`.
    """

    def __init__(self, address: str, timeout_ms: int, connect_timeout_ms: int) -> None:
        self._address = address = os.path.expandvars(address)
        self._timeout_s = timeout_ms / 1000
        self._reader = AnswerReader()
        try:
            self._socket = _connect_with_retries(address, self._timeout_s, connect_timeout_ms / 1000)
        except OSError as error:
            raise TaskError(
                f"{address} on {socket.gethostname()}: no daemon accepts connections: {_error_text(error)}. Each "
                "host that runs tasks needs a running daemon with a stream input (input.unix_stream.path or "
                "input.tcp.port)."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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

    def request_outcome(self, level: Level, time_limit_ms: int) -> BarrierAnswer:
        """Send a barrier, and return the daemon's answer about all messages sent so far.

        The daemon answers once all messages have the outcome that `level` names, or after `time_limit_ms`.
        """
        self.send(encode_barrier(os.urandom(TOKEN_BYTES), level, time_limit_ms))
        answer = self._receive_answer(time_limit_ms / 1000)
        assert isinstance(answer, BarrierAnswer)  # daemons of all versions answer a barrier with this type
        return answer

    def inquire(self, name: bytes = b"") -> InquiryAnswer | None:
        """Ask the daemon for its limits and, unless `name` is empty, for the outcome of the attempt with this name.

        Return None if the daemon is too old to answer an inquiry.
        """
        self.send(encode_inquiry(os.urandom(TOKEN_BYTES), name))
        answer = self._receive_answer(self._timeout_s)
        return answer if isinstance(answer, InquiryAnswer) else None

    def _receive_answer(self, time_limit_s: float) -> BarrierAnswer | InquiryAnswer:
        longest_wait_s = time_limit_s + _ANSWER_GRACE_S
        self._socket.settimeout(longest_wait_s)
        answers: list[BarrierAnswer | InquiryAnswer] = []
        while not answers:
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
                answers = self._reader.feed(data)
            except TimeoutError as error:
                raise TaskError(
                    f"{self._address}: the daemon did not answer for {longest_wait_s:.0f} s (raise 'timeoutMs' to "
                    f"wait longer). Run bruce status on {socket.gethostname()}: if no daemon runs, start it (if 'bruce "
                    "hold' keeps the socket open, the connection succeeds even without a daemon); if the daemon's slab "
                    "is full, Kafka accepts too little."
                ) from error
            except RemoteProtocolError as error:  # or its subclass AttemptEndedError, which has the daemon's reason
                raise TaskError(f"{self._address}: {error}") from error
            except OSError as error:
                raise self._connection_error(error) from error
            if not data:
                raise self._connection_error(None)
        self._socket.settimeout(self._timeout_s)
        return answers[0]

    def _connection_error(self, error: OSError | None) -> TaskError:
        """Return the error for a connection that failed with `error`, or that the daemon closed (None)."""
        end_reason = self._read_end_reason()
        if end_reason:
            return TaskError(f"{self._address}: {end_reason}")
        cause = "it closed the connection" if error is None else _error_text(error)
        return TaskError(
            f"{self._address}: the connection ended before the daemon answered for this task's messages: {cause}. The "
            "daemon gave no reason, as after a kill. With option 'fence', nothing of the attempt is in Kafka unless "
            "the daemon had read the attempt's end. Without it, messages may be in Kafka or not. The daemon's log has "
            "the details."
        )

    def _read_end_reason(self) -> str:
        """Return the reason that the daemon sent when it ended the attempt, or an empty string."""
        self._socket.settimeout(_END_REASON_TIMEOUT_S)
        try:
            self._reader.feed(b"")  # raises if the reason came together with the last answer
            while data := self._socket.recv(_RECEIVE_BYTES):
                self._reader.feed(data)
        except AttemptEndedError as error:
            return str(error)
        except (OSError, RemoteProtocolError):
            pass
        return ""


def _connect_with_retries(address: str, timeout_s: float, connect_timeout_s: float) -> socket.socket:
    """Connect, and retry while no process listens: Spark would use up its own retries before a daemon has restarted."""
    deadline = time.monotonic() + connect_timeout_s
    while True:
        try:
            return _connect(address, timeout_s)
        except OSError as error:
            if error.errno not in _NO_LISTENER_ERRORS or time.monotonic() >= deadline:
                raise
        time.sleep(_RETRY_INTERVAL_S)


def _connect(address: str, timeout_s: float) -> socket.socket:
    """Return a connected socket; the connection and each later operation of the socket may take up to `timeout_s`."""
    host, separator, port = address.rpartition(":")
    if separator and port.isdigit() and "/" not in host:
        return socket.create_connection((host, int(port)), timeout_s)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        connection.settimeout(timeout_s)
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def _error_text(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)
