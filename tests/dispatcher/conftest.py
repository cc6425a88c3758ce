"""A slab with the topic of most tests here, and both variants of the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.slab.tables import PartitionTable, TopicTable
from support.slabs import new_slab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.slab.file import Slab


@pytest.fixture
def slab() -> Iterator[Slab]:
    """A slab with topic t1, number 1, and its partition 0."""
    with new_slab() as made:
        TopicTable(made).add(b"t1", 1)
        PartitionTable(made).ensure_entry(1, 0)
        yield made


@pytest.fixture(autouse=True, scope="module")
def with_variant(variant: str) -> str:
    return variant
