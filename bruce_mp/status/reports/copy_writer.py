"""Writer thread for copies of messages: to the discard file, the dead letter topic, and the files of message debugging.

Delivery never waits for the writer. If copies arrive faster than the disk accepts them, or cannot be written, the
writer drops and counts them (`telemetry/message_copies.py`). After an error it tries to open the file again for the
next copy, so it writes again as soon as the disk has room.
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
"""Limit of the copies that wait in memory while the disk is slow."""
_STOP_S: Final = 2.0
"""Longest wait of `stop` for the thread. The copies that are still queued after it are lost."""


class DiscardFile:
    """The discard file, with one line for each copy.

    A key or value is cut at `max_field_bytes`, unless this limit is None. `count(counter, amount)` adds to a counter of
    the status process.
    """

    def __init__(
        self, file: RollingFile, count: Callable[[Counter, int], None], max_field_bytes: int | None = None
    ) -> None:
        self._file = file
        self._count = count
        self._max_field_bytes = max_field_bytes

    def prepare(self) -> None:
        """Open the file now, so that errors show at the start and not at the first discard. Raise FileWriteError."""
        self._file.prepare()

    def close(self) -> None:
        self._file.close()

    def write(self, copies: Sequence[Copy]) -> None:
        """Write one line for each copy, and count the written and the lost copies. Raise FileWriteError."""
        written_count = 0
        try:
            for copy in copies:
                self._file.write([format_line(_discard_line(copy, self._max_field_bytes))])
                written_count += 1
                self._count(Counter.DiscardLogLine, 1)  # line by line, so that a kill leaves at most one line uncounted
                self._count(Counter.DiscardCopySettled, 1)
        finally:
            count_lost(self._count, copies[written_count:])
        self._file.raise_failed_removal()


def _discard_line(copy: Copy, max_field_bytes: int | None) -> DiscardLine:
    return DiscardLine(
        copy.copied_ms,
        copy.timestamp_ms,
        LineEvent.DISCARD if copy.info else LineEvent.DUPLICATE,
        copy.info or NO_INFO,
        copy.topic,
        copy.key[:max_field_bytes],
        copy.value[:max_field_bytes],
        copy.partition_key,
        copy.headers,
        copy.empty_fields,
    )


class DiscardDestinations(NamedTuple):
    """Destinations of the copies of discarded messages; None means that there is no such destination."""

    file: DiscardFile | None = None
    dead_letters: DeadLetterTopic | None = None

    def close(self) -> None:
        for destination in self:
            if destination is not None:
                destination.close()


class CopyWriter:
    """Queue and thread that write the copies of discarded messages to `discards`, and the debug copies to `debug`.

    `count(counter, amount)` adds to a counter of the status process.
    """

    def __init__(
        self, discards: DiscardDestinations, debug: MessageDebug, count: Callable[[Counter, int], None]
    ) -> None:
        self._discards = discards
        self._debug = debug
        self._count = count
        self._queue: SimpleQueue[bytes | DiscardDestinations | None] = SimpleQueue()
        """Frames of copies. Destinations apply to all frames queued after them; None ends the thread."""
        self._queued_bytes = 0
        self._lock = Lock()
        self._thread = Thread(target=self._run, name="copies", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def replace_destinations(self, discards: DiscardDestinations) -> None:
        """Use `discards` as the destinations of the copies that are queued after this call."""
        self._queue.put(discards)

    def stop(self) -> None:
        """Let the thread write the queued copies and end, but wait at most `_STOP_S`.

        After half of this time, the thread sends no more dead letters.
        """
        self._queue.put(None)
        self._thread.join(_STOP_S / 2)
        if self._thread.is_alive() and (dead_letters := self._discards.dead_letters) is not None:
            dead_letters.stop()
        self._thread.join(_STOP_S / 2)

    def enqueue(self, data: bytes) -> None:
        """Queue a frame of copies that `telemetry.message_copies.CopyQueue` encoded.

        If the queue would exceed `MAX_QUEUED_BYTES`, drop and count the copies.
        """
        with self._lock:
            # An empty queue accepts a frame of any size.
            has_room = not self._queued_bytes or self._queued_bytes + len(data) <= MAX_QUEUED_BYTES
            self._queued_bytes += len(data) if has_room else 0
        if has_room:
            self._queue.put(data)
        else:
            log.warning("Copies of messages arrive faster than the disk accepts them; some are not written.")
            self._count_dropped(_decode(data))

    def _count_dropped(self, copies: list[Copy]) -> None:
        discarded, debug_copies = _split_by_target(copies)
        file, dead_letters = self._discards
        if dead_letters is not None:
            dead_letters.count_lost(discarded)
            if file is None:  # no line of the discard file is lost, so MsgCopyLost counts only the debug copies
                self._count(Counter.DiscardCopySettled, len(discarded))
                copies = debug_copies
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
            self._call_or_log(self._discards.file.prepare)

    def _write(self, copies: list[Copy]) -> None:
        discarded, debug_copies = _split_by_target(copies)
        if discarded:
            self._write_discarded(discarded)
        if debug_copies:
            self._call_or_log(lambda: self._debug.write(debug_copies))

    def _write_discarded(self, copies: list[Copy]) -> None:
        """Write the lines to the file, and only then send the dead letters, which a busy input may delay."""
        file, dead_letters = self._discards
        if file is not None:
            self._call_or_log(lambda: file.write(copies))
        elif dead_letters is not None:
            self._count(Counter.DiscardCopySettled, len(copies))  # no line of the discard file is lost
        else:  # the copies were queued before a reload that removed both destinations
            count_lost(self._count, copies)
        if dead_letters is not None:
            dead_letters.send(copies)

    def _call_or_log(self, write: Callable[[], None]) -> None:
        try:
            write()
        except FileWriteError as error:
            log.error(
                "%s The daemon still delivers messages; MsgCopyLost counts the copies that are not written.",
                error, extra={"about": str(error)},
            )  # fmt: skip


def _split_by_target(copies: list[Copy]) -> tuple[list[Copy], list[Copy]]:
    """Return the copies of discarded messages, and the copies for message debugging."""
    discarded = [copy for copy in copies if copy.target is CopyTarget.DISCARDS]
    return discarded, [copy for copy in copies if copy.target is not CopyTarget.DISCARDS]


def _decode(data: bytes) -> list[Copy]:
    try:
        return decode_copies(data)
    except RemoteProtocolError as error:
        log.error("%s  These copies are not written.", error)
        return []
