"""Writer thread for copies of messages: discard file, dead letter topic, and the files of message debugging.

Delivery never waits for it. The writer drops and counts copies that arrive faster than the disk accepts them, and
copies that it cannot write. It retries a file after an error, so lines appear again when the disk has room. After a
kill, the next start counts as lost the copies of discarded messages that were queued but are not in DiscardCopySettled.
"""

from __future__ import annotations

import logging
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.protocol.client.discard_line import NO_INFO, DiscardLine, LineEvent, format_line
from bruce_mp.status.reports.rolling_file import FileWriteError
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.message_copies import CopyTarget, count_lost, decode_copies

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bruce_mp.status.reports.dead_letters import DeadLetterTopic
    from bruce_mp.status.reports.debug_files import MessageDebug
    from bruce_mp.status.reports.rolling_file import RollingFile
    from bruce_mp.telemetry.message_copies import Copy

__all__ = ["CopyWriter", "DiscardDestinations", "DiscardFile"]

log = logging.getLogger(__name__)
MAX_QUEUED_BYTES: Final = 16 << 20
"""Memory for copies while the disk is slow."""
_STOP_S: Final = 2.0
"""Wait for the thread at the end of the process; the next start counts the queued copies of discards as lost."""


class DiscardFile:
    """The discard file, with one line for each copy; keys and values are cut to `max_bytes`, if that is not None."""

    def __init__(self, file: RollingFile, count: Callable[[Counter, int], None], max_bytes: int | None = None) -> None:
        self._file = file
        self._count = count
        self._max_bytes = max_bytes

    def prepare(self) -> None:
        """Open the file now, so that errors show at the start. Raise FileWriteError."""
        self._file.prepare()

    def close(self) -> None:
        self._file.close()

    def write(self, copies: Sequence[Copy]) -> None:
        written = 0
        try:
            for copy in copies:
                self._file.write([format_line(_discard_line(copy, self._max_bytes))])
                written += 1
                self._count(Counter.DiscardLogLine, 1)  # line by line, so that a kill leaves at most one line uncounted
                self._count(Counter.DiscardCopySettled, 1)
        finally:
            count_lost(self._count, copies[written:])
        self._file.raise_failed_removal()


def _discard_line(copy: Copy, max_bytes: int | None) -> DiscardLine:
    return DiscardLine(
        copy.now_ms,
        copy.timestamp_ms,
        LineEvent.DISCARD if copy.info else LineEvent.DUPLICATE,
        copy.info or NO_INFO,
        copy.topic,
        copy.key[:max_bytes],
        copy.value[:max_bytes],
        copy.partition_key,
        copy.headers,
        copy.empty,
    )


class DiscardDestinations(NamedTuple):
    """Destinations of discarded messages. The writer uses an instance in its queue for all later copies."""

    file: DiscardFile | None = None
    dead_letters: DeadLetterTopic | None = None

    def close(self) -> None:
        for each in self:
            if each is not None:
                each.close()


class CopyWriter:
    """Queue and thread that write copies to `discards` and to `debug`.

    `count(counter, amount)` adds to a counter of the status process.
    """

    def __init__(
        self, discards: DiscardDestinations, debug: MessageDebug, count: Callable[[Counter, int], None]
    ) -> None:
        self._discards = discards
        self._debug = debug
        self._count = count
        self._queue: SimpleQueue[bytes | DiscardDestinations | None] = SimpleQueue()
        self._queued_bytes = 0
        self._lock = Lock()
        self._thread = Thread(target=self._run, name="copies", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def replace_destinations(self, discards: DiscardDestinations) -> None:
        """Write copies that are queued after this call to these destinations."""
        self._queue.put(discards)

    def stop(self) -> None:
        """Write the queued copies, waiting at most 2 s, and end the thread. After 1 s, send no dead letters."""
        self._queue.put(None)
        self._thread.join(_STOP_S / 2)
        if self._thread.is_alive() and (dead_letters := self._discards.dead_letters) is not None:
            dead_letters.stop()
        self._thread.join(_STOP_S / 2)

    def enqueue(self, data: bytes) -> None:
        """Queue copies as `telemetry.message_copies` encodes them. Drop and count them beyond `MAX_QUEUED_BYTES`."""
        with self._lock:
            # An empty queue takes a frame of any size.
            has_room = not self._queued_bytes or self._queued_bytes + len(data) <= MAX_QUEUED_BYTES
            self._queued_bytes += len(data) if has_room else 0
        if has_room:
            self._queue.put(data)
        else:
            log.warning("Copies of messages arrive faster than the disk accepts them; some are not written.")
            self._count_dropped(_decode(data))

    def _count_dropped(self, copies: list[Copy]) -> None:
        discarded, others = _split(copies)
        file, dead_letters = self._discards
        if dead_letters is not None:
            dead_letters.count_lost(discarded)
            if file is None:  # then no line of a file is lost with a discarded message
                self._count(Counter.DiscardCopySettled, len(discarded))
                copies = others
        count_lost(self._count, copies)

    def _run(self) -> None:
        self._prepare()
        while (item := self._queue.get()) is not None:
            if isinstance(item, DiscardDestinations):
                self._discards.close()
                self._discards = item
                self._prepare()
                continue
            self._write(_decode(item))
            with self._lock:
                self._queued_bytes -= len(item)

    def _prepare(self) -> None:
        if self._discards.file is not None:
            self._log_failure(self._discards.file.prepare)

    def _write(self, copies: list[Copy]) -> None:
        discarded, others = _split(copies)
        if discarded:
            self._write_discarded(discarded)
        if others:
            self._log_failure(lambda: self._debug.write(others))

    def _write_discarded(self, copies: list[Copy]) -> None:
        """Write the lines before the dead letters, which a busy input delays."""
        file, dead_letters = self._discards
        if file is not None:
            self._log_failure(lambda: file.write(copies))
        elif dead_letters is not None:
            self._count(Counter.DiscardCopySettled, len(copies))  # without a file, no line of them can be lost
        else:  # queued before a reload that removed both destinations
            count_lost(self._count, copies)
        if dead_letters is not None:
            dead_letters.send(copies)

    def _log_failure(self, write: Callable[[], None]) -> None:
        try:
            write()
        except FileWriteError as error:
            log.error(
                "%s The daemon still delivers messages; MsgCopyLost counts the copies that are not written.",
                error, extra={"about": str(error)},
            )  # fmt: skip


def _split(copies: list[Copy]) -> tuple[list[Copy], list[Copy]]:
    """Return the copies of discarded messages, and all others."""
    discarded = [copy for copy in copies if copy.target is CopyTarget.DISCARDS]
    return discarded, [copy for copy in copies if copy.target is not CopyTarget.DISCARDS]


def _decode(data: bytes) -> list[Copy]:
    try:
        return decode_copies(data)
    except RemoteProtocolError as error:
        log.error("%s  These copies are not written.", error)
        return []
