"""Directories that tasks and commits write to: a path, or a URI of a file system that Arrow knows."""

from __future__ import annotations

from pathlib import Path

from pyarrow.fs import FileSystem

__all__ = ["open_directory"]


def open_directory(uri: str) -> tuple[FileSystem, str]:
    """The file system and the directory in it, which is made if it is not there.  Raises OSError or ValueError."""
    system, root = FileSystem.from_uri(uri if "://" in uri else Path(uri).absolute().as_uri())
    system.create_dir(root, recursive=True)
    return system, root.rstrip("/")
