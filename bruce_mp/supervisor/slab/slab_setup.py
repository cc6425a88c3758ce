"""Set-up of the slab at a start: create one, adopt the previous daemon's, or move a damaged one aside.

The daemon must deliver the messages in a slab. It therefore replaces only an empty slab, renames an unreadable one, and
refuses a slab that another daemon uses. While it holds the slab's lock, no other daemon writes to the slab. After a
power failure, the journal may replace the slab (`journal_setup.py`).

The daemon completes the transactions in the process rows of killed processes before it reads anything else in the slab.
Each chunk in use names the row of the input process that owns it.
"""

from __future__ import annotations

import logging
import os
import stat
import struct
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from bruce_mp import kernels
from bruce_mp.errors import SlabError, StartError
from bruce_mp.pipeline.stage_counts import count_by_stage, has_counts, invalidate_counts, recount
from bruce_mp.pipeline.stream_recovery import recover_stream_input
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunks import used_chunk_headers
from bruce_mp.slab.file import Geometry, Slab, create_slab, layout_version_of, lock_exclusive
from bruce_mp.slab.handover_tickets import HandoverTickets, last_completed_attempt, last_tickets
from bruce_mp.slab.landing_zone import landed_lengths
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.producer_id import reset_producer_id
from bruce_mp.slab.recovery import close_open_runs
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.runs import records_of, runs_of
from bruce_mp.slab.shares import rebuild_table
from bruce_mp.slab.spill import SpillDirectory, completed_message_count, spilled_message_count
from bruce_mp.supervisor.slab.lock_retry import retry_lock
from bruce_mp.telemetry.books import counter_total, spilled_total
from bruce_mp.telemetry.clock import wall_ms
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.logs import NOTICE, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from bruce_mp.supervisor.slab.journal_setup import JournalSetup

__all__ = ["acquire_slab", "recover_after_upgrade", "recover_inputs", "retire_row", "warn_of_other_size"]

log = logging.getLogger(__name__)


def acquire_slab(
    path: Path, size: int, largest_datagram: int, journal: JournalSetup, spill_path: Path
) -> tuple[Slab, int]:
    """Lock and map the slab at `path`. Create it, with `size` bytes for messages, if it does not exist.

    Return the slab, and the descriptor that holds its lock until the last copy of that descriptor is closed. If the
    journal replaces the slab (`JournalSetup.replaces`), create a new file. `largest_datagram` is the maximum size of a
    datagram in bytes, `spill_path` the directory of the slab's spill files. Raise SlabError if a running daemon uses
    the slab or there is no room for it, and StartError if the daemon may not use the file.
    """
    wanted = Geometry.for_size(size, largest_datagram)
    while True:
        _check_path(path)
        descriptor = retry_lock(lambda: _open_locked(path), SlabError)
        if descriptor is None:
            _create(path, wanted)
            continue  # to lock the new file
        slab = _recover_or_clear(path, wanted, journal, spill_path) if _is_still_at(path, descriptor) else None
        if slab is not None:
            return slab, descriptor
        os.close(descriptor)


def _create(path: Path, geometry: Geometry) -> None:
    try:
        create_slab(path, geometry, wall_ms())
    except SlabError:
        if not path.exists():  # if it exists, another daemon has created it first, and the caller tries to lock it
            raise


def _check_path(path: Path) -> None:
    """Raise StartError if there is a file at `path` that the daemon may not use as its slab."""
    try:
        _check_file(path, path.lstat())
    except FileNotFoundError:
        return
    except OSError as error:
        raise StartError(f"The slab {path} cannot be reached: {error.strerror}. Set another slab.path.") from error


def _check_file(path: Path, status: os.stat_result) -> None:
    """Raise StartError for a file that belongs to another user or that others can write to.

    In a directory such as `/dev/shm`, any user may create a file at the path of the slab.
    """
    if not stat.S_ISREG(status.st_mode):
        raise StartError(f"The slab {path} is not a file; set slab.path to a file.")
    if status.st_uid != os.geteuid():
        raise StartError(
            f"The slab {path} belongs to user {status.st_uid}, and the daemon runs as user {os.geteuid()}; start "
            "it as that user, change the owner of the file (chown), or set another slab.path."
        )
    if status.st_mode & 0o022:
        raise StartError(
            f"The slab {path} has mode {stat.S_IMODE(status.st_mode):04o}: others can change its messages. Forbid that "
            f"(chmod 0600 {path}) or set another slab.path."
        )


