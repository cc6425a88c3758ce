"""Message debugging: copies of the messages of selected topics, written to three files for a limited time.

    msg_receive   the router claimed the message
    msg_send      a produce request contains the message
    msg_got_ack   the broker acknowledged the message

Selecting the first topic starts debugging: old files are removed, and the timer and the byte count start. Each later
change of the selection resets both. Debugging ends when no topic is selected, at the time limit, or at the byte limit
of the three files.

HTTP threads select topics, the writer thread writes, and the main thread checks the timer; one lock guards the whole
state. `announce` publishes the selection to the processes on the message path.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

from bruce_mp.discards.file_line import format_debug_line
from bruce_mp.ipc.control_messages import DebugTopics
from bruce_mp.status.pages.text import topic_text
from bruce_mp.status.reports.rolling_file import FileTroubleError, open_private
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.logs import NOTICE
from bruce_mp.telemetry.message_copies import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bruce_mp.config.sections import MsgDebug
    from bruce_mp.telemetry.message_copies import Copy

__all__ = ["MessageDebug"]

_LOG: Final = logging.getLogger(__name__)
NAMES: Final = {
    Target.MSG_RECEIVE: "msg_receive",
    Target.MSG_SEND: "msg_send",
    Target.MSG_GOT_ACK: "msg_got_ack",
}
MOST_TOPICS: Final = 1000


class MessageDebug:
    """Topic selection and debug files.

    `now` is a monotonic clock in seconds; `count(counter, amount)` adds to a counter of the status process. Methods
    that start debugging raise FileTroubleError if old files cannot be removed.
    """

    def __init__(
        self,
        config: MsgDebug,
        announce: Callable[[DebugTopics], None],
        count: Callable[[Counter, int], None],
        now: Callable[[], float],
    ) -> None:
        self._config = config
        self._announce = announce
        self._count = count
        self._now = now
        self._lock = Lock()
        self._chosen = DebugTopics()
        self._files: dict[Target, int] = {}
        self._bytes = 0
        self._until = 0.0

    @property
    def enabled(self) -> bool:
        return self._config.enable

    def apply_config(self, config: MsgDebug) -> None:
        """Apply a reloaded config. A changed path, time limit or byte limit restarts the timer and the byte count."""
        with self._lock:
            before, self._config = self._config, config
            if config.path != before.path:
                self._close()
            if self._chosen.any and config != before:
                self._change(self._chosen if config.enable else DebugTopics())

    # --- requests of the pages ---------------------------------------------------------------------------------------

    def describe(self) -> str:
        """List the selected topics as text for the page."""
        with self._lock:
            if self._chosen.all:
                return "All message debug topics are currently enabled\n"
            if not self._chosen.topics:
                return "No message debug topics are currently enabled\n"
            return "".join(f"topic: [{topic_text(topic)}]\n" for topic in self._chosen.topics)

    def add(self, topic: bytes) -> bool:
        """Select a topic. Return False if it is already selected, or if the selection is full."""
        with self._lock:
            topics = self._chosen.topics
            if self._chosen.covers(topic) or len(topics) >= MOST_TOPICS:
                return False
            self._change(DebugTopics((*topics, topic)))
            return True

    def remove(self, topic: bytes) -> bool:
        """Deselect a topic. Return False if it was not selected by name."""
        with self._lock:
            if topic not in self._chosen.topics:
                return False
            self._change(DebugTopics(tuple(other for other in self._chosen.topics if other != topic)))
            return True

    def choose_all(self) -> None:
        with self._lock:
            self._change(DebugTopics(all=True))

    def choose_none(self) -> None:
        """Deselect all topics, which ends debugging."""
        with self._lock:
            self._change(DebugTopics())

    def truncate(self) -> None:
        """Empty the files and reset the byte count. Debugging continues."""
        with self._lock:
            for descriptor in self._files.values():
                os.ftruncate(descriptor, 0)
            if not self._files:
                self._remove_old()
            self._bytes = 0

    def _change(self, chosen: DebugTopics) -> None:
        if not self._chosen.any and chosen.any:
            self._remove_old()
        self._take(chosen)
        self._announce(chosen)

    def _take(self, chosen: DebugTopics) -> None:
        self._chosen = chosen
        self._bytes = 0
        self._until = self._now() + self._config.time_limit_s
        if not chosen.any:
            self._close()

    def _remove_old(self) -> None:
        for name in NAMES.values():
            path = Path(self._config.path, name)
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise FileTroubleError(f"{path} cannot be removed: {error.strerror}. Set another path.") from error

    def _close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    # --- the other threads -------------------------------------------------------------------------------------------

    def adopt(self, chosen: DebugTopics) -> None:
        """Continue the selection of a previous status process."""
        with self._lock:
            self._take(chosen)

    def check_deadline(self) -> None:
        """End debugging if the time limit has passed."""
        with self._lock:
            if self._chosen.any and self._now() >= self._until:
                self._end("msg_debug.time_limit_s is over")

    def _end(self, why: str) -> None:
        _LOG.log(NOTICE, "Message debugging has ended: %s.", why)
        self._change(DebugTopics())

    def write(self, copies: Sequence[Copy]) -> None:
        with self._lock:
            for number, copy in enumerate(copies):
                try:
                    self._write(copy)
                except FileTroubleError:
                    self._count(Counter.MsgCopyLost, len(copies) - number)
                    self._change(DebugTopics())
                    raise

    def _write(self, copy: Copy) -> None:
        if not self._chosen.covers(copy.topic):
            return  # the copy was queued before the selection changed
        line = format_debug_line(copy.timestamp_ms, copy.topic, copy.key, copy.value)
        if self._bytes + len(line) > self._config.byte_limit:
            self._end("the files have msg_debug.byte_limit")
            return
        self._append(copy.target, line)
        self._bytes += len(line)

    def _append(self, target: Target, line: bytes) -> None:
        path = Path(self._config.path, NAMES[target])
        if target not in self._files:
            self._files[target] = open_private(path)
        try:
            written = os.write(self._files[target], line)
        except OSError as error:
            raise FileTroubleError(
                f"{path} cannot be written: {error.strerror}. Message debugging has ended."
            ) from error
        if written < len(line):
            raise FileTroubleError(f"{path} cannot be written: the disk is full. Message debugging has ended.")
