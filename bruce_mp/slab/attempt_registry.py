"""The registry of unique attempts and their outcomes.

A *fenced attempt* is a group of messages that are delivered together or not at all.  A *unique attempt* is a fenced
attempt that has a name from the client.  A client that does not know if its attempt was delivered inquires about
the name, instead of sending the messages twice.  All stream workers (the processes for stream connections) append to
one file in the directory of the spill files, so that any worker can answer.  (The file keeps its old name
`attempts.journal`, but is not the journal of held runs that the setting `slab.sync` turns on.)

    PREPARED ──▶ COMPLETED ──▶ SETTLED
       │            └───────▶ UNCOUNTED
       ├────────────────────▶ UNCOUNTED
       └──▶ CANCELLED

To complete an attempt, a worker first stores the state PREPARED here, then the number of the attempt in the worker's
process row.  This second store is the commit point.  After the death of the worker, the number in the row decides if a
PREPARED attempt becomes UNCOUNTED or CANCELLED.  An UNCOUNTED attempt is complete, but its worker died before all its
messages had outcomes: the daemon still delivers or discards each message, but no process counts the outcomes.

Each entry is one line of JSON in one `write()` to a file opened with O_APPEND.  A kill within a write, or a full disk,
can leave a part of a line, so each entry begins and ends with a newline, and readers skip lines that they cannot parse.
An entry without its last newline is not valid, and the next writer makes its line invalid.  A new file replaces a file
that is a day old or too large; the old file remains as the *previous* file until the next replacement.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum, unique
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bruce_mp.errors import DiscardReason, SlabError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["AttemptId", "AttemptRegistry", "AttemptState", "RememberedAttempt"]

MAX_FILE_BYTES: Final = 8 << 20
"""Size at which a file is replaced: about 30,000 attempts."""
MAX_FILE_AGE_MS: Final = 86_400_000
"""Age at which a file is replaced: a day, as the documentation promises."""
_FILE: Final = "attempts.journal"
_PREVIOUS_FILE: Final = "attempts.journal.1"
_LOCK: Final = "attempts.lock"
_OPEN_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


@unique
class AttemptState(Enum):
    """The state of a unique attempt; the value is the first item of the state's entry."""

    PREPARED = "prepared"
    CANCELLED = "cancelled"
    COMPLETED = "released"  # the word that earlier versions wrote; their files must stay readable
    SETTLED = "settled"
    UNCOUNTED = "uncounted"

    @property
    def is_complete(self) -> bool:
        """Return True if the client has completed the attempt, so that the daemon delivers all its messages."""
        return self in {AttemptState.COMPLETED, AttemptState.SETTLED, AttemptState.UNCOUNTED}


_INVALID: Final = "#"
"""Makes a line invalid at whose end it stands."""
_CREATED: Final = "created"
"""First item of the entry with the time at which the file was created."""
_SLAB_ENDED: Final = "slab ended"
"""First item of an entry about a slab that the daemon is about to remove, because all its messages have outcomes."""

AttemptId = tuple[int, int, int]
"""Creation time of the slab in ms since 1970, row of the worker, number of the attempt."""


@dataclass(frozen=True, slots=True)
class RememberedAttempt:
    """An attempt in the registry, with the number of its messages.

    In state SETTLED, `delivered` is the number of delivered messages, and `discards` has the number of discarded
    messages by reason.  In the other states they are 0 and empty.  `index` is the number of attempts that were prepared
    before, in the files as last read.  `find` sets `has_ended` to True if all messages of the attempt had outcomes when
    the daemon was about to remove the slab.
    """

    name: str
    id: AttemptId
    state: AttemptState
    message_count: int
    delivered: int = 0
    discards: Mapping[DiscardReason | int, int] = field(default_factory=dict)
    index: int = field(default=0, compare=False)
    has_ended: bool = False


