"""Clients of the daemon's stream inputs: back-pressure instead of discards, several messages per write, and `flush()`.

* The first message opens the connection. After a break, the client connects again, with growing back-off, and sends a
  partly written message again from its start.
* If `linger` is 0, `send()` writes each message at once. Otherwise messages gather in a buffer for `linger` seconds.
  Then the *writer thread*, which is started on demand, writes them. It also writes the rest of a message if `send()`
  could write only a part in time.
* If a connection breaks, messages written to it may or may not have reached the daemon. `flush()` succeeds only if no
  connection broke since the last flush.
* One lock guards the state; a thread that cannot acquire it in time raises `SendTimeoutError`. A thread that waits for
  the answer to a flush, or handles it, does not hold the lock.
* If an exception, such as of a signal handler, leaves unknown how much is written, the next call treats it as a break.
* While the writer thread is scheduled, `SendBuffer.accept`, the fast path of `send()`, buffers messages without calling
  this module, until the buffer has `SendBuffer.fill_limit` bytes.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from enum import Enum, unique
from typing import TYPE_CHECKING, Final

from bruce_mp.client.base import Client, check_path
from bruce_mp.client.deadline import Deadline
from bruce_mp.client.errors import AttemptLostError, ClientClosedError, MessageRefusedError, SendError, SendTimeoutError
from bruce_mp.client.flush import FlushError, FlushRequest, UnflushedMessages, read_answer
from bruce_mp.client.kernels import SendBuffer
from bruce_mp.client.lock_hold import lock_hold_type
from bruce_mp.client.reconnecting_link import ConnectionBrokenError, ReconnectingLink
from bruce_mp.errors import LocalProtocolError
from bruce_mp.protocol.client.fence import encode_begin, encode_end

if TYPE_CHECKING:
    import os
    import socket
    from collections.abc import Iterator
    from types import TracebackType

    from bruce_mp.client.base import ErrorMode
    from bruce_mp.client.flush import FlushMark, LevelName, Outcome
    from bruce_mp.client.lock_hold import LockHold
    from bruce_mp.client.reconnecting_link import Address
    from bruce_mp.protocol.client.record_headers import Buffer

__all__ = ["MAX_STREAM_MESSAGE", "StreamClient", "TcpClient"]

MAX_STREAM_MESSAGE: Final = 2 * 1024 * 1024 + 4
"""Default of the daemon's `input.max_stream_size`, and 4 bytes for the field Size, which that setting leaves out."""
DEFAULT_BUFFER: Final = 1024 * 1024
"""Number of bytes that may gather in the buffer before `send()` waits."""
WRITE_SIZE: Final = 64 * 1024
"""Number of bytes in the buffer at which `send()` writes before `linger` has passed."""
RETRY_S: Final = 0.05
"""Shortest pause of the writer thread between two writes to a daemon that does not read."""
EXIT_WRITE_S: Final = 1.0
"""Time limit for the last write if the interpreter ends without a `close()`, or an exception ends a `with` block."""
NO_LIMIT: Final = Deadline(None)
LOOPBACK: Final = "127.0.0.1"
MAX_BREAKS: Final = 5
"""Number of consecutive connections that break within the same message, at which the client drops the message."""


@unique
class _AttemptState(Enum):
    NONE = 0
    OPEN = 1
    LOST = 2
    """The connection broke within the attempt. Sending fails until its `with` block ends."""


