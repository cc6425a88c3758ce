"""List the files of a ledger, which records how many messages each Spark commit sent, and merge these files.

A commit writes one small file, and a stream may commit each second. So the files of 256 neighboring micro-batches of a
query are merged into one file, and 256 such files into a larger one. A merged file is named after its first and last
batch. The files of batch jobs are merged by the minute in their name instead of a batch number. The name has the minute
of the commit, because a copy of the ledger may not keep the times of files.

A range of batches is merged only when no file can be added to it: when the query has committed a batch after the range
or, for minutes of batch jobs, after an hour. So two processes that merge the same range write the same file, and no
lock is needed.

A file with a part of a merged file's range is *covered*: readers ignore it. It stays for an hour after the merge,
because a reader may have listed the files before. The file of a batch job with a `runId` is never merged, because a
repetition of the job replaces it.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import BruceError
from bruce_mp.spark.ledger import write_atomically
from bruce_mp.spark.storage import list_files, resolve_file, total_size

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from pyarrow.fs import FileInfo, FileSystem

__all__ = [
    "MERGE_WIDTHS",
    "LedgerFileError",
    "MergeResult",
    "job_file_name",
    "merge_ledger",
    "visible_files",
    "visible_paths",
]

MERGE_WIDTHS: Final = (256, 65_536)
"""The widths of merged files: a width is the number of batches, or of minutes of batch jobs, in a range."""
_GRACE_S: Final = 3600
"""Covered files stay for this time after the merge; no batch job adds a file to a minute that is so long ago."""
_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_UUID_LENGTH: Final = 36
_FILE_NAME: Final = re.compile(
    rf"(?:(?P<series>{_UUID}|jobs)-(?P<first>\d+)(?:-(?P<last>\d+)|-{_UUID})?|{_UUID})\.json"
)
"""The names of files that may be merged, and of merged files.

They are QUERY-BATCH for a micro-batch, jobs-MINUTE-UUID for a batch job (see `job_file_name`), and SERIES-FIRST-LAST
for a merged file, where SERIES is the query's id or `jobs`. Release 1.0.0 named the file of a batch job by the UUID
alone; its minute is that of the last modification, and a merged file covers it also if it has rows of the job.
"""
_UNFINISHED_NAME: Final = re.compile(r".*\.json\.[0-9a-f]+\.part")
"""The temporary names of files that `write_atomically` has not finished."""
_JOBS_SERIES: Final = "jobs"
_EMPTY: Final = "is empty"


class LedgerFileError(BruceError):
    """A file of a ledger lacks a part of its contents. A commit never leaves such a file, but a power failure may."""

    def __init__(self, path: str, fault: str) -> None:
        super().__init__(
            f"The ledger file {path} {fault}, such as after a power failure or an incomplete copy. Restore it from a "
            "copy, or move it out of the ledger: then the audit counts its messages as unknown."
        )


@dataclass(frozen=True, slots=True)
class _LedgerFile:
    """A file with the commits of batches `first` to `last` of a query or, in the series `jobs`, of minutes.

    Minutes are numbered from the epoch. `modified_s` is the time of the last modification, in seconds since the epoch.
    `job_id` is set if the name has no minute.
    """

    path: str
    modified_s: float
    series: str
    first: int
    last: int
    job_id: str | None = None

    @property
    def width(self) -> int:
        return self.last - self.first + 1

    def covers(self, other: _LedgerFile) -> bool:
        return self.series == other.series and self.width > other.width and self.first <= other.first <= self.last


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The numbers of files: parts of new merged files, new merged files, and removed files, which had been covered."""

    merged: int
    written: int
    removed: int


def job_file_name(job_id: str) -> str:
    """Return the name, without `.json`, for the file of a batch job that commits now; its id is a random UUID."""
    return f"{_JOBS_SERIES}-{int(time.time() // 60)}-{job_id}"


