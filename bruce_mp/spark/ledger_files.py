"""List the files of a ledger, and merge them into fewer.

A commit writes one small file, and a stream may commit each second.  So the commits of 256 neighbouring micro-batches
of a query are merged into one file, and 256 such files into a larger one.  A merged file is named after its first and
last batch.  Files of batch jobs are merged by the minutes of their modification instead of batch numbers.

No lock is needed.  A span is merged only when no file can be added to it: the query has committed a later batch, or an
hour has passed.  So two processes that merge a span write the same file.  A file in the span of a wider one is
*covered*: readers ignore it, and it stays for an hour, because a reader may have listed it.  Files of named runs
(`runId`) are never merged, because the run may be repeated and then replaces its file.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bruce_mp.spark.ledger import write_whole
from bruce_mp.spark.storage import list_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyarrow.fs import FileInfo, FileSystem

__all__ = ["SPANS", "Merged", "merge_ledger", "visible_files"]

SPANS: Final = (256, 65_536)
"""Batches, or minutes of batch jobs, in a merged file."""
_KEEP_S: Final = 3600  # an audit that began before the merge may still read the merged files
_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NAME: Final = re.compile(rf"(?:(?P<series>{_UUID}|jobs)-(?P<first>\d+)(?:-(?P<last>\d+))?|{_UUID})\.json")
_JOBS: Final = "jobs"


@dataclass(frozen=True, slots=True)
class _LedgerFile:
    """A file with the commits `first` to `last` of a series: the batches of a query, or the minutes of batch jobs."""

    path: str
    written_s: float
    series: str
    first: int
    last: int

    @property
    def width(self) -> int:
        return self.last - self.first + 1

    def covers(self, other: _LedgerFile) -> bool:
        return self.series == other.series and self.width > other.width and self.first <= other.first <= self.last


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a merge: numbers of files."""

    merged: int
    written: int
    removed: int


def visible_files(uri: str, changed_after_s: float = 0) -> list[str]:
    """Return the names of the ledger's valid files that were written after a time."""
    _, listed = list_files(uri)
    covered = {file.path for file, _ in _covered(_parse_all(listed))}
    return sorted(
        entry.base_name
        for entry in listed
        if entry.base_name.endswith(".json") and entry.path not in covered and entry.mtime_ns >= changed_after_s * 1e9
    )


def merge_ledger(uri: str) -> Merged:
    """Merge the files of complete spans, and remove covered files after an hour."""
    merged = written = 0
    for span in SPANS:
        system, listed = list_files(uri)
        for path, parts in _complete_spans(_parse_all(listed), span):
            write_whole(system, path, (_read(system, part.path) for part in parts))
            merged, written = merged + len(parts), written + 1
    system, listed = list_files(uri)
    outdated = [file.path for file, cover in _covered(_parse_all(listed)) if cover.written_s < time.time() - _KEEP_S]
    for path in outdated:
        system.delete_file(path)
    return Merged(merged, written, len(outdated))


def _parse_all(listed: Iterable[FileInfo]) -> list[_LedgerFile]:
    return [file for entry in listed if (file := _parse(entry)) is not None]


def _parse(entry: FileInfo) -> _LedgerFile | None:
    """Return the file with its span; None for a name without one, such as that of a named run."""
    match = _NAME.fullmatch(entry.base_name)
    if match is None:
        return None
    written_s = entry.mtime_ns / 1e9
    if match["series"] is None:
        minute = int(written_s // 60)
        return _LedgerFile(entry.path, written_s, _JOBS, minute, minute)
    first = int(match["first"])
    return _LedgerFile(entry.path, written_s, match["series"], first, int(match["last"] or first))


def _covered(files: list[_LedgerFile]) -> Iterator[tuple[_LedgerFile, _LedgerFile]]:
    """Yield each covered file and its widest cover."""
    covers: dict[tuple[str, int, int], _LedgerFile] = {}
    for file in files:
        if file.width in SPANS:
            covers[file.series, file.width, file.first // file.width] = file
    for file in files:
        for span in reversed(SPANS):
            cover = covers.get((file.series, span, file.first // span))
            if cover is not None and cover.covers(file):
                yield file, cover
                break


def _complete_spans(files: list[_LedgerFile], span: int) -> Iterator[tuple[str, list[_LedgerFile]]]:
    """Yield the path of each merged file to write, and its parts in order."""
    newest = {_JOBS: int((time.time() - _KEEP_S) // 60)}
    for file in files:
        if file.series != _JOBS:
            newest[file.series] = max(newest.get(file.series, 0), file.last)
    covered = {file.path for file, _ in _covered(files)}
    groups: dict[tuple[str, int], list[_LedgerFile]] = {}
    for file in files:
        if file.path not in covered and file.width < span:
            groups.setdefault((file.series, file.first // span), []).append(file)
    for (series, number), parts in groups.items():
        first, last = number * span, (number + 1) * span - 1
        if len(parts) > 1 and newest[series] > last:
            root = parts[0].path.rpartition("/")[0]
            yield f"{root}/{series}-{first}-{last}.json", sorted(parts, key=lambda part: (part.first, part.path))


def _read(system: FileSystem, path: str) -> bytes:
    with system.open_input_stream(path) as file:
        return bytes(file.readall())
