"""Check the paths in the configuration, which must be absolute, and derive the default paths of files."""

from __future__ import annotations

import os
import re
from typing import Final

PATH_MAX: Final = 4095
"""Longest path in bytes: Linux's PATH_MAX without the NUL at the end."""

SOCKET_PATH_MAX: Final = 107
"""Longest path of a UNIX socket in bytes: the kernel's `sun_path` has 108 bytes, including the NUL at the end."""

LONGEST_SOCKET_NAME: Final = "dispatcher-99.ipc"  # of the sockets in a run directory
RUN_DIR_MAX: Final = SOCKET_PATH_MAX - len("/" + LONGEST_SOCKET_NAME)
"""Longest run directory in bytes, so that the paths of all sockets in it fit."""

_DEV_SHM: Final = "/dev/shm/"  # noqa: S108 - a prefix to compare with
_STATE_DIRECTORY: Final = "STATE_DIRECTORY"
_DEFAULT_DISK_DIRECTORY: Final = "/var/tmp"  # noqa: S108 - the files lie in a private directory with a checked owner

_UNSAFE_IN_NAME: Final = re.compile("[%-]")
"""Characters that `slab_path_for` escapes in the path of a run directory."""


def check_path(raw: object, max_bytes: int) -> str:
    """Return `raw` if it is an absolute path other than `/`, of at most `max_bytes` bytes; else raise ValueError."""
    if not isinstance(raw, str):
        raise ValueError  # noqa: TRY004 - a value of a wrong type is an invalid setting
    if not raw.startswith("/"):
        raise ValueError(f'"{raw}" is not an absolute path')
    if not raw.strip("/.") or "\0" in raw:
        raise ValueError(f"{raw!r} is not a usable path")
    if len(raw.encode()) > max_bytes:
        raise ValueError(f"the path has {len(raw.encode())} bytes")
    return raw


def slab_path_for(run_dir: str) -> str:
    """Return the default path of the slab for the daemon with this run directory.

    For `/run/bruce`, the path is `/dev/shm/bruce-run-bruce.slab`. Hyphens stand for slashes, so a hyphen in `run_dir`
    is escaped: two run directories never share a slab.
    """
    escaped = _UNSAFE_IN_NAME.sub(lambda match: f"%{ord(match[0]):02x}", run_dir.strip("/"))
    return f"/dev/shm/bruce-{escaped.replace('/', '-')}.slab"  # noqa: S108 - the operator may choose another place


def disk_path_for(slab_path: str, directory: str | None, suffix: str) -> str:
    """Return the directory of a slab's spill files, journal or history, named as the slab with a suffix.

    The parent is `directory`. If `directory` is None, the parent is the directory of the slab; but for a slab below
    `/dev/shm`, which is memory, the parent is systemd's `$STATE_DIRECTORY` or, if that is not set, `/var/tmp`.
    """
    slab_directory, _, name = slab_path.rpartition("/")
    if directory is None and slab_path.startswith(_DEV_SHM):
        # The variable has several directories if the unit file names several.
        first_of_list = os.environ.get(_STATE_DIRECTORY, "").partition(":")[0]
        directory = first_of_list or _DEFAULT_DISK_DIRECTORY
    return f"{directory or slab_directory}/{name}.{suffix}"