def visible_paths(uris: Iterable[str], changed_after_s: float = 0) -> list[str]:
    """Return the paths of files that are not covered, each once; `uris` are ledgers, or files of ledgers.

    A given file is covered only by another given file, or by one in a given ledger. Unfinished files, and files last
    written before `changed_after_s`, are left out. What Arrow cannot list, such as a glob, is returned as it is. Raise
    LedgerFileError for an empty file.
    """
    names_of: dict[str, set[str] | None] = {}  # by directory; None: all files
    for uri in uris:
        name = uri.rpartition("/")[2]
        if _UNFINISHED_NAME.fullmatch(name):
            continue
        if _FILE_NAME.fullmatch(name) is None:
            names_of[f"{uri.rstrip('/')}/"] = None
        elif (names := names_of.setdefault(uri.removesuffix(name), set())) is not None:
            names.add(name)
    paths: list[str] = []
    for directory, given in names_of.items():
        try:
            paths += [f"{directory}{name}" for name in visible_files(directory, changed_after_s, given)]
        except OSError:
            path = directory.rstrip("/")
            if not total_size(path):
                raise LedgerFileError(path, _EMPTY) from None
            paths.append(path)
    return list({resolve_file(path)[1]: path for path in paths}.values())


def visible_files(uri: str, changed_after_s: float = 0, names: Collection[str] | None = None) -> list[str]:
    """Return the names of the ledger's files that are not covered; only of the files `names`, if given.

    Files last written before `changed_after_s` (seconds since the epoch) are left out. Raise LedgerFileError for an
    empty file.
    """
    system, listed = list_files(uri)
    if names is not None:
        listed = [entry for entry in listed if entry.base_name in names]
    covered = {file.path for file, _ in _find_covered(system, _parse_all(listed))}
    visible = [
        entry
        for entry in listed
        if entry.base_name.endswith(".json") and entry.path not in covered and entry.mtime_ns >= changed_after_s * 1e9
    ]
    for entry in visible:
        if entry.size == 0:
            raise LedgerFileError(entry.path, _EMPTY)
    return sorted(entry.base_name for entry in visible)


def merge_ledger(uri: str) -> MergeResult:
    """Merge the files of ranges to which no file can be added, and remove covered files after an hour.

    Raise OSError or ValueError. A range with a file that is empty or ends with a cut line remains, because the next
    file's first line would continue the cut one. Then raise LedgerFileError at the end.
    """
    merged_count = written_count = 0
    damage: LedgerFileError | None = None
    for width in MERGE_WIDTHS:
        system, listed = list_files(uri)
        for path, parts in _complete_ranges(system, _parse_all(listed), width):
            try:
                write_atomically(system, path, (_read_part(system, part.path) for part in parts))
            except LedgerFileError as error:
                damage = error
                continue
            merged_count, written_count = merged_count + len(parts), written_count + 1
    system, listed = list_files(uri)
    an_hour_ago_s = time.time() - _GRACE_S
    covered = _find_covered(system, _parse_all(listed))
    outdated_pairs = [(file, cover) for file, cover in covered if cover.modified_s < an_hour_ago_s]
    outdated = _without_late_jobs(system, outdated_pairs)
    for path in outdated:
        system.delete_file(path)
    if damage is not None:
        raise damage
    return MergeResult(merged_count, written_count, len(outdated))


def _parse_all(listed: Iterable[FileInfo]) -> list[_LedgerFile]:
    return [file for entry in listed if (file := _parse(entry)) is not None]