class AttemptRegistry:
    """The registry in `directory`, which `create_directory` creates if it is missing.

    `slab_id` is the creation time of the daemon's slab in ms since 1970.  All methods raise OSError if the files cannot
    be read or written, and SlabError if other users can access the directory.
    """

    def __init__(
        self,
        directory: Path,
        slab_id: int,
        create_directory: Callable[[], None],
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        self._slab_id = slab_id
        self._create_directory = create_directory
        self._path = directory / _FILE
        self._clock_ms = clock_ms or (lambda: time.time_ns() // 1_000_000)
        self._descriptor = -1
        self._clear()

    def _clear(self) -> None:
        """Close the file and forget its entries, because a new file replaces it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
        self._read_to = 0
        """Offset up to which the file was read."""
        self._partial_line = b""
        """Bytes before `_read_to` of a last line without its newline, from a write that failed or was killed."""
        self._created_ms = 0
        self._oldest_ms = 0
        """Creation time of the previous file, or of the current file if there is no previous one."""
        self._names: dict[AttemptId, str] = {}
        self._attempts: dict[str, RememberedAttempt] = {}
        """The last attempt of each name."""
        self._prepared_count = 0
        self._ends: dict[int, int] = {}
        """For each slab that the daemon was about to remove: the number of attempts that were prepared before, of all
        slabs.  A kill before the removal keeps the slab, and later attempts in it may still be lost."""

    @property
    def exists(self) -> bool:
        """Return True if the registry has a file, which its first use creates.

        After a replacement that a full disk has interrupted, this may be the previous file alone.
        """
        return self._path.exists() or self._path.with_name(_PREVIOUS_FILE).exists()

    # --- reading -----------------------------------------------------------------------------------------------------

    def find(self, name: str) -> RememberedAttempt | None:
        """Return the attempt with a name; None if there is none, or if it was cancelled."""
        with self._locked():
            return self._find(name)

    def _find(self, name: str) -> RememberedAttempt | None:
        found = self._attempts.get(name)
        if found is None or found.state is AttemptState.CANCELLED:
            return None
        return replace(found, has_ended=found.index < self._ends.get(found.id[0], 0))

    def is_lost(self, attempt: RememberedAttempt) -> bool:
        """Return True if the attempt's slab was lost with unsettled messages, so that the outcome is unknown."""
        is_unsettled = attempt.state is not AttemptState.SETTLED and not attempt.has_ended
        return is_unsettled and attempt.id[0] != self._slab_id

    def no_entry_missing_since_ms(self) -> int:
        """Return a time, in ms since 1970, after which no entry is missing.

        The time is never before the host's boot, because a power failure may have removed the last entries before then.
        """
        with self._locked():
            return max(self._oldest_ms, _boot_time_ms())

    # --- writing -----------------------------------------------------------------------------------------------------

    def prepare(self, attempt: RememberedAttempt) -> RememberedAttempt | None:
        """Store that a worker is about to complete an attempt, and return None.

        If an earlier attempt has the same name, store nothing and return that attempt, unless it is cancelled or lost:
        none of the messages of a cancelled attempt is delivered, and the client of a lost one decides to send it again.
        """
        with self._locked():
            existing = self._find(attempt.name)
            if existing is not None and not self.is_lost(existing):
                return existing
            self._append(AttemptState.PREPARED.value, *attempt.id, attempt.name, attempt.message_count)
        return None

    def store(
        self,
        attempt_id: AttemptId,
        state: AttemptState,
        delivered: int = 0,
        discards: Mapping[DiscardReason, int] | None = None,
    ) -> None:
        """Store the new state of a prepared attempt; for SETTLED also the numbers of messages by outcome."""
        with self._locked():
            discard_counts = {int(key): count for key, count in (discards or {}).items()}
            self._append(state.value, *attempt_id, delivered, discard_counts)

    def resolve(self, row: int, last_completed_attempt: int) -> None:
        """Store the new states of the attempts of a dead worker.

        `row` is the worker's process row; `last_completed_attempt` is the value of ROW_LAST_COMPLETED in this row.
        Raise an error only if the worker has left such attempts, or if the files cannot be read.
        """
        try:
            with self._locked():
                self._store_resolutions(row, last_completed_attempt)
        except (OSError, SlabError):
            if self._has_stored_unresolved(row):
                raise

    def unresolved_rows(self) -> set[int]:
        """Return the process rows whose attempts `resolve` would store, if all workers have ended."""
        with self._locked():
            return self._unresolved_rows()

    def _unresolved_rows(self) -> set[int]:
        own = [each for each in self._attempts.values() if each.id[0] == self._slab_id]
        return {each.id[1] for each in own if each.state in _UNFINISHED}

    def _store_resolutions(self, row: int, last_completed_attempt: int) -> None:
        for attempt in self._unresolved(row):
            state = _RESOLUTIONS[attempt.state, attempt.id[2] == last_completed_attempt]
            self._append(state.value, *attempt.id, 0, {})

    def _unresolved(self, row: int) -> list[RememberedAttempt]:
        """Return the attempts of a dead worker whose states it did not store to the end."""
        own = self._slab_id, row
        return [each for each in self._attempts.values() if each.id[:2] == own and each.state in _UNFINISHED]

    def _has_stored_unresolved(self, row: int) -> bool:
        """Return True if the files have unresolved attempts of a row without a worker; do not change the files.

        No lock is necessary, because no other process stores entries about the row.
        """
        reader = AttemptRegistry(self._path.parent, self._slab_id, self._create_directory)
        # If another worker replaces the current file between the two reads, the previous file has the same entries.
        current, previous = (_content_of(self._path.with_name(name)) for name in (_FILE, _PREVIOUS_FILE))
        for content in (previous, current):
            reader._parse(content.rpartition(b"\n")[0])
        return bool(reader._unresolved(row))

    def end_slab(self, last_completed_attempt: Callable[[int], int]) -> None:
        """Store that all messages of the slab have outcomes, before the slab is removed.

        The workers have ended, so the outcomes of attempts in other states than SETTLED are not counted any more.
        `last_completed_attempt` returns the value of ROW_LAST_COMPLETED in a row.
        """
        with self._locked():
            for row in self._unresolved_rows():
                self._store_resolutions(row, last_completed_attempt(row))
            self._append(_SLAB_ENDED, self._slab_id)

    def _append(self, *entry: object) -> None:
        # The partial line may lack only its newline. Its writer has not stored the entry, so no reader may parse it.
        end = _INVALID if self._partial_line else ""
        data = f"{end}\n{json.dumps(entry)}\n".encode()
        if os.write(self._descriptor, data) != len(data):
            raise OSError(f"{self._path}: the file system is full.")
        self._refresh()

    # --- the file ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the registry, and read all entries before the body of the `with` statement runs."""
        self._create_directory()
        lock = os.open(self._path.with_name(_LOCK), _OPEN_FLAGS, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._open()
            yield
        finally:
            os.close(lock)

    def _open(self) -> None:
        """Open the file, read its new entries, and replace it if it is large or old."""
        if self._descriptor >= 0 and not self._is_current():
            self._clear()
        self._read_files()
        is_old = self._clock_ms() - self._created_ms >= MAX_FILE_AGE_MS
        if is_old or os.fstat(self._descriptor).st_size >= MAX_FILE_BYTES:
            self._path.rename(self._path.with_name(_PREVIOUS_FILE))
            self._clear()
            self._read_files()

    def _is_current(self) -> bool:
        """Return False if another worker has replaced the open file."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def _read_files(self) -> None:
        """Read the new entries; if the file is not open, read the previous file first, then open the file."""
        if self._descriptor < 0:
            with suppress(FileNotFoundError):
                whole, _, _ = self._path.with_name(_PREVIOUS_FILE).read_bytes().rpartition(b"\n")
                self._parse(whole)
            self._created_ms = 0  # the previous file has set its own creation time
            self._descriptor = os.open(self._path, _OPEN_FLAGS, 0o600)
        self._refresh()
        if not self._created_ms:
            # The file is new, or a full disk has prevented the entry. While the disk is full, this raises before
            # `_open` can rename a file without entries over the previous one.
            self._append(_CREATED, self._clock_ms())

    def _refresh(self) -> None:
        """Read the entries that other processes have appended."""
        size = os.fstat(self._descriptor).st_size
        while self._read_to < size and (data := os.pread(self._descriptor, size - self._read_to, self._read_to)):
            self._read_to += len(data)
            whole, _, self._partial_line = (self._partial_line + data).rpartition(b"\n")
            self._parse(whole)

    def _parse(self, data: bytes) -> None:
        for line in data.split(b"\n"):
            with suppress(ValueError, TypeError, KeyError):
                if line:
                    self._apply(*json.loads(line))

    def _apply(self, kind: str, *items: Any) -> None:
        """Apply an entry; `kind` is its first item."""
        if kind == _CREATED:
            self._created_ms = int(items[0])
            self._oldest_ms = self._oldest_ms or self._created_ms  # the previous file is read first
        elif kind == _SLAB_ENDED:
            self._ends[items[0]] = self._prepared_count
        else:
            self._apply_state(AttemptState(kind), *items)

    def _apply_state(self, state: AttemptState, slab: int, row: int, number: int, *items: Any) -> None:
        attempt_id = (slab, row, number)
        if state is AttemptState.PREPARED:
            name, message_count = items
            self._names[attempt_id] = name
            self._attempts[name] = RememberedAttempt(name, attempt_id, state, message_count, index=self._prepared_count)
            self._prepared_count += 1
            return
        delivered, counts = items
        name = self._names[attempt_id]
        discards: dict[DiscardReason | int, int] = {DiscardReason(int(key)): count for key, count in counts.items()}
        if self._attempts[name].id == attempt_id:  # a later attempt may have got the name if this one was cancelled
            self._attempts[name] = replace(self._attempts[name], state=state, delivered=delivered, discards=discards)


_UNFINISHED: Final = frozenset({AttemptState.PREPARED, AttemptState.COMPLETED})

_RESOLUTIONS: Final[Mapping[tuple[AttemptState, bool], AttemptState]] = {
    (AttemptState.PREPARED, False): AttemptState.CANCELLED,
    (AttemptState.PREPARED, True): AttemptState.UNCOUNTED,
    (AttemptState.COMPLETED, False): AttemptState.UNCOUNTED,
    (AttemptState.COMPLETED, True): AttemptState.UNCOUNTED,
}
"""The new state of a dead worker's attempt.  The key is its old state, and whether it is the last completed attempt
according to the worker's row.

A worker stores the attempt's number in its row before it stores COMPLETED here.  So a PREPARED attempt is complete if
the row has its number."""


def _content_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _boot_time_ms() -> int:
    """Return the time at which the host was booted, in ms since 1970."""
    for line in Path("/proc/stat").read_text("ascii").splitlines():
        if line.startswith("btime "):
            return int(line.split()[1]) * 1000
    return 0
