"""Reading of chunks that another process owns, and may free and reopen during the read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from bruce_mp.errors import SlabError
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunks import used_chunk_headers
from bruce_mp.slab.runs import runs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Run

__all__ = ["all_runs", "read_each", "read_stable", "until_damage"]

T = TypeVar("T")


def read_each(slab: Slab, read: Callable[[int], Iterable[T]]) -> Iterator[T]:
    """Yield the items of `read(chunk)` for each chunk in use; a SlabError of `read` omits the rest of its chunk.

    If the owner reopens a chunk during the read, the items are discarded and the chunk is read again.  A chunk that its
    owner frees during the read yields nothing.
    """
    for chunk, _, _, generation in used_chunk_headers(slab):
        yield from read_stable(slab, chunk, generation, read)


def read_stable(slab: Slab, chunk: int, generation: int, read: Callable[[int], Iterable[T]]) -> list[T]:
    """Return the items of `read(chunk)` for one generation of a chunk: `generation`, or a later one after a reuse."""
    at, words = slab.chunk_at(chunk), slab.words
    for _ in range(READ_TRIES):
        found = until_damage(read(chunk))
        has_runs = words[(at + lay.CHUNK_RUNS) >> 2]  # a release stores 0 before any record is overwritten
        before, generation = generation, words[(at + lay.CHUNK_GENERATION) >> 2]
        if generation == before:
            return found if has_runs else []
    return []  # each reuse proves that the records before it were settled


READ_TRIES: Final = 3
"""The most readings of a chunk: an input hardly reuses the chunk more than twice in the time of three readings."""


def until_damage(items: Iterable[T]) -> list[T]:
    """Return the items before the first SlabError."""
    found: list[T] = []
    try:
        for item in items:
            found.append(item)  # noqa: PERF402 - list() would lose the items before the error
    except SlabError:
        pass
    return found


def all_runs(slab: Slab) -> Iterator[tuple[int, int, Run]]:
    """Yield (chunk, offset in it, header) of every run in the slab.

    The owner may free and reopen a chunk after its runs were yielded: use `read_each` to read records.
    """
    return read_each(slab, lambda chunk: ((chunk, offset, run) for offset, run in runs_of(slab, chunk)))
