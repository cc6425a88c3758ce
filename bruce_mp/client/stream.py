"""Clients of the daemon's stream inputs: back-pressure instead of discards, several messages per write, and `flush()`.

* The first message opens the connection, and the client reopens it after a break, with growing back-off. It resends a
  partly written message whole.
* Without `linger` each message is written at once. With it, messages gather in a buffer; a thread, started on demand,
  writes them after that time.
* Messages written before a connection broke may or may not have reached the daemon. `flush()` succeeds only if no
  connection broke since the last one.
* One lock guards the state; a thread that cannot acquire it in time gives up. Only reading the answer to a flush
  happens without it.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from enum import Enum, unique
from typing import TYPE_CHECKING, Final

from bruce_mp.client.base import Client, check_path
from bruce_mp.client.deadline import Deadline
from bruce_mp.client.errors import (
    AttemptLostError,
    ClientClosedError,
    MessageRefusedError,
    SendError,
    SendTimeoutError,
)
from bruce_mp.client.flush import FlushError, FlushLedger, FlushRequest, read_answer
from bruce_mp.client.reconnecting_link import BrokenError, Link
from bruce_mp.client.send_buffer import Outgoing
from bruce_mp.errors import LocalProtocolError
from bruce_mp.protocol.client.fence import encode_begin, encode_end

if TYPE_CHECKING:
    import os
    import socket
    from collections.abc import Iterator

    from bruce_mp.client.base import Buffer, Errors
    from bruce_mp.client.flush import FlushMark, LevelName, Outcome
    from bruce_mp.client.reconnecting_link import Address

__all__ = ["MAX_STREAM_MESSAGE", "StreamClient", "TcpClient"]

MAX_STREAM_MESSAGE: Final = 2 * 1024 * 1024 + 4
"""Largest message that a daemon accepts by default (`input.max_stream_size`), including the 4 bytes of Size."""
DEFAULT_BUFFER: Final = 1024 * 1024
FULL_WRITE: Final = 64 * 1024
"""Buffer size that triggers a write before the linger ends."""
STUCK_RETRY_S: Final = 0.05
LEAST_LOCK_S: Final = 0.02
"""Shortest lock wait: a client with `timeout=0` still lets other threads finish calls that do not wait."""
LAST_WRITE_S: Final = 1.0
"""Time limit for the last write when the interpreter ends without a `close()`."""
LOOPBACK: Final = "127.0.0.1"
BREAKS_OF_ONE_MESSAGE: Final = 5
"""Consecutive connections that may break within the same message before it is dropped."""


@unique
class _Fence(Enum):
    """State of the attempt."""

    NONE = 0
    OPEN = 1
    LOST = 2
    """The connection broke within the attempt. Sending fails until its `with` block ends."""


class _Connected(Client):
    """Base of the stream clients."""

    def __init__(
        self,
        place: str,
        address: Address,
        *,
        timeout: float | None,
        linger: float,
        buffer: int,
        errors: Errors,
        max_message: int,
        send_buffer: int | None,
    ) -> None:
        self._address = address
        self.timeout = timeout
        self._linger = linger
        self._buffer = buffer
        self._send_buffer = send_buffer
        self._closed = False
        advice = "Send less at once. If the daemon's input.max_stream_size is larger, set the client's max_message."
        self._place = place
        self._begin()
        super().__init__(place, errors, max_message, advice)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._outgoing = Outgoing()
        self._ledger = FlushLedger()
        self._breaks = 0
        self._attempt = _Fence.NONE
        self._link = Link(self._place, self._address, self._send_buffer)

    def _renew(self) -> None:
        super()._renew()
        self._link.abandon_after_fork()
        self._begin()

    # --- connecting --------------------------------------------------------------------------------------------------

    def connect(self, timeout: float | None = None) -> None:
        """Connect now instead of at the first message, so that errors show early.

        Try for `timeout` seconds, then raise the SendError that describes the failure.
        """
        deadline = Deadline(timeout)
        with self._locked(self._lock, deadline):
            self._check_open()
            self._link.connect(deadline)

    # --- sending -----------------------------------------------------------------------------------------------------

    def _hand_over(self, message: Buffer) -> None:
        deadline = Deadline(self.timeout)
        with self._locked(self._lock, deadline):
            self._check_open()
            if self._linger:
                self._keep(message, deadline)
            else:
                self._write_through(message, deadline)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError(f"{self._place}: the client is closed. Create a new one.")
        if self._attempt is _Fence.LOST:
            raise self._attempt_lost()

    # --- attempts ----------------------------------------------------------------------------------------------------

    @contextmanager
    def attempt(self, name: str = "", *, keep_timestamps: bool = False) -> Iterator[None]:
        """Deliver all messages of the `with` block together when it succeeds, or none.

        If the block raises, or the connection breaks, the daemon discards its messages. A `flush()` after the block
        reports the outcome. `name` identifies the sender in the daemon's log. With `keep_timestamps` the daemon keeps
        the timestamps of messages, however old they are, up to the next attempt on this client. Raise
        `AttemptLostError` if the connection broke, and `LocalProtocolError` for an attempt within an attempt.
        """
        self._begin_attempt(encode_begin(name, keeps_timestamps=keep_timestamps))
        try:
            yield
        except BaseException:
            self._give_up_attempt()
            raise
        self._end_attempt()

    def _begin_attempt(self, frame: bytes) -> None:
        deadline = Deadline(self.timeout)
        with self._locked(self._lock, deadline):
            self._check_open()
            if self._attempt is not _Fence.NONE:
                raise LocalProtocolError("An attempt is open on this client: end it first, or create another client.")
            self._write(deadline)  # flushed first: a later break belongs to the attempt
            self._link.connect(deadline)
            self._attempt = _Fence.OPEN
            self._outgoing.append(frame, counts=False)

    def _end_attempt(self) -> None:
        deadline = Deadline(self.timeout)
        try:
            with self._locked(self._lock, deadline):
                self._check_open()
                self._outgoing.append(encode_end(), counts=False)
                self._write(deadline)
                self._check_open()
                self._attempt = _Fence.NONE
        except SendError:
            self._give_up_attempt()
            raise

    def _give_up_attempt(self) -> None:
        """Close the connection, so that the daemon discards the attempt."""
        with self._lock:
            self._lose_attempt()
            self._attempt = _Fence.NONE

    def _lose_attempt(self) -> None:
        if self._attempt is _Fence.OPEN:
            self._attempt = _Fence.LOST
            if self._link.disconnect():
                self._ledger.connection_ended()
            lost = self._outgoing.clear()
            if self._linger:  # without linger, the sender counts its own message
                self._count_dropped(self._attempt_lost(), lost)

    def _attempt_lost(self) -> AttemptLostError:
        return AttemptLostError(f"{self._place}: the connection broke within an attempt. Repeat the attempt.")

    def _keep(self, message: Buffer, deadline: Deadline) -> None:
        if self._outgoing and len(self._outgoing) + len(message) > self._buffer:
            self._write(deadline)
        self._outgoing.append(message)
        if len(self._outgoing) >= FULL_WRITE:
            with suppress(SendError):  # the message is in the buffer, and the thread keeps trying
                self._write(Deadline(0))
        self._see_to_the_thread()

    def _write_through(self, message: Buffer, deadline: Deadline) -> None:
        self._outgoing.append(message)
        try:
            self._write(deadline)
        except AttemptLostError:
            raise
        except SendError:
            if self._outgoing.take_back():
                raise

    def _write(self, deadline: Deadline) -> None:
        """Write all buffered messages. Raise SendError on timeout."""
        while self._outgoing:
            self._link.connect(deadline)
            try:
                with self._outgoing.unwritten() as data:
                    size = self._link.write(data, deadline)
            except BrokenError:
                self._after_a_break()
            else:
                self._after_a_write(size)

    def _after_a_write(self, size: int) -> None:
        done = self._outgoing.wrote(size)
        if done.bytes:
            self._breaks = 0
            self._link.reset_backoff()
            self._ledger.wrote(done.messages)
            self._count_sent(done.messages, done.bytes)

    def _after_a_break(self) -> None:
        self._ledger.connection_ended()
        if self._attempt is _Fence.OPEN:
            self._lose_attempt()
            raise self._attempt_lost()
        self._breaks = self._breaks + 1 if self._outgoing.rewind() else 0
        if self._breaks >= BREAKS_OF_ONE_MESSAGE:
            self._breaks = 0
            self._count_dropped(MessageRefusedError(), self._outgoing.drop_first())

    @contextmanager
    def _locked(self, lock: threading.Lock, deadline: Deadline) -> Iterator[None]:
        if not lock.acquire(timeout=deadline.lock_s(LEAST_LOCK_S)):
            raise SendTimeoutError(f"{self._place}: other threads held the connection for the whole time limit.")
        try:
            yield
        finally:
            lock.release()

    # --- lingering ---------------------------------------------------------------------------------------------------

    def _see_to_the_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_now_and_then, name="bruce-client", daemon=True)
            self._thread.start()
        self._wake.set()

    def _write_now_and_then(self) -> None:
        pause = self._linger
        while not self._closed:
            self._wake.wait()
            self._link.sleep(pause)
            with self._lock:
                self._wake.clear()
                with suppress(SendError):
                    self._write(Deadline(0))
                stuck = bool(self._outgoing)
            if stuck:
                self._wake.set()
            pause = max(self._linger, STUCK_RETRY_S) if stuck else self._linger

    # --- flushing ----------------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None, level: LevelName = "delivered") -> Outcome:
        """Wait until every earlier message has its outcome: Kafka acknowledged it, or the daemon discarded it.

        With the level "received", wait only until the daemon has received them. Wait at most `timeout` seconds. Raise
        `FlushError` on timeout, or if the connection broke since the last flush; the client then does not resend
        messages by itself.
        """
        deadline = Deadline(timeout)
        try:
            with self._locked(self._flush_lock, deadline):
                return self._flush(FlushRequest(level, deadline), deadline)
        except FlushError as error:
            raise FlushError(f"{self._place}: flush: {error}", error.outcome) from error.__cause__
        except SendError as error:
            raise FlushError(f"flush: {error}") from error

    def _flush(self, question: FlushRequest, deadline: Deadline) -> Outcome:
        with self._locked(self._lock, deadline):
            mark = self._ask(question, deadline)
            connection, answers = self._link.begin_reading()
        try:
            answer = read_answer(connection, answers, question, deadline)
        except OSError:
            with self._lock:
                self._give_up(connection)
                self._ledger.mark()
            raise FlushError("the connection broke before the daemon answered.") from None
        finally:
            with self._lock:
                self._link.end_reading()
        with self._lock:
            return self._ledger.settle(mark, answer)

    def _ask(self, question: FlushRequest, deadline: Deadline) -> FlushMark:
        self._check_open()
        self._outgoing.append(question.encode(), counts=False)
        try:
            self._write(deadline)
        except SendError:
            self._outgoing.take_back()
            raise
        return self._ledger.mark()

    def _give_up(self, connection: socket.socket) -> None:
        if self._link.drop_this(connection):
            self._lose_attempt()
            self._outgoing.rewind()
            self._ledger.connection_ended()

    # --- closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write the buffered messages within `timeout`, and close the connection.

        Raise SendError if some were not written, unless `errors` is "count".
        """
        failure = self._write_the_rest(Deadline(self.timeout))
        self._closed = True
        self._link.interrupt()
        with self._lock:
            self._link.close()
            lost = self._outgoing.clear()
        self._wake.set()
        if lost:
            what = "1 message was" if lost == 1 else f"{lost} messages were"
            closed = ClientClosedError(f"{what} not sent before the end: {failure or self._place}")
            self._count_dropped(closed, lost)
            if self._errors == "raise":
                raise closed

    def _write_the_rest(self, deadline: Deadline) -> SendError | None:
        try:
            with self._locked(self._lock, deadline):
                self._write(deadline)
        except SendError as error:
            return error
        return None

    def _leave(self) -> None:
        self._write_the_rest(Deadline(LAST_WRITE_S if self.timeout is None else min(self.timeout, LAST_WRITE_S)))

    def _waiting(self) -> int:
        return self._outgoing.messages

    def _connections(self) -> int:
        return self._link.connections


