"""Recording of held runs: a copy of each run goes to the journal once, after the input has handed over the run.

A *recording* is one pass over the slab that adds the new runs to the journal.  One recording adds all runs of a
fenced attempt.  So a recording leaves out an attempt that an input is still handing over, and all runs that are handed
over after the recording began.  A recording ends with a COMMIT of its attempts.  If the COMMIT is missing, the attempts
may be incomplete, and a reader of the journal uses only the other runs.  Messages that an attempt has spilled to a file
are not in the journal before the file is fed, so the journal may have a part of a spilled attempt.

A run is recorded as a whole.  So after a power failure the daemon sends some settled messages again: the settled
messages of held runs, and all messages that were settled after the last recording.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.errors import SlabError
from bruce_mp.journal.journal_file import AttemptKey, Journal, JournaledRun, RunKey, boot_id
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunk_readers import read_each
from bruce_mp.slab.fences import attempt_of
from bruce_mp.slab.handover_tickets import InputProgress, input_progress, store_journaled_tickets
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.private_directory import create_private_directory
from bruce_mp.slab.producer_id import cluster_of
from bruce_mp.slab.runs import name_of, records_of, runs_of
from bruce_mp.slab.tables import TopicTable
from bruce_mp.telemetry.clock import steady_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Run

__all__ = ["JOURNAL", "JOURNAL_SETTING", "JournalRecorder"]

JOURNAL: Final = "journal"
"""The name of the journal file in its directory."""
JOURNAL_SETTING: Final = "slab.journal_dir"
_MAX_GARBAGE: Final = 64 << 20
"""The recorder rewrites the journal if the settled runs in it are larger than the held runs by this number of bytes.

