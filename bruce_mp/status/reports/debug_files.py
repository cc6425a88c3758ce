"""Message debugging: copies of the messages of selected topics, written to three files for a limited time.

    msg_receive   a line for each message that the router has taken over from an input
    msg_send      a line for each message in a produce request that is sent
    msg_got_ack   a line for each message that the broker has acknowledged

Debugging starts when the first topic is selected: old files are removed, and the timer and the byte count start. Each
later change of the selection resets the timer and the byte count. Debugging ends when the last topic is deselected,
when the time limit has passed, or when the three files together reach the byte limit.

HTTP threads select topics, the writer thread writes, and the main thread checks the timer; one lock guards the whole
state.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

from bruce_mp.ipc.control_messages import DebugTopics
from bruce_mp.protocol.client.discard_line import format_debug_line
from bruce_mp.status.pages.text import topic_text
from bruce_mp.status.reports.rolling_file import FileWriteError, open_private
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.logs import NOTICE
from bruce_mp.telemetry.message_copies import CopyTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bruce_mp.config.sections import MsgDebug
    from bruce_mp.telemetry.message_copies import Copy

__all__ = ["MessageDebug"]

log = logging.getLogger(__name__)
FILE_NAMES: Final = {
    CopyTarget.MSG_RECEIVE: "msg_receive",
    CopyTarget.MSG_SEND: "msg_send",
    CopyTarget.MSG_GOT_ACK: "msg_got_ack",
}
MAX_TOPICS: Final = 1000
"""Limit of the topics that can be selected by name; every process on the message path gets the list."""
MAX_NAME_BYTES: Final = 96 << 10
"""Limit of the bytes of all selected names. A control message has room for these bytes and 5 bytes more per name."""


class MessageDebug:
    """Topic selection and debug files.

    `publish(selection)` sends the selection to the processes on the message path. `count(counter, amount)` adds to a
    counter of the status process. `now_s` is a monotonic clock. A method that starts debugging raises FileWriteError if
    an old file cannot be removed.
    """

    def __init__(
        self,
        config: MsgDebug,
        publish: Callable[[DebugTopics], None],
        count: Callable[[Counter, int], None],
        now_s: Callable[[], float],
    ) -> None:
        self._config = config
        self._publish = publish
        self._count = count
        self._now_s = now_s
        self._lock = Lock()
        self._selection = DebugTopics()
        self._descriptors: dict[CopyTarget, int] = {}
        self._written_bytes = 0
        self._deadline_s = 0.0

    @property
    def is_enabled(self) -> bool:
        return self._config.enable

    def apply_config(self, config: MsgDebug) -> None:
        """Apply a reloaded config. If any of its settings has changed, reset the timer and the byte count."""
        with self._lock:
            before, self._config = self._config, config
            if config.path != before.path:
                self._close()
            if self._selection.has_topics and config != before:
                self._change_selection(self._selection if config.enable else DebugTopics())

    # --- called by the HTTP pages ------------------------------------------------------------------------------------

    def describe(self) -> str:
        """Return the text of the page `/msg_debug/get_topics`."""
        with self._lock:
            if self._selection.all_topics:
                return "All message debug topics are currently enabled\n"
            if not self._selection.topics:
                return "No message debug topics are currently enabled\n"
            return "".join(f"topic: [{topic_text(topic)}]\n" for topic in self._selection.topics)

    def add(self, topic: bytes) -> bool:
        """Select a topic. Return False if it is selected already, or if the selection has no room for it."""
        with self._lock:
            topics = self._selection.topics
            is_full = len(topics) >= MAX_TOPICS or sum(map(len, topics)) + len(topic) > MAX_NAME_BYTES
            if is_full or self._selection.covers(topic):
                return False
            self._change_selection(DebugTopics((*topics, topic)))
            return True

    def remove(self, topic: bytes) -> bool:
        """Deselect a topic. Return False if it was not selected by its name."""
        with self._lock:
            if topic not in self._selection.topics:
                return False
            self._change_selection(DebugTopics(tuple(other for other in self._selection.topics if other != topic)))
            return True

    def select_all(self) -> None:
        with self._lock:
            self._change_selection(DebugTopics(all_topics=True))

    def deselect_all(self) -> None:
        """Deselect all topics, which ends debugging."""
        with self._lock:
            self._change_selection(DebugTopics())

    def truncate(self) -> None:
        """Empty the files and reset the byte count, but not the timer."""
        with self._lock:
            for descriptor in self._descriptors.values():
                os.ftruncate(descriptor, 0)
            if not self._descriptors:
                self._remove_old_files()
            self._written_bytes = 0

    def _change_selection(self, selection: DebugTopics) -> None:
        if not self._selection.has_topics and selection.has_topics:
            self._remove_old_files()
        self._set_selection(selection)
        self._publish(selection)

    def _set_selection(self, selection: DebugTopics) -> None:
        """Set the selection, and reset the timer and the byte count. An empty selection ends debugging."""
        self._selection = selection
        self._written_bytes = 0
        self._deadline_s = self._now_s() + self._config.time_limit_s
        if not selection.has_topics:
            self._close()

    def _remove_old_files(self) -> None:
        for name in FILE_NAMES.values():
            path = Path(self._config.path, name)
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise FileWriteError(
                    f"{path} cannot be removed: {error.strerror}. Set msg_debug.path to another directory."
                ) from error

    def _close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    # --- called by the main thread and the writer thread -------------------------------------------------------------

    def restore_selection(self, selection: DebugTopics) -> None:
        """Set the selection that a previous status process published. The supervisor sends it to the new process."""
        with self._lock:
            self._set_selection(selection)

    def check_deadline(self) -> None:
        """End debugging if the time limit has passed."""
        with self._lock:
            if self._selection.has_topics and self._now_s() >= self._deadline_s:
                self._end("msg_debug.time_limit_s has passed")

    def _end(self, reason: str) -> None:
        log.log(NOTICE, "Message debugging has ended: %s.", reason)
        self._change_selection(DebugTopics())

    def write(self, copies: Sequence[Copy]) -> None:
        """Write copies to their files.

        If a write fails, count this copy and all later copies as lost, end debugging, and raise FileWriteError.
        """
        with self._lock:
            for index, copy in enumerate(copies):
                try:
                    self._write(copy)
                except FileWriteError:
                    lost = [each for each in copies[index:] if self._selection.covers(each.topic)]
                    self._count(Counter.MsgCopyLost, len(lost))
                    self._change_selection(DebugTopics())
                    raise

    def _write(self, copy: Copy) -> None:
        if not self._selection.covers(copy.topic):
            return  # the copy was queued before the selection changed
        line = format_debug_line(copy.timestamp_ms, copy.topic, copy.key, copy.value)
        if self._written_bytes + len(line) > self._config.byte_limit:
            self._end("the files have reached msg_debug.byte_limit")
            return
        self._append(copy.target, line)
        self._written_bytes += len(line)

    def _append(self, target: CopyTarget, line: bytes) -> None:
        path = Path(self._config.path, FILE_NAMES[target])
        if target not in self._descriptors:
            self._descriptors[target] = open_private(path)
        try:
            written_bytes = os.write(self._descriptors[target], line)
        except OSError as error:
            raise FileWriteError(f"{path} cannot be written: {error.strerror}. Message debugging has ended.") from error
        if written_bytes < len(line):
            raise FileWriteError(f"{path} cannot be written: the disk is full. Message debugging has ended.")
