"""The journal process: writes held messages to the journal at each interval, and at once when an input asks."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from bruce_mp.errors import SlabError
from bruce_mp.ipc.links import JOURNAL_REQUESTS
from bruce_mp.journal.recorder import JournalRecorder
from bruce_mp.pipeline.process_shell import ProcessShell
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.telemetry.clock import steady_ms

if TYPE_CHECKING:
    from bruce_mp.ipc.control_messages import Control
    from bruce_mp.ipc.start import Start
    from bruce_mp.slab.file import Slab

__all__ = ["main"]

log = logging.getLogger(__name__)


def main(start: Start, slab: Slab, control: Control) -> None:
    _JournalProcess(start, slab, control).run()


class _JournalProcess(ProcessShell):
    def __init__(self, start: Start, slab: Slab, control: Control) -> None:
        super().__init__(start, control, ProcessRow.recover(slab, start.row))
        self._recorder = JournalRecorder(
            slab, Path(start.config.journal_path), lambda: self._row.store_heartbeat(steady_ms())
        )
        self._due_ms = 0  # steady time of the next recording
        self._is_failing = False
        self.serve_bytes(JOURNAL_REQUESTS, self._on_request)

    def _on_request(self, _: bytes) -> None:
        self._due_ms = 0  # the next `after_round`, at the end of this round of the event loop, records

    def after_round(self, now_ms: int) -> int:
        if now_ms >= self._due_ms:
            self._record()
            self._due_ms = steady_ms() + self._config.slab.sync_interval_ms
        return self._due_ms

    def _record(self) -> None:
        try:
            self._recorder.record()
        except (OSError, SlabError) as error:
            if not self._is_failing:
                log.error(
                    "The journal in %s cannot be written: %s. Received messages do not survive a power failure. Make "
                    "room or mend the directory; the daemon tries again.",
                    self._config.journal_path,
                    getattr(error, "strerror", None) or error,
                )
            self._is_failing = True
            return
        if self._is_failing:
            log.warning("The journal in %s is written again.", self._config.journal_path)
        self._is_failing = False
