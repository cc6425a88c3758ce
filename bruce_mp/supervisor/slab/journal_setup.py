"""The journal at the daemon's start and end: restore a lost slab from it, or record in it that the slab is in use.

A slab file on a disk is complete after a clean end of the daemon, and as long as the machine has not restarted since
the daemon last changed the slab. Otherwise the file may lack some of the pages that were written last, and the daemon
creates a new slab with the messages of the journal.
"""

from __future__ import annotations

import logging
import os
import shutil
from contextlib import suppress
from glob import escape
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import SlabError, StartError
from bruce_mp.journal.journal_file import Journal, JournalContent, boot_id, read_journal, sync_directory
from bruce_mp.journal.recorder import JOURNAL, JournalRecorder
from bruce_mp.journal.restorer import restore
from bruce_mp.slab import layout as lay
from bruce_mp.slab.private_directory import is_foreign, remove_private_directory, store_directory, stored_directory
from bruce_mp.slab.producer_id import store_cluster
from bruce_mp.telemetry.clock import steady_ms, wall_ms
from bruce_mp.telemetry.logs import NOTICE, plural

if TYPE_CHECKING:
    from bruce_mp.kernels import PartitionerOfTopic
    from bruce_mp.slab.file import Slab

__all__ = ["JournalSetup"]

log = logging.getLogger(__name__)

_CREATED: Final = Struct("<q")  # SUPER_CREATED_MS
_RESTORING: Final = Struct("<I")  # SUPER_RESTORING


class _SlabIdentity(NamedTuple):
    """Fields from the beginning of a slab file.

    `created_ms`, the time of the slab's creation, is the slab's id. `is_restoring` is True if a restore of messages
    from the journal into this slab has begun, but not finished.
    """

    created_ms: int
    is_restoring: bool