def _open_locked(path: Path) -> int | None:
    """Return a descriptor that holds the lock of the file, or None if the file does not exist."""
    try:
        descriptor = lock_exclusive(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StartError(f"The slab {path} cannot be opened: {error.strerror}.") from error
    try:
        _check_file(path, os.fstat(descriptor))  # again, because the file may have been replaced after `_check_path`
    except StartError:
        os.close(descriptor)
        raise
    return descriptor


def _is_still_at(path: Path, descriptor: int) -> bool:
    """Return True if the path still names the open file; another daemon may have removed the file before the lock."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _recover_or_clear(path: Path, wanted: Geometry, journal: JournalSetup, spill_path: Path) -> Slab | None:
    """Finish the transactions of dead processes, and return the slab. Or make way for a new slab, and return None.

    A slab that the journal replaces is moved aside, and so is a damaged one. An empty slab of another size than the
    `wanted` one is removed.
    """
    if journal.replaces(path):
        journal.move_slab_aside(path)
        return None
    _check_magic(path)
    try:
        slab = Slab(path)
        for row in range(slab.geometry.rows):
            retire_row(slab, row)
        held_count = _validate_and_count(slab)
        reset_producer_id(slab)
    except (SlabError, ValueError, IndexError, struct.error) as error:
        reason = str(error) if isinstance(error, SlabError) else f"The slab {path} is damaged."
        _move_aside(path, reason, journal)
        return None
    _count_lost_copies(slab)
    slab.store_signed(lay.SUPER_METADATA_UPDATED_MS, 0)  # 0: this daemon has fetched no metadata yet
    if held_count:
        log.log(NOTICE, "Adopted the slab %s with %s to deliver.", path, plural(held_count, "message"))
    # The journal goes first, so that a kill leaves no journal without its slab.
    if slab.geometry != wanted and not held_count and journal.remove_content_of(slab):
        SpillDirectory.for_slab(slab, spill_path).remove(slab)  # its files hold no messages
        path.unlink()
        return None
    warn_of_other_size(slab, wanted)
    return slab


def warn_of_other_size(slab: Slab, wanted: Geometry) -> None:
    """Log a warning if the slab in use has another size than the configuration sets (`wanted`).

    If only the limits of releases differ, log a notice, because the operator has changed nothing.
    """
    if slab.geometry == wanted:
        return
    old = slab.geometry
    if replace(wanted, topics=old.topics, partitions=old.partitions, rows=old.rows) == old:
        log.log(
            NOTICE,
            "The slab %s has the limits of an older release for topics, partitions and brokers; this release's apply "
            "after a restart that delivers everything.",
            slab.path,
        )
        return
    log.warning(
        "The slab %s keeps its old size until it is empty: slab.size, input.max_datagram_size and this release's "
        "limits take effect after a shutdown that delivered everything.",
        slab.path,
    )


def _check_magic(path: Path) -> None:
    """Raise StartError for a file that is not a slab.

    Otherwise the daemon would move it aside as a damaged slab; with a typo in slab.path, it may be an unrelated file.
    """
    with path.open("rb") as file:
        beginning = file.read(len(lay.SUPER_MAGIC))
    if beginning and beginning != lay.SUPER_MAGIC:
        raise StartError(
            f"{path} is not a slab; the daemon has not changed it. Set another slab.path, or, if it is a slab with a "
            "damaged beginning, move it away."
        )


def retire_row(slab: Slab, row: int) -> None:
    """Finish the transaction in the row of an ended process, and clear its pid."""
    ProcessRow.recover(slab, row)
    slab.words[(slab.row_at(row) + lay.ROW_PID) >> 2] = 0


def recover_after_upgrade(slab: Slab, input_rows: Sequence[int], spills: SpillDirectory) -> None:
    """Recover a slab after the old processes ended for an upgrade.

    The chunks are not validated, because the old processes have just used them. The row of the supervisor is left as it
    is, because the new code runs in the supervisor's process.
    """
    for row in range(slab.geometry.rows):
        if row != lay.ROW_SUPERVISOR:
            retire_row(slab, row)
    reset_producer_id(slab)
    recover_inputs(slab, input_rows, spills)
    _count_lost_copies(slab)
    slab.store_signed(lay.SUPER_METADATA_UPDATED_MS, 0)


def _count_lost_copies(slab: Slab) -> None:
    """Count as lost the copies of discarded messages that are queued for the discard file, but were never written.

    During an upgrade, the old status process may still write copies that this function has counted as lost. At the next
    call `lost` is then negative, and corrects the counter MsgCopyLost.
    """
    lost = counter_total(slab, Counter.DiscardCopyQueued) - counter_total(slab, Counter.DiscardCopySettled)
    if not lost:
        return
    # `settle` without messages is used because its transaction raises both counters or neither.
    ProcessRow(slab, lay.ROW_SUPERVISOR).settle(
        (), RunState.DISCARDED, 0, {Counter.MsgCopyLost: lost, Counter.DiscardCopySettled: lost}
    )
    if lost < 0:
        return
    log.warning(
        "The discard file lacks %s that the previous processes discarded but had not written when they ended; "
        "MsgCopyLost counts the missing lines.",
        plural(lost, "message"),
    )


def recover_inputs(slab: Slab, rows: Sequence[int], spills: SpillDirectory) -> None:
    """Finish the work of the previous daemon's inputs, and assign all used chunks to the inputs with these `rows`.

    There may be fewer inputs than before; the input of the first row then also gets the chunks of inputs that no longer
    exist. Call this before any process starts. Raise SlabError if spill files that hold messages are elsewhere.
    """
    spills.check(slab)
    spills.record(slab)
    spans = [(first_chunk, chunk_count) for first_chunk, _, chunk_count, _ in used_chunk_headers(slab)]
    owners = {slab.owner_of(chunk) for chunk, _ in spans}
    unresolved = _unresolved_rows(spills)
    for index in lay.STREAM_ROWS:
        row = ProcessRow(slab, index)
        has_spills = spilled_message_count(slab, index) or completed_message_count(slab, index)
        has_open_batch = row.version & 1  # odd from `begin_batch` until the batch is committed
        has_attempts = last_completed_attempt(slab, index) or index in unresolved
        if index in owners or has_open_batch or has_spills or has_attempts:
            recover_stream_input(slab, row, index, spills)
    close_open_runs(slab, lay.ROW_FIRST_INPUT)  # of the datagram input
    if not owners.issubset(rows):
        # `_reassign_chunks` sets a later ticket in a row, and the counts of messages by stage rely on tickets.
        invalidate_counts(slab, lay.ROW_SUPERVISOR)
        _reassign_chunks(slab, [chunk for chunk, _ in spans], rows)
    rebuild_table(slab, spans)  # the table of the inputs that own the chunks
    if not has_counts(slab):
        recount(slab)


def _unresolved_rows(spills: SpillDirectory) -> set[int]:
    """Return the stream rows whose recovery could not store the outcomes of unique attempts at an earlier start.

    If the registry still cannot be read, return none: workers recover their own rows, and a later start the others.
    """
    with suppress(OSError, SlabError):
        return spills.registry.unresolved_rows() if spills.registry.exists else set()
    return set()


def _reassign_chunks(slab: Slab, chunks: Iterable[int], rows: Sequence[int]) -> None:
    """Assign the chunks of inputs that no longer exist to the input of the row `rows[0]`, the *successor*.

    Two values in the successor's row must fit the messages that it takes over. A router ignores a run if the run's
    ticket is later than the ticket in the input's row. So the successor gets the latest ticket of the inputs that it
    replaces. The arrival numbers of a stream input begin at `counted` of its row. So the successor's `counted` becomes
    the maximum of all stream inputs.
    """
    successor, tickets = rows[0], last_tickets(slab)
    if successor in lay.STREAM_ROWS:
        # Before the chunks: after a kill in between, the next start would find messages from `counted` on in the
        # successor's chunks, and count them again. A larger `counted` alone does no harm, because all are counted.
        ProcessRow(slab, successor).commit_counted(
            max(ProcessRow(slab, index).counted for index in lay.STREAM_ROWS), {}
        )
    for owner_offset in (slab.chunk_at(chunk) + lay.CHUNK_OWNER for chunk in chunks):
        if slab.view[owner_offset] not in rows:
            HandoverTickets(slab, successor).catch_up(tickets.get(slab.view[owner_offset], 0))
            slab.view[owner_offset] = successor


def _validate_and_count(slab: Slab) -> int:
    """Return the number of held messages in the slab and in spill files. Raise an error if a chunk is damaged."""
    chunks = [(chunk, generation) for chunk, _, _, generation in used_chunk_headers(slab)]
    records_by_state = kernels.count_states(slab, chunks)
    if records_by_state[RunState.SPLIT]:  # the number of damaged runs, records and chunks
        _raise_damage(slab, chunks)
    return sum(count_by_stage(records_by_state).values()) + len(landed_lengths(slab)) + spilled_total(slab)


def _raise_damage(slab: Slab, chunks: Iterable[tuple[int, int]]) -> NoReturn:
    """Read runs, and the records of split and open runs, until a damaged one raises SlabError or ValueError."""
    for chunk, _ in chunks:
        for offset, run in runs_of(slab, chunk):
            if run.state in {RunState.SPLIT, RunState.OPEN}:
                for _, record in records_of(slab, chunk, offset, run):
                    RunState(record.word & 0xFF)  # raises ValueError for an unknown state
    raise SlabError(f"The slab {slab.path} is damaged.")


def _move_aside(path: Path, reason: str, journal: JournalSetup) -> None:
    """Rename a slab that this version cannot use, and log the `reason`, a sentence."""
    version = layout_version_of(path)
    label = "damaged" if version in {None, *lay.READABLE_VERSIONS} else f"version-{version}"
    aside = path.with_name(f"{path.name}.{label}-{wall_ms()}")
    path.rename(aside)
    log.error(
        "%s It was moved to %s, and a new slab is created; %s.",
        reason,
        aside,
        "of the messages in the old one, those in the journal are delivered"
        if journal.has_content
        else "messages in the old one are not delivered",
    )
