"""Open, list, read and measure files; names are paths, or URIs of a file system that Arrow supports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pyarrow.fs import FileInfo, FileSystem

__all__ = ["absolute_path", "list_files", "open_directory", "read_texts", "resolve_file", "total_size"]


def absolute_path(path: str) -> str:
    """Make a path absolute, because executors have other working directories than the driver; keep a URI."""
    return path if "://" in path else str(Path(path).absolute())


def resolve_file(uri: str) -> tuple[str, Hashable]:
    """Return the path of a file without symbolic links, and an identity that all names of a local file share.

    Raise OSError or ValueError.
    """
    if "://" in uri and not uri.startswith("file://"):
        return uri, uri
    resolved = Path(_resolve_uri(uri)[1]).resolve()
    try:
        status = resolved.stat()
    except FileNotFoundError:  # a glob
        return str(resolved), resolved
    return str(resolved), (status.st_dev, status.st_ino)


def open_directory(uri: str) -> tuple[FileSystem, str]:
    """Return the file system of `uri`, and the path of the directory in this system; create a missing directory.

    Raise OSError or ValueError.
    """
    system, root = _resolve_uri(uri)
    system.create_dir(root, recursive=True)
    return system, root


def list_files(uri: str) -> tuple[FileSystem, list[FileInfo]]:
    """Return the file system, and the files directly in the directory. Raise OSError or ValueError."""
    from pyarrow.fs import FileSelector  # noqa: PLC0415 - slow to import

    system, root = _resolve_uri(uri)
    return system, [entry for entry in system.get_file_info(FileSelector(root)) if entry.is_file]


def total_size(uri: str) -> int:
    """Return the size in bytes of a file, or of all files below a directory.

    Return 1 for a directory without bytes, and for a glob, because this function does not expand globs.
    """
    from pyarrow.fs import FileSelector  # noqa: PLC0415 - slow to import

    system, path = _resolve_uri(uri)
    info = system.get_file_info(path)
    if info.is_file:
        return int(info.size or 0)
    entries = system.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
    return sum(entry.size or 0 for entry in entries) or 1


def read_texts(uri: str) -> dict[str, str]:
    """Return the text of each file in the directory by the file's name; empty if the directory does not exist."""
    try:
        system, files = list_files(uri)
    except FileNotFoundError:
        return {}
    texts = {}
    for entry in files:
        with system.open_input_stream(entry.path) as file:
            texts[entry.base_name] = file.readall().decode(errors="replace")
    return texts


def _resolve_uri(uri: str) -> tuple[FileSystem, str]:
    from pyarrow.fs import FileSystem  # noqa: PLC0415 - slow to import, and not needed for checks of paths

    system, root = FileSystem.from_uri(uri if "://" in uri else Path(absolute_path(uri)).as_uri())
    return system, root.rstrip("/")
