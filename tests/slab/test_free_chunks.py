"""The choice of the next span; `test_chunks.py` tests it in the pool, against a model."""

from __future__ import annotations

import random
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import pytest

from support.variants import VARIANTS, chunk_pool_of

if TYPE_CHECKING:
    from bruce_mp.slab.free_chunks import FreeChunks

CHUNKS: Final = 4096
of_both_variants: Final = pytest.mark.parametrize("variant", VARIANTS)
"""Marks tests that replace no array, of which a compiled object knows the address."""


class CountingArray(bytearray):
    """A bytearray that counts the bytes which the searches for more than one byte read."""

    read_count = 0

    def find(self, wanted: Any, first: int = 0, stop: int | None = None) -> int:  # type: ignore[override]
        stop = len(self) if stop is None else stop
        found = super().find(wanted, first, stop)
        if not isinstance(wanted, int):
            self.read_count += (stop if found < 0 else found + len(wanted)) - first
        return found


def all_free(chunk_count: int, variant: str = "pure") -> FreeChunks:
    free: FreeChunks = chunk_pool_of(variant).free_chunks_type(chunk_count)
    free.add_share(range(chunk_count))
    return free


def use_next(free: FreeChunks, span: int) -> int | None:
    chunk = free.next_span(span)
    if chunk is not None:
        free.use(chunk, span)
    return chunk


def test_the_cost_of_a_span_does_not_depend_on_the_number_of_used_chunks() -> None:
    free = all_free(CHUNKS)
    free.use(0, CHUNKS - 400)
    free._used = used = CountingArray(free._used)
    for _ in range(100):
        assert use_next(free, 2) is not None
        assert free.count_spans(2, 50) == 50
    assert used.read_count < 4 * CHUNKS


def test_a_search_in_vain_is_repeated_only_after_the_release_of_a_span_that_is_long_enough() -> None:
    free = all_free(CHUNKS)
    assert [use_next(free, 2) for _ in range(CHUNKS // 2)] == list(range(0, CHUNKS, 2))
    for chunk in range(0, CHUNKS, 4):
        free.release(chunk, 2)
    free._used = used = CountingArray(free._used)
    assert {free.next_span(3) for _ in range(100)} == {None}
    for chunk in (0, 4, 8):
        free.use(chunk, 2)
        free.release(chunk, 2)
        assert free.next_span(3) is None
    assert used.read_count < 2 * CHUNKS
    free.release(10, 2)
    assert free.next_span(6) == 8


@of_both_variants
def test_released_spans_are_used_again_before_other_free_chunks(variant: str) -> None:
    free = all_free(64, variant)
    spans = [(use_next(free, span) or 0, span) for span in (1, 3, 3, 1)]
    for chunk, span in spans:
        free.release(chunk, span)
    assert [use_next(free, span) for span in (3, 1, 3, 1)] == [4, 7, 1, 0]


@of_both_variants
def test_a_search_continues_behind_the_last_span_and_ends_with_the_chunks_before_it(variant: str) -> None:
    free = all_free(64, variant)
    assert [use_next(free, 16) for _ in range(3)] == [0, 16, 32]
    free.release(0, 16)
    assert [use_next(free, 8) for _ in range(5)] == [48, 56, 0, 8, None]
    free.release(16, 16)
    assert use_next(free, 8) == 16


@of_both_variants
def test_spans_around_the_place_of_the_last_search_are_counted(variant: str) -> None:
    free = all_free(16, variant)
    assert use_next(free, 4) == 0
    assert free.search(3) == 4
    free.release(0, 4)
    assert free.count_spans(8, 9) == 2


@of_both_variants
def test_a_release_that_joins_chunks_to_an_absent_length_ends_the_absence(variant: str) -> None:
    """Also at the first and the last chunk; a release that joins too few chunks does not."""
    for absent in ((0, 1, 2), (61, 62, 63)):
        free = all_free(64, variant)
        free.use(0, 64)
        free.release(30, 2)
        assert free.next_span(3) is None
        found = []
        for chunk in absent:
            free.release(chunk, 1)
            found.append(free.next_span(3))
        assert found == [None, None, absent[0]]


@of_both_variants
@pytest.mark.parametrize("seed", range(20))
def test_unclaimed_shares_complete_the_first_possible_span(variant: str, seed: int) -> None:
    draw, share, span = random.Random(seed), 4, 6
    free = all_free(64, variant)
    for chunk in range(64):
        if draw.random() < 0.3:
            free.use(chunk, 1)
    for chunk in range(64 - span + 1):  # this input has no such span
        if not any(free._used[chunk : chunk + span]):
            free.use(chunk, 1)
    unclaimed = [number for number in range(16) if draw.random() < 0.4]
    possible = bytearray(free._used)
    for number in unclaimed:
        possible[number * share : number * share + share] = bytes(share)
        free._used[number * share : number * share + share] = b"\1" * share
    runs = [[number for _, number in run] for _, run in groupby(enumerate(unclaimed), lambda each: each[1] - each[0])]
    ranges = [range(run[0] * share, run[-1] * share + share) for run in runs]
    found = possible.find(bytes(span))
    assert free.search_with(ranges, span) == (None if found < 0 else found)
