"""Directories that tasks and commits write to: a path, or a URI of a file system that Arrow knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

__all__ = ["absolute", "bytes_in", "open_directory"]


def absolute(place: str) -> str:
    """A path as it is from every working directory: executors have others than the driver.  A URI stays."""
    return place if "://" in place else str(Path(place).absolute())


def open_directory(uri: str) -> tuple[FileSystem, str]:
    """The file system and the directory in it, which is made if it is not there.  Raises OSError or ValueError."""
    system, root = _located(uri)
    system.create_dir(root, recursive=True)
    return system, root


def bytes_in(uri: str) -> int:
    """The size of all files in the directory and below; 0 if it is not there."""
    from pyarrow.fs import FileSelector  # noqa: PLC0415 - slow to import

    system, root = _located(uri)
    found = system.get_file_info(FileSelector(root, recursive=True, allow_not_found=True))
    return sum(entry.size or 0 for entry in found)


def _located(uri: str) -> tuple[FileSystem, str]:
    from pyarrow.fs import FileSystem  # noqa: PLC0415 - slow to import, and not needed where paths are only checked

    system, root = FileSystem.from_uri(uri if "://" in uri else Path(absolute(uri)).as_uri())
    return system, root.rstrip("/")