So the size of the file is at most twice the size of the held runs plus this number, and a small journal is not
rewritten often."""
_PART_RUNS: Final = 20_000
"""Number of runs after which the recorder calls `on_progress`; their recording takes a fraction of a second."""
_PART_BYTES: Final = 64 << 20
"""Number of unsynced bytes after which the recorder calls `on_progress`; a slow disk writes them in a few seconds."""


class JournalRecorder:
    """Writes the journal of a slab, a file in `directory`.

    The methods raise OSError if the file system does, and SlabError if the directory is not private to the slab.  After
    an OSError, the next `record` writes the whole journal again.  The methods call `on_progress` after each part of
    their work, so that the supervisor does not take a long recording for a hang.
    """

    def __init__(self, slab: Slab, directory: Path, on_progress: Callable[[], None] = lambda: None) -> None:
        self._slab = slab
        self._directory = directory
        self._on_progress = on_progress
        self._topics = TopicTable(slab)
        self._journal: Journal | None = None
        self._recorded: dict[RunKey, int] = {}
        """The runs that the last recording found held, with the size of their records in bytes."""
        self._cluster_id = ""
        """The cluster id in the journal; empty = none."""
        self._progress: dict[int, InputProgress] = {}
        """The progress of each input when the last recording began."""

    def record(self) -> None:
        """Write all changes to the disk; then store in the slab the time, and the tickets that are in the journal."""
        try:
            held_bytes = sum(self._recorded.values())
            if self._journal is None or self._journal.size - held_bytes > held_bytes + _MAX_GARBAGE:
                self.rewrite()
            else:
                self._add_cluster(self._journal)
                self._add_runs(self._journal)
                self._journal.sync()
        except OSError:
            self._close_journal()
            raise
        # The recording has left out the runs of attempts in progress, so the tickets of these rows wait for a later
        # recording. A hand-over takes moments, so a recording without one follows soon, also if attempts never pause.
        tickets = {row: progress.ticket for row, progress in self._progress.items() if not progress.attempt}
        store_journaled_tickets(self._slab, tickets)
        self._slab.store_signed(lay.SUPER_JOURNALED_MS, steady_ms())

    def rewrite(self, *, is_clean: bool = False, for_1_0_0: bool = False) -> None:
        """Replace the journal by a new one with only the held runs, and with a CLEAN if `is_clean` is True.

        If `for_1_0_0` is True, write no cluster id: release 1.0.0 does not start with a journal that has one.
        """
        self._close_journal()
        create_private_directory(self._directory, JOURNAL_SETTING, self._slab.path)
        journal = Journal.create(self._directory / f"{JOURNAL}.new")
        try:
            journal.add_begin(self._slab.read_signed(lay.SUPER_CREATED_MS), boot_id())
            if not for_1_0_0:
                self._add_cluster(journal)
            self._add_runs(journal)
            if is_clean:
                journal.add_clean()
            journal.replace(self._directory / JOURNAL)
        except OSError:
            journal.close()
            raise
        self._journal = journal

    def _close_journal(self) -> None:
        self._recorded, self._cluster_id = {}, ""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _add_runs(self, journal: Journal) -> None:
        """Add the new runs, and the keys of recorded runs that are not held any more."""
        self._progress = input_progress(self._slab)
        held_runs: dict[RunKey, int] = {}
        for index, (key, run_or_size) in enumerate(read_each(self._slab, self._held_runs)):
            if (index + 1) % _PART_RUNS == 0 or journal.unsynced_bytes >= _PART_BYTES:
                # In a rewrite, each part may be synced: nothing reads the new file before it is complete.
                if journal is not self._journal:
                    journal.sync()
                self._on_progress()
            if isinstance(run_or_size, int):
                held_runs[key] = run_or_size
            else:
                journal.add_run(key, run_or_size)
                held_runs[key] = len(run_or_size.data)
        journal.add_settled(self._recorded.keys() - held_runs.keys())
        journal.add_commit()
        self._recorded = held_runs

    def _add_cluster(self, journal: Journal) -> None:
        """Add a new cluster id."""
        cluster_id = cluster_of(self._slab)
        if cluster_id and cluster_id != self._cluster_id:
            journal.add_cluster(cluster_id)
            # Sync before any run is added: after a power failure, the daemon could otherwise send runs to another
            # cluster, because it would not know their cluster id.
            journal.sync()
            self._cluster_id = cluster_id

    def _held_runs(self, chunk: int) -> Iterator[tuple[RunKey, JournaledRun | int]]:
        """Yield the key of each held run of a chunk, with a copy of a new run or the size of a recorded run."""
        attempt_number, row = attempt_of(self._slab, chunk), self._slab.owner_of(chunk)
        attempt = AttemptKey(row, attempt_number) if attempt_number else None
        try:
            progress = self._progress[row]
            is_under_way = attempt_number != 0 and attempt_number == progress.attempt
            # New runs with larger tickets are left to a later recording.  Each run has a ticket above 0.
            last_ticket = 0 if is_under_way else progress.ticket
            for offset, run in runs_of(self._slab, chunk):
                key = RunKey(chunk, run.generation, offset)
                # Keep the recorded runs of an attempt that seems to be under way: they may belong to a complete attempt
                # of an earlier worker, which used the same number.
                if (key in self._recorded or run.ticket <= last_ticket) and self._is_held(chunk, offset, run):
                    yield key, self._recorded.get(key) or self._copy(chunk, offset, run, attempt)
        except (SlabError, KeyError):  # the chunk is damaged, or a topic has no entry: keep the chunk's recorded runs
            yield from ((key, size) for key, size in self._recorded.items() if key.chunk == chunk)

    def _is_held(self, chunk: int, offset: int, run: Run) -> bool:
        if run.state is not RunState.SPLIT:
            return run.state is not RunState.OPEN and run.state not in lay.SETTLED
        records = records_of(self._slab, chunk, offset, run)
        return any(record.word & 0xFF not in lay.SETTLED for _, record in records)  # the low byte is the state

    def _copy(self, chunk: int, offset: int, run: Run, attempt: AttemptKey | None) -> JournaledRun:
        # A run with topic number 0 contains the name of its topic.
        topic = self._topics.name_of(run.topic) if run.topic else name_of(self._slab, chunk, offset, run)
        run_at = self._slab.chunk_at(chunk) + offset
        records = bytes(self._slab.view[run_at + run.body_offset : run_at + run.size])
        return JournaledRun(topic, run.records, records, attempt)