class JournalSetup:
    """The journal in `directory` at the start of a daemon.

    `is_kept` is False if the configuration sets no journal. An earlier daemon's journal is used all the same.
    """

    def __init__(self, directory: Path, *, is_kept: bool) -> None:
        self._directory = directory
        self._is_kept = is_kept
        self._content = self._read()

    @property
    def has_content(self) -> bool:
        """Return True if there is a journal, from which `apply` can restore messages into an empty slab."""
        return self._content is not None

    def _read(self) -> JournalContent | None:
        try:
            return read_journal(self._directory / JOURNAL)
        except OSError as error:
            raise StartError(
                f"The journal {self._directory / JOURNAL} cannot be read: {error.strerror}. It may have messages that "
                "are not in the slab: mend its permissions, or move it away."
            ) from error

    def replaces(self, slab: Path) -> bool:
        """Return True if the slab file at `slab` may lack messages that the journal has.

        The journal must have the id of this slab. But a power failure can leave zeros in place of the id in the slab
        file; such a file counts as the slab of the journal.
        """
        page = _first_page_of(slab)
        if page is None:
            return False
        identity = _identity_in(page)
        content = self._content
        if identity is not None and identity.is_restoring:
            return content is not None
        if content is None or content.is_clean or content.boot_id == boot_id():
            return False  # the slab is complete
        if identity is None:
            return not any(page)  # a page that a power failure lost is all zero; any other content is not a slab's
        return content.slab_id == identity.created_ms

    @staticmethod
    def move_slab_aside(slab: Path) -> None:
        """Rename a slab file that the journal replaces, if its disk has room for another one; otherwise remove it."""
        page = _first_page_of(slab)
        identity = None if page is None else _identity_in(page)
        if identity is not None and identity.is_restoring:
            slab.unlink()  # the journal still has all messages of a restore that did not finish
            return
        aside = slab.with_name(f"{slab.name}.unsynced-{wall_ms()}")
        # Each earlier copy raises the required free space, so that copies never fill more than half of the disk.
        copy_count = 1 + len(list(slab.parent.glob(f"{escape(slab.name)}.unsynced-*")))
        has_room = shutil.disk_usage(slab.parent).free > copy_count * slab.stat().st_size
        if has_room:
            slab.rename(aside)
        else:
            slab.unlink()
        log.log(
            NOTICE,
            "The machine stopped, and the slab %s may not be on the disk as a whole. It was %s.",
            slab,
            f"moved to {aside}; `bruce slab export` shows messages in it that the journal may lack"
            if has_room
            else "removed, because the disk has no room for another",
        )

    def remove_content_of(self, slab: Slab) -> bool:
        """Remove the journal if it belongs to this slab, which is sound and empty.

        A new slab replaces this one next. Neither `apply` nor, after a kill, the next start may restore delivered
        messages into a new slab. Return False if the journal cannot be removed, so that the slab must stay.
        """
        if self._content is not None and self._content.slab_id == slab.read_signed(lay.SUPER_CREATED_MS):
            if not self.remove(self._directory, slab.path):
                return False
            self._content = None
        return True

    def apply(self, slab: Slab, *, is_empty: bool, partitioners: PartitionerOfTopic | None) -> None:
        """Restore or move aside the journal of another slab, then begin or continue the journal of this slab.

        `is_empty` is True if this slab holds no messages; only then is the journal of another slab restored. If
        the daemon keeps no journal, remove an earlier journal of this slab.
        """
        content, self._content = self._content, None
        slab_id = slab.read_signed(lay.SUPER_CREATED_MS)
        if content is not None and content.slab_id != slab_id:  # the journal of another slab
            if is_empty:
                self._restore(slab, content, partitioners)
            else:
                self._move_journal_aside()
        if not self._is_kept:
            slab.words[lay.SUPER_RESTORING >> 2] = 0  # all messages are in the slab, so the journal is not needed
            self.remove(self._directory, slab.path)
        elif content is not None and content.slab_id == slab_id:
            self._record_use_of_slab(slab_id)
        else:
            self._write_new(slab)
        slab.words[lay.SUPER_RESTORING >> 2] = 0
        self.change_directory(slab, self._directory if self._is_kept else None)
        slab.store_signed(lay.SUPER_JOURNALED_MS, steady_ms() if self._is_kept else 0)

    @staticmethod
    def change_directory(slab: Slab, directory: Path | None) -> None:
        """Store the journal's directory in the slab; None stands for no journal.

        If the slab had its journal in another directory, remove that journal. Otherwise the old journal would replace
        the slab if the configuration named that directory again.
        """
        old_path = stored_directory(slab, lay.SUPER_JOURNAL_PATH)
        if old_path and (directory is None or not _is_same_directory(Path(os.fsdecode(old_path)), directory)):
            JournalSetup.remove(Path(os.fsdecode(old_path)), slab.path)
        store_directory(slab, lay.SUPER_JOURNAL_PATH, b"" if directory is None else bytes(directory))

    def _restore(self, slab: Slab, content: JournalContent, partitioners: PartitionerOfTopic | None) -> None:
        """Restore the messages of a journal into an empty slab."""
        slab.words[lay.SUPER_RESTORING >> 2] = 1
        if content.damaged_bytes:
            log.warning(
                "The journal %s has %s of damaged data.", self._directory, plural(content.damaged_bytes, "byte")
            )
        if content.incomplete_count:
            log.warning(
                "The journal %s has incomplete fenced attempts; %s of them will not be delivered.",
                self._directory,
                plural(content.incomplete_count, "message"),
            )
        store_cluster(slab, content.cluster_id)  # so that the router refuses to deliver the messages to another cluster
        restored_count = restore(slab, content.runs.values(), partitioners)
        if restored_count:
            log.log(
                NOTICE,
                "Restored %s from the journal %s. Those that Kafka acknowledged in the last moments are sent again.",
                plural(restored_count, "message"),
                self._directory,
            )

    def _record_use_of_slab(self, slab_id: int) -> None:
        """Record in the journal that a daemon begins to change the slab, and in which boot of the machine."""
        try:
            journal = Journal.open(self._directory / JOURNAL)
            journal.add_begin(slab_id, boot_id())
            journal.sync()
            journal.close()
        except OSError as error:
            raise _unwritable(self._directory, error) from error

    def _write_new(self, slab: Slab) -> None:
        """Write a new journal with the messages that the slab holds now."""
        try:
            JournalRecorder(slab, self._directory).rewrite()
        except OSError as error:
            raise _unwritable(self._directory, error) from error
        except SlabError as error:
            raise StartError(str(error)) from error

    def _move_journal_aside(self) -> None:
        aside = self._directory.with_name(f"{self._directory.name}.foreign-{wall_ms()}")
        self._directory.rename(aside)
        log.error(
            "The journal %s belongs to another slab, and the slab in use holds messages. It was moved to %s; its "
            "messages are not delivered. To deliver them, wait until the daemon holds no messages, shut it down, move "
            "the directory back, and start the daemon.",
            self._directory,
            aside,
        )

    @staticmethod
    def close(slab: Slab, directory: Path, *, for_1_0_0: bool = False) -> None:
        """Write a slab with messages to its file, and record in the journal that the slab file is complete.

        Call this after all processes have ended. If `for_1_0_0` is True, release 1.0.0 can read the journal.
        """
        try:
            slab.flush()
            JournalRecorder(slab, directory).rewrite(is_clean=True, for_1_0_0=for_1_0_0)
        except (OSError, SlabError) as error:
            log.error("The journal in %s cannot be written at the end: %s.", directory, error)

    @staticmethod
    def remove(directory: Path, slab: Path) -> bool:
        """Remove the journal in a directory, unless the directory belongs to another slab than the one at `slab`.

        Return False, and log an error, if there is a journal that cannot be removed. Its empty slab must then stay,
        because the next start would restore the messages into a new slab.
        """
        journal = directory / JOURNAL
        try:
            if is_foreign(directory, slab):
                return True
            journal.lstat()  # because on a read-only file system, the removal of a missing file is an error, too
            journal.unlink()
        except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a damaged path with a null byte
            pass  # there is no journal
        except OSError as error:
            log.error(
                "The journal %s cannot be removed: %s. Remove it before the next start, or the daemon may deliver its "
                "messages again.",
                journal,
                error.strerror,
                extra={"about": str(journal)},
            )
            return False
        _remove_rest(directory)
        return True


