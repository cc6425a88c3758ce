"""Dead letters: discarded messages, sent to a Kafka topic through an input of this daemon.

A dead letter is an ordinary message of the daemon, so the books count it as a further received message. Its headers
are those of the discarded message, and:

    bruce.reason         the info of the discard file, such as BAD_TOPIC or VERSION(7)
    bruce.topic          the topic of the discarded message; absent if it could not be parsed
    bruce.partition_key  the unsigned key of a PartitionKey message
    bruce.timestamp_ms   the client's timestamp; absent without bruce.topic
    bruce.discarded_ms   the time of the discard
    bruce.host           the host of the daemon
    bruce.value_size     the size of the whole value, if it was cut to fit

A dead letter that is discarded itself never becomes another one. Copies of discarded messages arrive in frames, and
among them copies without info, of messages that may be duplicates. For all copies of a frame together, the thread of
`copy_writer.py` waits at most `PATIENCE_S` for the input. After such a wait in vain, it sends nothing for `PAUSE_S`.
Dead letters that it does not send are lost and counted. If a dead input has closed a connection, the thread opens a new
one at once. A message that the kernel refuses for its size is lost without such a pause.
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

REFUSED_SENDERS: Final = frozenset({DiscardReason.SENDER_NOT_ALLOWED.name, DiscardReason.OVER_QUOTA.name})
"""Values of `Copy.info` for messages that must not reach Kafka as dead letters either."""
PATIENCE_S: Final = 1.0
"""Longest wait for the input, in which further copies queue."""
PAUSE_S: Final = 5.0
"""Time without further tries after such a wait, in which copies are counted as lost."""
_CLOSED_ERRNOS: Final = frozenset({errno.EPIPE, errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOTCONN})
"""Errors of a connection whose input process has ended; its successor accepts a new one."""
_MAX_BYTES_BEFORE_TOPIC: Final = 64
"""More than the fields before the topic in any version of the client protocol."""
_SIZE_HEADER_BYTES: Final = 64
"""Room for the header with the size of a cut value."""
_SHORTEST_WAIT_S: Final = 0.001
"""Shortest timeout, also when the frame's time is over; zero would make the socket non-blocking."""


class DeadLetterTopic:
    """The sender of dead letters. `count(counter, amount)` adds to a counter of the status process."""

    def __init__(self, config: Config, count: Callable[[Counter, int], None]) -> None:
        self._topic = config.discards.topic.encode()
        self._datagrams = _InputSocket(config.input.unix_datagram.path, socket.SOCK_DGRAM)
        self._stream = _InputSocket(config.input.unix_stream.path, socket.SOCK_STREAM)
        self._max_datagram = config.input.max_datagram_size if config.input.unix_datagram.enable else 0
        max_stream = config.input.max_stream_size if config.input.unix_stream.enable else 0
        self._max_bytes = min(max(self._max_datagram, max_stream), config.batching.message_max_bytes)
        self._count = count
        self._host = socket.gethostname().encode()
        self._paused_until = self._give_up_at = 0.0  # times of `time.monotonic()`

    def close(self) -> None:
        self._datagrams.close()
        self._stream.close()

    def send(self, copies: Sequence[Copy]) -> None:
        """Send the copies that become dead letters, and count them."""
        self._give_up_at = time.monotonic() + PATIENCE_S
        for copy in copies:
            if self._becomes_dead_letter(copy):
                self._count(Counter.DeadLetterSent if self._send(copy) else Counter.DeadLetterLost, 1)

    def stop(self) -> None:
        """Count all further dead letters as lost. Another thread may be in `send`."""
        self._paused_until = inf

    def count_lost(self, copies: Iterable[Copy]) -> None:
        """Count copies that do not reach `send`. Another thread may be in `send`."""
        self._count(Counter.DeadLetterLost, sum(map(self._becomes_dead_letter, copies)))

    def _becomes_dead_letter(self, copy: Copy) -> bool:
        """Return False for possible duplicates (without info), refused senders, and our own dead letters."""
        if not copy.info or copy.info in REFUSED_SENDERS:
            return False
        if copy.topic:
            return copy.topic != self._topic
        # The value is the unparsed message, with its topic near the start.
        return self._topic not in copy.value[: _MAX_BYTES_BEFORE_TOPIC + len(self._topic)]

    def _send(self, copy: Copy) -> bool:
        try:
            data = self._encode(copy)
        except LocalProtocolError as error:
            self._log_loss(str(error))
            return False
        if time.monotonic() < self._paused_until:
            return False
        target = self._datagrams if len(data) <= self._max_datagram else self._stream
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
        """Encode the dead letter; cut the value if the daemon would refuse the whole.

        Raise LocalProtocolError if key and headers are too large.
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
        fields = (self._topic, value, copy.key, copy.now_ms, partition_key, headers)
        return encode_message(Message(*fields, EmptyFields(copy.empty)))

    def _headers_for(self, copy: Copy) -> Iterator[Header]:
        yield from copy.headers
        yield b"bruce.reason", copy.info.encode()
        if copy.topic:
            yield b"bruce.topic", copy.topic
            yield b"bruce.timestamp_ms", b"%d" % copy.timestamp_ms
        if copy.partition_key is not None:
            yield b"bruce.partition_key", b"%d" % copy.partition_key
        yield b"bruce.discarded_ms", b"%d" % copy.now_ms
        yield b"bruce.host", self._host


class _InputSocket:
    """A connection to a UNIX socket of the daemon, opened at the first message and after an error."""

    def __init__(self, path: str, kind: socket.SocketKind) -> None:
        self.path = path
        self._kind = kind
        self._socket: socket.socket | None = None

    def send(self, data: bytes, give_up_at: float) -> None:
        """Send a whole message by `give_up_at`. Raise OSError if the input did not get all of it."""
        is_new = self._socket is None
        try:
            self._send(data, give_up_at)
        except OSError as error:
            if is_new or error.errno not in _CLOSED_ERRNOS:
                raise
            self._send(data, give_up_at)  # to the successor of the input that closed the connection

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
    def _limit_wait(opened: socket.socket, give_up_at: float) -> None:
        opened.settimeout(max(give_up_at - time.monotonic(), _SHORTEST_WAIT_S))

    def close(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
            self._socket = None