class StreamClient(_Connected):
    """Sender of messages over the daemon's UNIX stream socket.

    Args:
        path: the daemon's `input.unix_stream.path`; at most 107 bytes.
        timeout: seconds that `send()` and `close()` wait for a slow or absent daemon; `None`: no limit, 0: not at all.
        linger: seconds that messages gather before they are written together; 0: each is written at once.
        buffer: bytes that may gather; then `send()` waits.
        errors: "raise" or "count", see `Client`.
        max_message: the daemon's `input.max_stream_size` + 4. The daemon closes the connection at a longer one.
        send_buffer: SO_SNDBUF in bytes; absent: the system's default.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float | None = None,
        linger: float = 0.0,
        buffer: int = DEFAULT_BUFFER,
        errors: Errors = "raise",
        max_message: int = MAX_STREAM_MESSAGE,
        send_buffer: int | None = None,
    ) -> None:
        place = check_path(path)
        super().__init__(
            place,
            place,
            timeout=timeout,
            linger=linger,
            buffer=buffer,
            errors=errors,
            max_message=max_message,
            send_buffer=send_buffer,
        )


class TcpClient(_Connected):
    """Sender of messages over TCP on this host.

    `port` is the daemon's `input.tcp.port`; the other arguments are as for `StreamClient`.
    """

    def __init__(
        self,
        port: int,
        *,
        timeout: float | None = None,
        linger: float = 0.0,
        buffer: int = DEFAULT_BUFFER,
        errors: Errors = "raise",
        max_message: int = MAX_STREAM_MESSAGE,
        send_buffer: int | None = None,
    ) -> None:
        if not 0 < port < 1 << 16:
            raise SendError(f"{port} is no TCP port: give the daemon's input.tcp.port, 1 to 65535.")
        super().__init__(
            f"{LOOPBACK}:{port}",
            (LOOPBACK, port),
            timeout=timeout,
            linger=linger,
            buffer=buffer,
            errors=errors,
            max_message=max_message,
            send_buffer=send_buffer,
        )
