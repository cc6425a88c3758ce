"""Read chunks without owning them: their owner may free and reopen a chunk while it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from bruce_mp.errors import SlabError
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunks import used_heads
from bruce_mp.slab.runs import runs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Run

__all__ = ["all_runs", "read_each", "until_damage"]

T = TypeVar("T")


def read_each(slab: Slab, read: Callable[[int], Iterable[T]]) -> Iterator[T]:
    """What `read(chunk)` finds in each chunk in use, for readers that do not own the chunks.

    The owner may free and reopen a chunk while it is read: what was read then is given up and read again.  One that is
    free, or about to be, has nothing: first its runs are gone, then the beginnings of its further chunks are
    overwritten, in which there were records.  `read` may raise SlabError where it meets damage: what it found before
    that counts.
    """
    for chunk, _, _, generation in used_heads(slab):
        yield from _read_stable(slab, chunk, generation, read)


def _read_stable(slab: Slab, chunk: int, generation: int, read: Callable[[int], Iterable[T]]) -> list[T]:
    at, words = slab.chunk_at(chunk), slab.words
    for _ in range(_READ_TRIES):
        found = until_damage(read(chunk))
        has_runs = words[(at + lay.CHUNK_RUNS) >> 2]
        before, generation = generation, words[(at + lay.CHUNK_GENERATION) >> 2]
        if generation == before:
            return found if has_runs else []
    # A chunk that is reopened again and again holds nothing that was there when the reading began.
    return []


_READ_TRIES: Final = 3


def until_damage(items: Iterable[T]) -> list[T]:
    """The items before one that is damaged."""
    found: list[T] = []
    try:
        for item in items:
            found.append(item)  # noqa: PERF402 - list() would lose what came before the error
    except SlabError:
        pass
    return found


def all_runs(slab: Slab) -> Iterator[tuple[int, int, Run]]:
    """(chunk, offset, run) of every run in the slab, for readers that do not own the chunks: see `read_each`.

    Only what the run's header says is sure to be of one piece; whoever reads its records as well uses `read_each`.
    """
    return read_each(slab, lambda chunk: ((chunk, offset, run) for offset, run in runs_of(slab, chunk)))
