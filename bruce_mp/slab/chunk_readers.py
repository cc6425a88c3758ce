"""Reading of chunks that another process owns.

The owner may free a chunk, and reopen it under another generation for new messages, while this process reads it.
"""

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
    """Yield the items of `read(chunk)` for each chunk in use.

    If `read` raises SlabError, only the items before the damage are yielded.  If the owner reopens the chunk during the
    read, its items are discarded and the chunk is read again.  If the owner frees the chunk, it has no items.
    """
    for chunk, _, _, generation in used_chunk_headers(slab):
        yield from read_stable(slab, chunk, generation, read)


def read_stable(slab: Slab, chunk: int, generation: int, read: Callable[[int], Iterable[T]]) -> list[T]:
    """Return the items of `read(chunk)`, all from the same generation of the chunk.

    That generation is `generation`, or a later one if the owner has reopened the chunk.
    """
    at, words = slab.chunk_at(chunk), slab.words
    for _ in range(READ_TRIES):
        found = until_damage(read(chunk))
        # To free the chunk, the owner stores 0 in CHUNK_RUNS, before any record is overwritten.
        has_runs = words[(at + lay.CHUNK_RUNS) >> 2]
        previous_generation, generation = generation, words[(at + lay.CHUNK_GENERATION) >> 2]
        if generation == previous_generation:
            return found if has_runs else []
    # The owner reopened the chunk during each reading.  It does so only after all records of the chunk are settled, so
    # none of the records that were found is still held.
    return []


READ_TRIES: Final = 3
"""Maximum number of times that a chunk is read; its owner hardly ever reopens it during each of three readings."""


def until_damage(items: Iterable[T]) -> list[T]:
    """Return the items that an iterable yields before it raises SlabError, or all items."""
    found: list[T] = []
    try:
        for item in items:
            found.append(item)  # noqa: PERF402 - list() would lose the items before the error
    except SlabError:
        pass
    return found


def all_runs(slab: Slab) -> Iterator[tuple[int, int, Run]]:
    """Yield (chunk, offset in the chunk, header) of every run in the slab.

    The owner may reopen a chunk after its runs were yielded, so a caller that also reads records uses `read_each`.
    """
    return read_each(slab, lambda chunk: ((chunk, offset, run) for offset, run in runs_of(slab, chunk)))
