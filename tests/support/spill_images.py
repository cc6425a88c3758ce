"""The state of a slab and its spill files after a process is killed at any step.

As `crash_images`, with the files: a step is a store to the slab or an operation on a file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp.slab import layout as lay
from bruce_mp.slab.attempt_registry import AttemptRegistry
from bruce_mp.slab.private_directory import LINK
from bruce_mp.slab.spill import SpillFile
from support.crash_images import CrashImages, Recorder
from support.slabs import DISPATCHER_ROW
from support.streams import WORKER_ROW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bruce_mp.slab.file import Geometry, Slab

__all__ = ["spill_images"]

Files = dict[str, bytes]

_METHODS: Final = ("append", "reserve", "remove", "_store")


def spill_images(slab: Slab, action: Callable[[], object], regions: Sequence[range] = ()) -> Iterator[tuple[int, int]]:
    """Run an action, then put slab and files into each state that a crash may leave, in turn.

    Yield for each the number of stores and of file operations before it.  Without `regions`, the stores are those of a
    stream worker and a dispatcher.
    """
    directory = Path(f"{slab.path}.spill")
    recorder = Recorder(slab, regions or _regions_of_worker_and_dispatcher(slab.geometry))
    before, states = dict(recorder.seen), [(0, _read(directory))]

    def recording(operation: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*arguments: Any, **named: Any) -> Any:
            recorder.record_stores()
            found = operation(*arguments, **named)
            states.append((len(recorder.stores), _read(directory)))
            return found

        return recorded

    with pytest.MonkeyPatch.context() as patch:
        for name in _METHODS:
            patch.setattr(SpillFile, name, recording(getattr(SpillFile, name)))
        patch.setattr(SpillFile, "create", recording(SpillFile.create))
        patch.setattr(AttemptRegistry, "_append", recording(AttemptRegistry._append))
        previous = sys.gettrace()
        sys.settrace(recorder.trace)
        try:
            action()
        finally:
            sys.settrace(previous)
        recorder.record_stores()
    yield from _each(CrashImages(slab, before, recorder.stores), directory, states)


def _regions_of_worker_and_dispatcher(geometry: Geometry) -> list[range]:
    rows = [geometry.rows_at + row * lay.ROW_BYTES for row in (WORKER_ROW, DISPATCHER_ROW)]
    return [
        range(lay.PAGE),
        *(range(row_at, row_at + lay.ROW_REDO + 4096) for row_at in rows),
        range(geometry.chunks_at, geometry.file_size),
    ]


def _each(images: CrashImages, directory: Path, states: list[tuple[int, Files]]) -> Iterator[tuple[int, int]]:
    operations = 0
    for count in range(len(images)):
        while True:
            images.restore(count)
            _write(directory, states[operations][1])
            yield count, operations
            if operations + 1 == len(states) or states[operations + 1][0] > count:
                break
            operations += 1


def _read(directory: Path) -> Files:
    return (
        {path.name: path.read_bytes() for path in directory.iterdir() if path.name != LINK}
        if directory.exists()
        else {}
    )


def _write(directory: Path, files: Files) -> None:
    directory.mkdir(0o700, exist_ok=True)
    for path in directory.iterdir():
        path.unlink()
    for name, data in files.items():
        (directory / name).write_bytes(data)
