"""The directories of a slab for files on disk: spill files, journal, history.

Other users may have access to the parent of these directories, so each directory is open only to the daemon's user.
The default name of a directory contains the name of the slab's file, but not the slab's path.  So two daemons could
use the same directory, for slabs of the same name.  To prevent this, each directory contains a symbolic link to its
slab, and a daemon with another slab refuses the directory.  A directory without the link is from an earlier version,
and belongs to the first slab that uses it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import SlabError
from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.slab.file import Slab

__all__ = [
    "LINK",
    "check_owner",
    "create_private_directory",
    "is_foreign",
    "remove_private_directory",
    "store_directory",
    "stored_directory",
]

LINK: Final = "slab"
"""The name of the link to the slab that owns a directory."""
_GROUP_AND_OTHERS: Final = 0o077  # permission bits


def create_private_directory(path: Path, setting: str, slab: Path) -> None:
    """Create a directory for the slab at path `slab`, or check an existing directory.

    Raises OSError, and SlabError if the directory belongs to another slab or other users have access.  The message of
    SlabError names `setting`, the setting from which `path` comes.
    """
    with suppress(FileExistsError):
        path.mkdir(0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _GROUP_AND_OTHERS:
        raise SlabError(
            f"{path} is not a directory that only the daemon's user can access. Remove it, or set {setting} to a "
            "directory in which the daemon may create one."
        )
    with suppress(FileExistsError):
        (path / LINK).symlink_to(_resolved(slab))
    check_owner(path, setting, slab)


def check_owner(path: Path, setting: str, slab: Path) -> None:
    """Raise SlabError if a directory belongs to another slab than `slab`; the error message names `setting`."""
    if is_foreign(path, slab):
        raise SlabError(
            f"{path} belongs to the slab {(path / LINK).readlink()}, which has the same name as {slab}. Set {setting} "
            f"to another directory, or choose another name in slab.path. If the slab was moved, remove {path / LINK}."
        )


def is_foreign(path: Path, slab: Path) -> bool:
    """Return True if a directory has a link to another slab than `slab`."""
    try:
        return (path / LINK).readlink() != _resolved(slab)
    except OSError:
        return False


def remove_private_directory(path: Path) -> None:
    """Remove a directory that contains nothing except its link.  Raises OSError if it contains other files."""
    if list(path.iterdir()) == [path / LINK]:
        (path / LINK).unlink()
    path.rmdir()


def stored_directory(slab: Slab, field: int) -> bytes:
    """Return the path of a directory from a field of the superblock; empty if there is none, or if it is unknown."""
    length = min(slab.words[field >> 2], lay.DIRECTORY_MAX)
    return bytes(slab.view[field + 4 : field + 4 + length])


def store_directory(slab: Slab, field: int, path: bytes) -> None:
    """Store the path of a directory in a field of the superblock.  If it is too long, store an empty path."""
    slab.words[field >> 2] = 0
    if len(path) <= lay.DIRECTORY_MAX:
        slab.view[field + 4 : field + 4 + len(path)] = path
        slab.words[field >> 2] = len(path)


def _resolved(slab: Path) -> Path:
    return slab.parent.resolve() / slab.name
