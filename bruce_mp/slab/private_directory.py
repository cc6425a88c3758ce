"""The directories of a slab for its files on disk: spill files, journal, history.

Their parent may be open to all users, so only the daemon's user has access to them.  Their default names contain the
name of the slab's file, but not its path.  So each directory has a symbolic link to its slab, by which a daemon with
another slab of the same name rejects it.  A directory without the link is of an earlier version, and belongs to the
first slab that uses it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import SlabError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LINK", "check_owner", "create_private_directory", "is_foreign", "remove_private_directory"]

LINK: Final = "slab"
"""The name of the link to the slab that owns a directory."""
_GROUP_AND_OTHERS: Final = 0o077  # permission bits


def create_private_directory(path: Path, setting: str, slab: Path) -> None:
    """Create a directory of a slab, or check that it belongs to the slab and only the daemon's user has access.

    Raises OSError, and SlabError for a directory of another slab or with access for other users.  The error message
    names `setting`, the setting from which the path comes.
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
    """Raise SlabError if a directory belongs to another slab; the error message names `setting`."""
    if is_foreign(path, slab):
        raise SlabError(
            f"{path} belongs to the slab {(path / LINK).readlink()}, which has the same name as {slab}. Set {setting} "
            f"to another directory, or choose another name in slab.path. If the slab was moved, remove {path / LINK}."
        )


def is_foreign(path: Path, slab: Path) -> bool:
    """Return True if a directory belongs to another slab."""
    try:
        return (path / LINK).readlink() != _resolved(slab)
    except OSError:
        return False


def remove_private_directory(path: Path) -> None:
    """Remove a directory that has no files except its link.  Raises OSError if it has others."""
    if list(path.iterdir()) == [path / LINK]:
        (path / LINK).unlink()
    path.rmdir()


def _resolved(slab: Path) -> Path:
    return slab.parent.resolve() / slab.name
