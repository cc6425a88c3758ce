"""The slab's words with a check of each store to a state word against `TRANSITIONS`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.states import TRANSITIONS, Role
from support.slabs import SMALL, new_slab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.slab.file import Geometry, Slab

__all__ = ["CheckedWords", "checked_slab"]

_MAGIC_OFFSET: Final = lay.RUN_MAGIC_AT >> 2
_GENERATION_OFFSET: Final = lay.RUN_GENERATION >> 2
_CHUNK_GENERATION_OFFSET: Final = lay.CHUNK_GENERATION >> 2
_CHUNK_WORDS: Final = lay.CHUNK_BYTES >> 2


class CheckedWords:
    """The words of a slab.  Only Python's stores pass here; those of compiled kernels and of views do not.

    Runs that begin in later chunks of a span are not checked.
    """

    itemsize: Final = 4

    def __init__(self, slab: Slab, role: Role | None = None) -> None:
        self._words: Any = slab.words
        self._chunks_index = slab.chunks_at >> 2
        self.role = role
        """The kind of process that stores at present; None for the test itself, whose stores are not checked."""
        self.stored: set[tuple[RunState, RunState]] = set()
        """The transitions that were stored."""
        self._runs_of_records: dict[int, tuple[int, int]] = {}
        """By the index of a record's state word in a SPLIT run: the index of the run, its generation."""

    def __getitem__(self, at: Any) -> Any:
        return self._words[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        if self.role is not None and isinstance(at, int) and self._is_state_word(at):
            self._check(at, value, self.role)
        self._words[at] = value

    def __len__(self) -> int:
        return len(self._words)

    def release(self) -> None:
        self._words.release()

    @contextmanager
    def acting(self, role: Role) -> Iterator[None]:
        """Check the stores of the body as those of a process of this kind."""
        before, self.role = self.role, role
        try:
            yield
        finally:
            self.role = before

    def _is_state_word(self, at: int) -> bool:
        if at < self._chunks_index:
            return False
        if self._is_run(at):
            return True
        run, generation = self._runs_of_records.get(at, (0, 0))
        is_current = bool(run) and self._is_run(run) and self._words[run + _GENERATION_OFFSET] == generation
        return is_current and self._words[run] & 0xFF == RunState.SPLIT

    def _is_run(self, at: int) -> bool:
        """Return True if a run begins here; behind the last run, a chunk has the bytes of its earlier uses."""
        magic_at = at + _MAGIC_OFFSET
        if magic_at >= len(self._words) or self._words[magic_at] != lay.RUN_MAGIC:
            return False
        chunk_at = at - (at - self._chunks_index) % _CHUNK_WORDS
        return bool(self._words[at + _GENERATION_OFFSET] == self._words[chunk_at + _CHUNK_GENERATION_OFFSET])

    def _check(self, at: int, value: int, role: Role) -> None:
        before, after = RunState(self._words[at] & 0xFF), RunState(value & 0xFF)
        owner = TRANSITIONS[before].get(after)
        assert owner is not None, f"{before.name} -> {after.name}, stored by the {role.value}, is not in TRANSITIONS"
        assert owner is role, f"{before.name} -> {after.name} was stored by the {role.value}"
        self.stored.add((before, after))
        if after is RunState.SPLIT:
            self._add_records(at)

    def _add_records(self, run: int) -> None:
        """Record the places of a run's records, whose state words are valid from now on."""
        words = self._words
        generation, count = words[run + _GENERATION_OFFSET], words[run + (lay.RUN_COUNT >> 2)]
        name_length = words[run + (lay.RUN_NAME_LENGTH >> 2)] & 0xFFFF
        at = run + (lay.RUN_HEADER + lay.align(name_length) >> 2)
        for _ in range(count):
            self._runs_of_records[at] = run, generation
            key, value = words[at + (lay.RECORD_KEY_LENGTH >> 2)], words[at + (lay.RECORD_VALUE_LENGTH >> 2)]
            headers = words[at + (lay.RECORD_EPOCH >> 2)] >> 16  # the epoch is in the low half
            at += lay.align(lay.RECORD_HEADER + key + value + headers) >> 2


@contextmanager
def checked_slab(geometry: Geometry = SMALL, role: Role = Role.INPUT) -> Iterator[tuple[Slab, CheckedWords]]:
    """Yield a new slab to which only a process of this kind stores, and its words."""
    with new_slab(geometry) as slab:
        words = CheckedWords(slab, role)
        slab.words = words  # type: ignore[assignment]
        yield slab, words
