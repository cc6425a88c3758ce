"""Dead letters: discarded messages, sent to a Kafka topic through an input of this daemon.

A dead letter is an ordinary message of the daemon, so the daemon counts it as a further received message. It has the
headers of the discarded message, and these headers:

    bruce.reason         the info of the discard file, such as BAD_TOPIC or VERSION(7)
    bruce.topic          the topic of the discarded message; absent if the message could not be parsed
    bruce.partition_key  the unsigned key of a PartitionKey message
    bruce.timestamp_ms   the client's timestamp; absent without bruce.topic
    bruce.discarded_ms   the time of the discard
    bruce.host           the host of the daemon
    bruce.value_size     the size of the whole value, if it was cut to fit

A discarded dead letter does not become another dead letter. Nor does a possible duplicate: its copy arrives together
with the copies of discarded messages, but has no `info`.

The thread of `copy_writer.py` sends the dead letters. Copies arrive in frames, and for all copies of a frame together
the thread waits at most `PATIENCE_S` for the input. If the input has not accepted a dead letter by then, the thread
sends nothing for `PAUSE_S`. Dead letters that are not sent are lost and counted. If an input process has died and
closed the connection, the thread connects to its successor at once. A dead letter that is too large for a datagram of
the kernel is lost, but causes no pause.
"""

from __future__ import annotations

import errno
import logging
import socket
import time
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason, LocalProtocolError
from bruce_mp.protocol.client.messages import EmptyFields, Message, encode_message
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bruce_mp.config.model import Config
    from bruce_mp.protocol.client.record_headers import Header
    from bruce_mp.telemetry.message_copies import Copy

__all__ = ["DeadLetterTopic"]

log = logging.getLogger(__name__)

_REFUSED_SENDER_INFOS: Final = frozenset({DiscardReason.SENDER_NOT_ALLOWED.name, DiscardReason.OVER_QUOTA.name})
"""Values of `Copy.info` if the allow list or a quota refuses the message, so it must not enter as a dead letter."""
PATIENCE_S: Final = 1.0
"""Longest wait for the input per frame of copies; during the wait, further frames stay in the writer's queue."""
PAUSE_S: Final = 5.0
"""Time after a failure in which no dead letter is sent, and all are counted as lost."""
_CLOSED_ERRNOS: Final = frozenset({errno.EPIPE, errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOTCONN})
"""Errors of a connection to an input process that has ended; its successor accepts a new connection."""
_MAX_BYTES_BEFORE_TOPIC: Final = 64
"""Limit of the bytes before the topic in a message of any version of the client protocol."""
_SIZE_HEADER_BYTES: Final = 64
"""Room for the header `bruce.value_size`."""
_SHORTEST_WAIT_S: Final = 0.001
"""Timeout of a socket after the time limit of the frame; a timeout of 0 would make the socket non-blocking."""