def _parse(entry: FileInfo) -> _LedgerFile | None:
    """Return the file with its range; None if it is never merged."""
    match = _FILE_NAME.fullmatch(entry.base_name)
    if match is None:
        return None
    modified_s = entry.mtime_ns / 1e9
    if match["series"] is None:
        minute = int(modified_s // 60)
        return _LedgerFile(entry.path, modified_s, _JOBS_SERIES, minute, minute, entry.base_name.removesuffix(".json"))
    first = int(match["first"])
    return _LedgerFile(entry.path, modified_s, match["series"], first, int(match["last"] or first))


def _find_covered(system: FileSystem, files: list[_LedgerFile]) -> Iterator[tuple[_LedgerFile, _LedgerFile]]:
    """Yield each covered file and the widest file that covers it."""
    merged_files: dict[tuple[str, int, int], _LedgerFile] = {}
    for file in files:
        if file.width in MERGE_WIDTHS:
            merged_files[file.series, file.width, file.first // file.width] = file
    rest: list[_LedgerFile] = []
    for file in files:
        for width in reversed(MERGE_WIDTHS):
            cover = merged_files.get((file.series, width, file.first // width))
            if cover is not None and cover.covers(file):
                yield file, cover
                break
        else:
            rest.append(file)
    yield from _find_covered_by_content(system, rest)


def _find_covered_by_content(system: FileSystem, files: list[_LedgerFile]) -> Iterator[tuple[_LedgerFile, _LedgerFile]]:
    """Yield each file without a minute in its name that has a job of a merged file, and the merged file.

    In a copy without the times of files, such a file seems newer than the merged file with its rows.
    """
    merged_jobs = [file for file in files if file.series == _JOBS_SERIES and file.width in MERGE_WIDTHS]
    for cover in merged_jobs:
        later_files = [file for file in files if file.job_id is not None and file.first > cover.last]
        content = _read_file(system, cover.path) if later_files else b""
        yield from ((file, cover) for file in later_files if f'"query": "{file.job_id}"'.encode() in content)


def _without_late_jobs(system: FileSystem, covered: Iterable[tuple[_LedgerFile, _LedgerFile]]) -> list[str]:
    """Return the paths of the covered files, but not of a batch job's file if the merged file lacks its rows.

    A driver whose clock is over an hour behind gives its file the name of a minute that is already merged.
    """
    contents: dict[str, bytes] = {}
    paths: list[str] = []
    for file, cover in sorted(covered, key=lambda pair: pair[1].path):
        if file.series == _JOBS_SERIES and file.width == 1:
            if cover.path not in contents:
                contents = {cover.path: _read_file(system, cover.path)}  # only one at a time, because it may be large
            job_id = file.path.removesuffix(".json")[-_UUID_LENGTH:]
            if f'"query": "{job_id}"'.encode() not in contents[cover.path]:
                continue
        paths.append(file.path)
    return paths


def _complete_ranges(
    system: FileSystem, files: list[_LedgerFile], width: int
) -> Iterator[tuple[str, list[_LedgerFile]]]:
    """Yield the path of each merged file to write, and its parts in order."""
    # the last batch of each query; for jobs the first minute to which a job may still add a file
    newest_commits = {_JOBS_SERIES: int((time.time() - _GRACE_S) // 60)}
    for file in files:
        if file.series != _JOBS_SERIES:
            newest_commits[file.series] = max(newest_commits.get(file.series, 0), file.last)
    covered = {file.path for file, _ in _find_covered(system, files)}
    groups: dict[tuple[str, int], list[_LedgerFile]] = {}
    for file in files:
        if file.path not in covered and file.width < width:
            groups.setdefault((file.series, file.first // width), []).append(file)
    for (series, index), parts in groups.items():
        first, last = index * width, (index + 1) * width - 1
        if len(parts) > 1 and newest_commits[series] > last:
            root = parts[0].path.rpartition("/")[0]
            yield f"{root}/{series}-{first}-{last}.json", sorted(parts, key=lambda part: (part.first, part.path))


def _read_part(system: FileSystem, path: str) -> bytes:
    """Return the contents of a file to merge. Raise LedgerFileError if it is empty or ends with a cut line."""
    content = _read_file(system, path)
    if not content.endswith(b"\n"):
        raise LedgerFileError(path, "ends with a cut line" if content else _EMPTY)
    return content


def _read_file(system: FileSystem, path: str) -> bytes:
    with system.open_input_stream(path) as file:
        return bytes(file.readall())