def _remove_rest(directory: Path) -> None:
    """Remove the directory of a removed journal as far as possible, and make the removals durable."""
    with suppress(OSError, ValueError):
        (directory / f"{JOURNAL}.new").unlink(missing_ok=True)
        sync_directory(directory)
        remove_private_directory(directory)
        sync_directory(directory.parent)


def _is_same_directory(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return one == other


def _first_page_of(path: Path) -> bytes | None:
    """Return the first memory page of a slab file, or None if the file cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(lay.PAGE)
    except OSError:
        return None


def _identity_in(page: bytes) -> _SlabIdentity | None:
    """Return the identity from the first page of a file, or None if the page is not that of a slab."""
    if len(page) < lay.PAGE or not page.startswith(lay.SUPER_MAGIC):
        return None
    [created_ms] = _CREATED.unpack_from(page, lay.SUPER_CREATED_MS)
    [restoring_flag] = _RESTORING.unpack_from(page, lay.SUPER_RESTORING)
    return _SlabIdentity(created_ms, restoring_flag == 1)


def _unwritable(directory: Path, error: OSError) -> StartError:
    return StartError(
        f"The journal in {directory} cannot be written: {os.strerror(error.errno or 0)}. Make room, give the "
        "daemon's user the directory and its files (chown), set another slab.journal_dir, or set slab.sync to off."
    )