class _ConnectedClient(Client):
    """The base of the stream clients."""

    def __init__(
        self,
        destination: str,
        address: Address,
        *,
        timeout: float | None,
        linger: float,
        buffer: int,
        errors: ErrorMode,
        max_message: int,
        send_buffer: int | None,
    ) -> None:
        self._address = address
        self.timeout = timeout
        self._linger = linger
        self._buffer_size = buffer
        self._so_sndbuf = send_buffer
        self._closed = False
        advice = "Send less at once. If the daemon's input.max_stream_size is larger, set the client's max_message."
        self._destination = destination  # `_initialize` uses this field and the next one
        self._max_message = max_message
        self._initialize()
        super().__init__(destination, errors, max_message, advice)

    def _initialize(self) -> None:
        self._lock = threading.Lock()
        self._lock_hold = lock_hold_type(self._lock, self._destination)
        self._flush_lock_hold = lock_hold_type(threading.Lock(), self._destination)  # one flush at a time
        self._wakeup = threading.Event()
        self._writer_thread: threading.Thread | None = None
        self._outgoing = SendBuffer(self._lock, self._max_message)
        self._accept = self._outgoing.accept
        self._sent = self._sent_bytes = 0
        self._unflushed = UnflushedMessages()
        self._breaks_in_message = 0
        self._attempt_state = _AttemptState.NONE
        self._link = ReconnectingLink(self._destination, self._address, self._so_sndbuf)

    def _reset(self) -> None:
        super()._reset()
        self._link.abandon_after_fork()
        self._initialize()

    # --- connecting --------------------------------------------------------------------------------------------------

    def connect(self, timeout: float | None = None) -> None:
        """Connect now instead of at the first message, so that errors show early.

        Raise a SendError if no connection is possible within `timeout` seconds; None: no limit.
        """
        deadline = Deadline(timeout)
        with self._exclusive(deadline):
            self._check_usable()
            self._link.connect(deadline)

    # --- sending -----------------------------------------------------------------------------------------------------

    def _transmit(self, message: Buffer) -> None:
        deadline = Deadline(self.timeout)
        with self._exclusive(deadline):
            self._check_usable()
            if self._linger:
                self._buffer_message(message, deadline)
            else:
                self._write_through(message, deadline)

    def _check_usable(self) -> None:
        if self._closed:
            raise ClientClosedError(f"{self._destination}: the client is closed. Create a new one.")
        if self._attempt_state is _AttemptState.LOST:
            raise self._attempt_lost_error()

    # --- attempts ----------------------------------------------------------------------------------------------------

    @contextmanager
    def attempt(self, name: str = "", *, keep_timestamps: bool = False, unique: bool = False) -> Iterator[None]:
        """Deliver all messages of the `with` block together when it succeeds, or none.

        If the block raises an exception, or the connection breaks, the daemon discards the messages. A `flush()` after
        the block reports the outcome. Raise `AttemptLostError` if the connection broke, and `LocalProtocolError` for an
        attempt within an attempt, or a `name` that is too long or has a NUL.

        Args:
            name: identifies the sender in the daemon's log.
            keep_timestamps: True: the daemon keeps timestamps of any age, until the next attempt of this client begins.
            unique: True: the daemon delivers only one attempt of this name and user, and discards repetitions, unless
                the slab was lost with the earlier attempt.
        """
        self._begin_attempt(encode_begin(name, keeps_timestamps=keep_timestamps, is_unique=unique))
        try:
            yield
        except BaseException:
            self._abort_attempt()
            raise
        self._end_attempt()

    def _begin_attempt(self, frame: bytes) -> None:
        deadline = Deadline(self.timeout)
        with self._exclusive(deadline):
            self._check_usable()
            if self._attempt_state is not _AttemptState.NONE:
                raise LocalProtocolError("An attempt is open on this client: end it first, or create another client.")
            self._write(deadline)  # earlier messages are then safe from `_lose_attempt`, which clears the buffer
            self._link.connect(deadline)
            self._attempt_state = _AttemptState.OPEN
            self._outgoing.append(frame, is_message=False)

    def _end_attempt(self) -> None:
        deadline = Deadline(self.timeout)
        try:
            with self._exclusive(deadline):
                self._check_usable()
                self._outgoing.append(encode_end(), is_message=False)
                self._write(deadline)
                self._check_usable()  # another thread may have closed the client during the write
                self._attempt_state = _AttemptState.NONE
        except BaseException:  # also of a signal handler
            self._abort_attempt()
            raise

    def _abort_attempt(self) -> None:
        """Close the connection, so that the daemon discards the attempt."""
        with self._exclusive(NO_LIMIT):
            self._lose_attempt()
            self._attempt_state = _AttemptState.NONE

    def _lose_attempt(self, caller_count: int = 0) -> None:
        """End an open attempt: disconnect, clear the buffer, and count its messages as dropped.

        The count leaves out `caller_count` messages of the buffer, which the caller counts as dropped.
        """
        if self._attempt_state is _AttemptState.OPEN:
            self._attempt_state = _AttemptState.LOST
            if self._link.disconnect():
                self._unflushed.on_connection_ended()
            self._count_dropped(self._attempt_lost_error(), self._outgoing.clear() - caller_count)

    def _attempt_lost_error(self) -> AttemptLostError:
        return AttemptLostError(f"{self._destination}: the connection broke within an attempt. Repeat the attempt.")

    # --- buffering and writing ---------------------------------------------------------------------------------------

    def _buffer_message(self, message: Buffer, deadline: Deadline) -> None:
        if self._outgoing and len(self._outgoing) + len(message) > self._buffer_size:
            self._write(deadline)
        self._outgoing.append(message)
        if len(self._outgoing) >= WRITE_SIZE:
            with suppress(SendError):  # the writer thread retries; if the attempt is lost, the next `send()` raises
                self._write(Deadline(0))
            if self._attempt_state is _AttemptState.LOST:
                return  # the fast path stays disabled, so that the next `send()` raises
        self._wake_writer()
        # Up to this limit the fast path buffers messages; the next `send()` then comes here again, and writes.
        self._outgoing.fill_limit = min(self._buffer_size, len(self._outgoing) + WRITE_SIZE)

    def _write_through(self, message: Buffer, deadline: Deadline) -> None:
        self._outgoing.append(message)
        try:
            self._write(deadline, caller_count=1)
        except (AttemptLostError, MessageRefusedError):  # the message is removed already
            raise
        except SendError:
            if self._outgoing.remove_last():
                raise
            self._wake_writer()  # the message is partly written: the writer thread writes the rest

    def _write(self, deadline: Deadline, *, caller_count: int = 0) -> None:
        """Write all buffered messages. Raise SendError on timeout, or as `_on_break` does.

        `caller_count` is as in `_lose_attempt`; it is 1 if the caller has just appended the last message.
        """
        while self._outgoing:
            self._link.connect(deadline)
            try:
                self._unflushed.on_write(self._outgoing.message_count)
                with self._outgoing.unwritten() as data:
                    size = self._link.write(data, deadline)
            except ConnectionBrokenError:
                self._on_break(caller_count)
            else:
                self._on_written(size)

    def _on_written(self, size: int) -> None:
        completed = self._outgoing.on_written(size)
        if completed.byte_count:
            self._breaks_in_message = 0
            self._link.reset_backoff()
            self._unflushed.on_written(completed.message_count)
            with self._count_lock:
                self._sent += completed.message_count
                self._sent_bytes += completed.byte_count
        self._link.has_uncounted_write = False

    def _on_break(self, caller_count: int) -> None:
        """Handle a break of the connection: raise AttemptLostError in an attempt, else prepare to write again.

        If `MAX_BREAKS` connections broke within the first message, drop it: the daemon seems to refuse it. Count it, or
        raise MessageRefusedError if it is the caller's.
        """
        self._unflushed.on_connection_ended()
        self._link.has_uncounted_write = False
        if self._attempt_state is _AttemptState.OPEN:
            self._lose_attempt(caller_count)
            raise self._attempt_lost_error()
        was_in_message = self._outgoing.rewind()
        self._breaks_in_message = self._breaks_in_message + 1 if was_in_message else 0
        if self._breaks_in_message >= MAX_BREAKS:
            self._breaks_in_message = 0
            refused_count = self._outgoing.remove_first()
            text = f"the daemon closed {MAX_BREAKS} connections within this message. Look in its log for the reason."
            refused = MessageRefusedError(f"{self._destination}: {text}")
            if caller_count and not self._outgoing:
                raise refused
            self._count_dropped(refused, refused_count)

    def _exclusive(self, deadline: Deadline) -> LockHold:
        """Hold the lock, and disable the fast path of `send()`, so that other threads wait for the lock."""
        return self._lock_hold(deadline, self._on_locked)

    def _on_locked(self) -> None:
        self._outgoing.fill_limit = 0
        if self._link.has_uncounted_write:
            self._end_uncounted_write()

    def _end_uncounted_write(self) -> None:
        """Treat an exception, such as of a signal handler, behind a write that is not counted as a break.

        Nobody knows how much of the buffer is written, so its messages are uncertain.
        """
        self._lose_attempt()
        self._link.disconnect()  # if a failed write did so, the rest of its handling may be missing
        uncertain_count = self._unflushed.on_write_lost()
        with self._count_lock:
            self._sent += uncertain_count
        self._outgoing.clear()
        self._link.has_uncounted_write = False

    # --- the writer thread --------------------------------------------------------------------------------------------

    def _wake_writer(self) -> None:
        if self._writer_thread is None:
            self._writer_thread = threading.Thread(target=self._run_writer, name="bruce-client", daemon=True)
            self._writer_thread.start()
        self._wakeup.set()

    def _run_writer(self) -> None:
        pause_s = self._linger
        while not self._closed:
            self._wakeup.wait()
            self._link.sleep(pause_s)
            with self._exclusive(NO_LIMIT):
                self._wakeup.clear()
                with suppress(SendError):
                    self._write(Deadline(0))
                is_stuck = bool(self._outgoing)
            if is_stuck:
                self._wakeup.set()
            pause_s = max(self._linger, RETRY_S) if is_stuck else self._linger

    # --- flushing ----------------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None, level: LevelName = "delivered") -> Outcome:
        """Wait until every earlier message has reached `level`, and return the counts of outcomes.

        Raise `FlushError` on timeout, or if the connection broke before a flush of this level, or a stronger one. The
        client does not send messages again that may be lost.

        Args:
            timeout: longest wait in seconds; None: without limit.
            level: "delivered": Kafka has acknowledged each message, or the daemon has discarded it; "durable": this, or
                the message is in the journal on disk; "received": the daemon has received each message.
        """
        deadline = Deadline(timeout)
        lost_before = self._unflushed.lost_counts  # while this thread waits, another one's flush may report a break
        try:
            with self._flush_lock_hold(deadline):
                return self._flush(FlushRequest(level, deadline, lost_before), deadline)
        except FlushError as error:
            raise FlushError(f"{self._destination}: flush: {error}", error.outcome) from error.__cause__
        except SendError as error:
            raise FlushError(f"flush: {error}") from error

    def _flush(self, request: FlushRequest, deadline: Deadline) -> Outcome:
        with self._exclusive(deadline):
            mark = self._send_request(request, deadline)
            connection, reader = self._link.begin_reading()
        try:
            answer = read_answer(connection, reader, request, deadline)
        except OSError:
            with suppress(SendTimeoutError), self._exclusive(deadline):  # a thread with the lock sees the break, too
                self._drop_connection(connection)
            self._unflushed.raise_if_uncertain(request.level, request.lost_before)
            raise FlushError("the connection broke before the daemon answered.") from None
        finally:
            self._link.end_reading()
        return self._unflushed.resolve(mark, answer)

    def _send_request(self, request: FlushRequest, deadline: Deadline) -> FlushMark:
        self._check_usable()
        self._outgoing.append(request.frame, is_message=False)
        try:
            self._write(deadline)
        except SendError:
            self._outgoing.remove_last()  # the request, unless a part of it is written
            raise
        return self._unflushed.mark(request.level, request.lost_before)

    def _drop_connection(self, connection: socket.socket) -> None:
        """Disconnect after `connection` broke, unless another thread has disconnected already."""
        if self._link.disconnect_if_current(connection):
            self._lose_attempt()
            self._outgoing.rewind()
            self._unflushed.on_connection_ended()

    # --- closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write the buffered messages within the client's `timeout`, and close the connection.

        Raise SendError if some messages were not written, unless the client's `errors` is "count".
        """
        failure = self._write_remaining(Deadline(self.timeout))
        self._closed = True
        self._link.interrupt()
        with self._exclusive(NO_LIMIT):
            self._link.close()
            lost_count = self._outgoing.clear()
        self._wakeup.set()
        if lost_count:
            subject = "1 message was" if lost_count == 1 else f"{lost_count} messages were"
            closed = ClientClosedError(f"{subject} not sent before the client closed: {failure or self._destination}")
            self._count_dropped(closed, lost_count)
            if self._errors == "raise":
                raise closed

    def _write_remaining(self, deadline: Deadline) -> SendError | None:
        """Write the buffered messages; return the error if the write fails."""
        try:
            with self._exclusive(deadline):
                self._write(deadline)
        except SendError as error:
            return error
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:  # the exception must not wait for a daemon that may be gone
            self.timeout = self._exit_timeout
        super().__exit__(kind, error, trace)

    @property
    def _exit_timeout(self) -> float:
        """Return the time limit in seconds for the last write, if it must not wait long."""
        return EXIT_WRITE_S if self.timeout is None else min(self.timeout, EXIT_WRITE_S)

    def _at_exit(self) -> None:
        self._write_remaining(Deadline(self._exit_timeout))

    def _sent_counts(self) -> tuple[int, int]:
        return self._sent, self._sent_bytes

    def _waiting_count(self) -> int:
        return self._outgoing.message_count

    def _connection_count(self) -> int:
        return self._link.connection_count


class StreamClient(_ConnectedClient):
    """Sender of messages over the daemon's UNIX stream socket.

    Args:
        path: the daemon's `input.unix_stream.path`; at most 107 bytes.
        timeout: seconds that `send()` and `close()` wait for a slow or absent daemon; None: no limit, 0: not at all.
        linger: seconds that messages gather before they are written together; 0: each is written at once.
        buffer: number of bytes that may gather; `send()` waits if its message would exceed it.
        errors: "raise" or "count", see `Client`.
        max_message: the daemon's `input.max_stream_size` + 4, because a longer message makes the daemon close the
            connection.
        send_buffer: SO_SNDBUF in bytes; None: the system's default.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float | None = None,
        linger: float = 0.0,
        buffer: int = DEFAULT_BUFFER,
        errors: ErrorMode = "raise",
        max_message: int = MAX_STREAM_MESSAGE,
        send_buffer: int | None = None,
    ) -> None:
        destination = check_path(path)
        super().__init__(
            destination, destination, timeout=timeout, linger=linger, buffer=buffer, errors=errors,
            max_message=max_message, send_buffer=send_buffer,
        )  # fmt: skip


class TcpClient(_ConnectedClient):
    """Sender of messages over TCP to a daemon on this host.

    `port` is the daemon's `input.tcp.port`; the other arguments and all methods are as for `StreamClient`.
    """

    def __init__(
        self,
        port: int,
        *,
        timeout: float | None = None,
        linger: float = 0.0,
        buffer: int = DEFAULT_BUFFER,
        errors: ErrorMode = "raise",
        max_message: int = MAX_STREAM_MESSAGE,
        send_buffer: int | None = None,
    ) -> None:
        if not 0 < port < 1 << 16:
            raise SendError(f"{port} is not a TCP port: give the daemon's input.tcp.port, 1 to 65535.")
        super().__init__(
            f"{LOOPBACK}:{port}", (LOOPBACK, port), timeout=timeout, linger=linger, buffer=buffer, errors=errors,
            max_message=max_message, send_buffer=send_buffer,
        )  # fmt: skip