class DeadLetterTopic:
    """The sender of dead letters. `count(counter, amount)` adds to a counter of the status process."""

    def __init__(self, config: Config, count: Callable[[Counter, int], None]) -> None:
        self._topic = config.discards.topic.encode()
        self._datagrams = _InputSocket(config.input.unix_datagram.path, socket.SOCK_DGRAM)
        self._stream = _InputSocket(config.input.unix_stream.path, socket.SOCK_STREAM)
        self._max_datagram_bytes = config.input.max_datagram_size if config.input.unix_datagram.enable else 0
        max_stream_bytes = config.input.max_stream_size if config.input.unix_stream.enable else 0
        self._max_bytes = min(max(self._max_datagram_bytes, max_stream_bytes), config.batching.message_max_bytes)
        self._count = count
        self._host = socket.gethostname().encode()
        self._paused_until = self._give_up_at = 0.0
        """Times of `time.monotonic()`: the end of the last pause, and the time limit of the present frame."""

    def close(self) -> None:
        self._datagrams.close()
        self._stream.close()

    def send(self, copies: Sequence[Copy]) -> None:
        """Send the dead letters for the copies of a frame. Count the sent and the lost dead letters."""
        self._give_up_at = time.monotonic() + PATIENCE_S
        for copy in copies:
            if self._becomes_dead_letter(copy):
                self._count(Counter.DeadLetterSent if self._send(copy) else Counter.DeadLetterLost, 1)

    def stop(self) -> None:
        """Send no further dead letter, and count all as lost. Another thread may be in `send`."""
        self._paused_until = inf

    def count_lost(self, copies: Iterable[Copy]) -> None:
        """Count the dead letters of copies that are not passed to `send`. Another thread may be in `send`."""
        self._count(Counter.DeadLetterLost, sum(map(self._becomes_dead_letter, copies)))

    def _becomes_dead_letter(self, copy: Copy) -> bool:
        """Return False for possible duplicates (without `info`), messages of refused senders, and dead letters."""
        if not copy.info or copy.info in _REFUSED_SENDER_INFOS:
            return False
        if copy.topic:
            return copy.topic != self._topic
        # The message could not be parsed: `value` holds the received bytes, in which the topic is near the start.
        return self._topic not in copy.value[: _MAX_BYTES_BEFORE_TOPIC + len(self._topic)]

    def _send(self, copy: Copy) -> bool:
        try:
            data = self._encode(copy)
        except LocalProtocolError as error:
            self._log_loss(str(error))
            return False
        if time.monotonic() < self._paused_until:
            return False
        target = self._datagrams if len(data) <= self._max_datagram_bytes else self._stream
        try:
            target.send(data, self._give_up_at)
        except OSError as error:
            if error.errno == errno.EMSGSIZE:
                self._log_loss(f"the kernel allows no datagram of {len(data)} bytes; raise net.core.wmem_default.")
                return False
            self._paused_until = max(self._paused_until, time.monotonic() + PAUSE_S)
            self._log_loss(f"{target.path} did not take it: {error.strerror or 'it does not read'}.")
            return False
        return True

    @staticmethod
    def _log_loss(reason: str) -> None:
        text = "A dead letter is lost: %s The daemon still delivers messages; DeadLetterLost counts the dead letters."
        log.warning(text, reason, extra={"about": "dead letters"})

    def _encode(self, copy: Copy) -> bytes:
        """Encode the dead letter. Cut its value if the dead letter is too large for the input or for Kafka.

        Raise LocalProtocolError if key and headers alone are too large.
        """
        headers = tuple(self._headers_for(copy))
        data = self._encode_message(copy, copy.value, headers)
        excess_bytes = len(data) - self._max_bytes
        if excess_bytes <= 0:
            return data
        kept_bytes = len(copy.value) - excess_bytes - _SIZE_HEADER_BYTES
        if kept_bytes < 0:
            raise LocalProtocolError(f"Its key and its headers have more than {self._max_bytes} bytes.")
        size_header = (b"bruce.value_size", b"%d" % len(copy.value))
        return self._encode_message(copy, copy.value[:kept_bytes], (*headers, size_header))

    def _encode_message(self, copy: Copy, value: bytes, headers: tuple[Header, ...]) -> bytes:
        partition_key = None  # the daemon chooses the partition
        fields = (self._topic, value, copy.key, copy.copied_ms, partition_key, headers)
        return encode_message(Message(*fields, EmptyFields(copy.empty_fields)))

    def _headers_for(self, copy: Copy) -> Iterator[Header]:
        yield from copy.headers
        yield b"bruce.reason", copy.info.encode()
        if copy.topic:
            yield b"bruce.topic", copy.topic
            yield b"bruce.timestamp_ms", b"%d" % copy.timestamp_ms
        if copy.partition_key is not None:
            yield b"bruce.partition_key", b"%d" % copy.partition_key
        yield b"bruce.discarded_ms", b"%d" % copy.copied_ms
        yield b"bruce.host", self._host


class _InputSocket:
    """A connection to a UNIX socket of the daemon, opened by the first message, and by the next one after an error."""

    def __init__(self, path: str, kind: socket.SocketKind) -> None:
        self.path = path
        self._kind = kind
        self._socket: socket.socket | None = None

    def send(self, data: bytes, give_up_at: float) -> None:
        """Send a whole message by the monotonic time `give_up_at`. Raise OSError if the input did not get all of it."""
        is_new = self._socket is None
        try:
            self._send(data, give_up_at)
        except OSError as error:
            if is_new or error.errno not in _CLOSED_ERRNOS:
                raise
            self._send(data, give_up_at)  # connects to the successor of the input process

    def _send(self, data: bytes, give_up_at: float) -> None:
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, self._kind)
                self._limit_wait(self._socket, give_up_at)
                self._socket.connect(self.path)
            self._limit_wait(self._socket, give_up_at)
            self._socket.sendall(data)
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                self.close()
            raise

    @staticmethod
    def _limit_wait(input_socket: socket.socket, give_up_at: float) -> None:
        input_socket.settimeout(max(give_up_at - time.monotonic(), _SHORTEST_WAIT_S))

    def close(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
            self._socket = None
