"""A log file that is rotated before it exceeds a size, and a limit on the total size of rotated files.

    discard.log                    the current file
    discard.log.1800000000000      a rotated file, with its rotation time in ms since the epoch

Only the daemon's user and group can read these files: the writer creates them with mode 0660 less the umask, and
removes the permissions of other users from an existing file. If the disk is full after a part of a line, the writer
removes this part. A kill or a power failure can still leave a part of the last line; the next writer ends this part
with ` cut` and a newline.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import BruceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

__all__ = ["FileWriteError", "RollingFile", "open_private"]

_MODE: Final = 0o660  # the files have message contents, so only the user and the group may read them
_DIRECTORY_MODE: Final = 0o750
_PERMISSIONS_OF_OTHERS: Final = 0o007
_CUT: Final = b" cut\n"
"""Mark at the end of a partial line. It makes the line invalid, because a line without its last fields may be valid."""
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""O_NONBLOCK: if the path names a FIFO, opening it must not wait for a reader."""


class FileWriteError(BruceError):
    """Failure to open, write or rotate a file; the text names the file and the reason."""


def open_private(path: Path) -> int:
    """Open a file for appending and return its descriptor. Raise FileWriteError."""
    try:
        path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        descriptor = os.open(path, _FLAGS, _MODE)
    except OSError as error:
        raise FileWriteError(
            f"{path} cannot be opened: {error.strerror}. Give the daemon's user the right to write there, or set "
            "another path."
        ) from error
    try:
        _revoke_others(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _revoke_others(path: Path, descriptor: int) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise FileWriteError(f"{path} is not a regular file; remove it or set another path.")
    if not status.st_mode & _PERMISSIONS_OF_OTHERS:
        return
    try:
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & ~_PERMISSIONS_OF_OTHERS)
    except OSError as error:
        raise FileWriteError(
            f"Other users can read {path}, and its owner is another user: messages are not written to it. Remove it, "
            f"or revoke the access (chmod o= {path})."
        ) from error


def _ends_with_newline(path: Path) -> bool:
    """Return True if the last byte of a file is a newline, and False also if the file cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
    except OSError:
        return False


class RollingFile:
    """Append-only file that is renamed ("rotated") before it exceeds `max_size` bytes.

    All rotated files together have at most `max_archive_size` bytes. `now_ms` is the wall clock.
    """

    def __init__(self, path: Path, max_size: int, max_archive_size: int, now_ms: Callable[[], int]) -> None:
        self.path = path
        self._max_size = max_size
        self._max_archive_size = max_archive_size
        self._now_ms = now_ms
        self._descriptor: int | None = None
        self._size = 0
        self._failed_removal: FileWriteError | None = None

    def write(self, lines: Iterable[bytes]) -> None:
        """Append lines and rotate the file as needed. Raise FileWriteError, without leaving a part of a line.

        If a rotated file cannot be removed, write the lines all the same; then `raise_failed_removal` raises the error.
        """
        for line in lines:
            self._open_with_room(len(line))
            self._append(line)

    def prepare(self) -> None:
        """Open the file, rotate it if it is full, and remove rotated files beyond the limit. Raise FileWriteError."""
        self._open_with_room(line_size=0)
        self._remove_oldest()
        self.raise_failed_removal()

    def raise_failed_removal(self) -> None:
        """Raise the error of the last removal of rotated files, but only once."""
        error, self._failed_removal = self._failed_removal, None
        if error is not None:
            raise error

    def _open_with_room(self, line_size: int) -> None:
        """Open the file, and rotate it unless it has room for the line or is empty."""
        if self._descriptor is not None and not self._is_at_path(self._descriptor):
            self.close()
        if self._descriptor is None:
            self._descriptor = open_private(self.path)
            self._size = os.fstat(self._descriptor).st_size
            if self._size and not _ends_with_newline(self.path):
                self._append(_CUT)
        if self._size and self._size + line_size > self._max_size:
            self._rotate()

    def _is_at_path(self, descriptor: int) -> bool:
        """Return False if another program, such as logrotate, has moved or removed the open file."""
        try:
            return os.path.samestat(self.path.lstat(), os.fstat(descriptor))
        except OSError:
            return False

    def _append(self, line: bytes) -> None:
        assert self._descriptor is not None
        try:
            written_bytes = os.write(self._descriptor, line)
        except OSError as error:
            raise self._close_with_error(error.strerror) from error
        if written_bytes == len(line):
            self._size += written_bytes
            return
        with suppress(OSError):
            os.ftruncate(self._descriptor, self._size)
        raise self._close_with_error("its file system has no room for a whole line: make room there")

    def _close_with_error(self, reason: str | None) -> FileWriteError:
        self.close()
        return FileWriteError(f"{self.path} cannot be written: {reason}.")

    def _rotate(self) -> None:
        self.close()
        # The new time must be later than the times of all rotated files, even after the clock was set back, because
        # `_remove_oldest` sorts by them.
        rotation_ms = max([self._now_ms(), *(self._rotation_ms(each) + 1 for each in self._rotated_files())])
        try:
            self.path.rename(self.path.with_name(f"{self.path.name}.{rotation_ms}"))
        except OSError as error:
            raise FileWriteError(f"{self.path} is full and cannot be renamed: {error.strerror}.") from error
        self._remove_oldest()
        self._open_with_room(line_size=0)

    def _remove_oldest(self) -> None:
        """Remove the oldest rotated files beyond the limit. Keep an error for `raise_failed_removal`."""
        self._failed_removal, total_bytes = None, 0
        for rotated in sorted(self._rotated_files(), key=self._rotation_ms, reverse=True):
            try:
                total_bytes += rotated.stat().st_size
                if total_bytes > self._max_archive_size:
                    rotated.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                self._failed_removal = FileWriteError(
                    f"The rotated files exceed their limit, and {rotated} cannot be removed: {error.strerror}. Remove "
                    "it, or let the daemon's user remove it: give the user the file (chown), and the right to write to "
                    "the directory."
                )
                return

    def _rotated_files(self) -> list[Path]:
        prefix = f"{self.path.name}."
        try:
            return [
                path
                for path in self.path.parent.iterdir()
                if path.name.startswith(prefix) and path.name.removeprefix(prefix).isdecimal()
            ]
        except OSError as error:
            raise FileWriteError(
                f"{self.path.parent} cannot be read, so old files stay: {error.strerror}. Let the daemon read it."
            ) from error

    def _rotation_ms(self, rotated: Path) -> int:
        return int(rotated.name.removeprefix(f"{self.path.name}."))

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
