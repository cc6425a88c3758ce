"""Write the archives of a release so that their bytes depend on the files' contents, names and execute bits only.

    scripts/release_archive.py sdist ARCHIVE DIRECTORY    write the files of a source distribution into a new archive
    scripts/release_archive.py chart CHART DIRECTORY      pack the files of a Helm chart

The new archive is in DIRECTORY. All times in it are $SOURCE_DATE_EPOCH. (`helm package` would write the present time.)
"""

from __future__ import annotations

import gzip
import io
import os
import re
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EXECUTE: Final = 0o111  # bits of a file's mode


class Member(NamedTuple):
    """A file in an archive."""

    name: str
    content: bytes
    is_executable: bool


def write_archive(target: Path, members: Iterable[Member], epoch: int) -> None:
    """Write a compressed tar archive of these files, in the order of their names, with `epoch` as the time of each."""
    with (
        target.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for member in sorted(members):
            info = tarfile.TarInfo(member.name)
            info.size, info.mtime = len(member.content), epoch
            info.mode = 0o755 if member.is_executable else 0o644
            archive.addfile(info, io.BytesIO(member.content))


def members_of_archive(path: Path) -> Iterator[Member]:
    with tarfile.open(path) as archive:
        for info in archive:
            file = archive.extractfile(info)
            if file is not None:
                yield Member(info.name, file.read(), bool(info.mode & EXECUTE))


def members_of_chart(chart: Path) -> Iterator[Member]:
    """Yield the files of a Helm chart; their names begin with the chart's name as the directory."""
    for path in chart.rglob("*"):
        if path.is_file():
            name = f"{chart.name}/{path.relative_to(chart).as_posix()}"
            yield Member(name, path.read_bytes(), bool(path.stat().st_mode & EXECUTE))


def chart_archive_name(chart: Path) -> str:
    """Return the archive name that Helm expects."""
    found = re.search(r"^version: (.*)$", (chart / "Chart.yaml").read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{chart}/Chart.yaml has no version")
    return f"{chart.name}-{found[1]}.tgz"


def main(kind: str, source: Path, directory: Path) -> None:
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    if kind == "sdist":
        write_archive(directory / source.name, members_of_archive(source), epoch)
    else:
        write_archive(directory / chart_archive_name(source), members_of_chart(source), epoch)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
