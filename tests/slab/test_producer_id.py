"""Conditions under which a slab gets a new producer id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.slab import layout as lay
from bruce_mp.slab import producer_id
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.runs import write_placement
from bruce_mp.slab.tables import PartitionTable
from support.crash_images import crash_images
from support.slabs import Input, datagram, new_slab, set_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.slab.file import Slab

BUILT = (RunState.IN_FLIGHT, RunState.RETURNED_SENT, RunState.ROUTED_SENT, RunState.ASSIGNED_SENT)
OTHERS = (
    RunState.ROUTED,
    RunState.ASSIGNED,
    RunState.QUEUED,
    RunState.RETURNED,
    RunState.DELIVERED,
    RunState.DISCARDED,
)


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab() as made:
        partitions = PartitionTable(made)
        partitions.ensure_entry(1, 0)
        partitions.store_next_sequence(1, 0, 77, 5)
        producer_id.store_producer(made, 4711)
        yield made


def fill(slab: Slab, state: RunState, sequence: int) -> None:
    sender = Input(slab, topics=[(b"t1", 3)])
    sender.receive([datagram(), datagram()])
    segments = sender.close_all()
    for segment in segments:
        write_placement(slab, segment, 0, sequence, 0, opens_batch=True)
    set_state(slab, segments, state_word(state, 1))


def test_a_new_producer_id_starts_all_partitions_at_zero(slab: Slab) -> None:
    assert producer_id.is_idempotent(slab)
    assert slab.read_signed(lay.SUPER_PRODUCER_ID) == 4711
    assert PartitionTable(slab).epoch_and_sequence(1, 0) == (0, 0)


@pytest.mark.parametrize("state", BUILT)
def test_sequence_numbers_in_use_keep_the_producer_id(slab: Slab, state: RunState) -> None:
    fill(slab, state, 3)
    producer_id.reset_producer_id(slab)
    assert producer_id.is_idempotent(slab)


@pytest.mark.parametrize(("state", "sequence"), [*((state, -1) for state in BUILT), *((state, 3) for state in OTHERS)])
def test_idempotence_is_negotiated_again_without_sequence_numbers_in_use(
    slab: Slab, state: RunState, sequence: int
) -> None:
    fill(slab, state, sequence)
    producer_id.reset_producer_id(slab)
    assert not producer_id.is_idempotent(slab)


def test_missing_idempotence_support_is_not_remembered(slab: Slab) -> None:
    producer_id.disable_idempotence(slab)
    assert slab.words[lay.SUPER_IDEMPOTENCE >> 2] == 2
    producer_id.reset_producer_id(slab)
    assert slab.words[lay.SUPER_IDEMPOTENCE >> 2] == 0


def test_a_slab_of_an_older_version_learns_its_cluster(slab: Slab) -> None:
    assert producer_id.cluster_of(slab) == ""
    assert producer_id.is_same_cluster("", "any")
    producer_id.store_cluster(slab, "")
    assert producer_id.cluster_of(slab) == "", "brokers before 0.10.1 name none"
    long = "\N{LATIN SMALL LETTER E WITH ACUTE}" * lay.CLUSTER_ID_MAX
    for cluster in ("cluster-a", "b", long):
        producer_id.store_cluster(slab, cluster)
        assert producer_id.is_same_cluster(producer_id.cluster_of(slab), cluster)
        assert not producer_id.is_same_cluster(producer_id.cluster_of(slab), "other")


def test_the_cluster_is_known_at_each_store_of_its_present_id(slab: Slab) -> None:
    producer_id.store_cluster(slab, "cluster-a")
    images = crash_images(slab, [range(lay.PAGE)], lambda: producer_id.store_cluster(slab, "cluster-a"))
    assert {producer_id.cluster_of(slab) for _ in images} == {"cluster-a"}


@pytest.mark.parametrize(("epoch", "following"), [(5, 6), (lay.LAST_EPOCH - 1, 0), (lay.LAST_EPOCH, 0)])
def test_a_change_of_cluster_renumbers_all_partitions(slab: Slab, epoch: int, following: int) -> None:
    PartitionTable(slab).store_next_sequence(1, 0, 77, epoch)
    producer_id.change_cluster(slab, "cluster-b", 9)
    assert PartitionTable(slab).epoch_and_sequence(1, 0) == (following, 0)
    assert slab.read_signed(lay.SUPER_PRODUCER_ID) == 9
    assert (producer_id.cluster_of(slab), producer_id.cluster_change_count(slab)) == ("cluster-b", 1)
    producer_id.change_cluster(slab, "cluster-c", None)
    assert not producer_id.is_idempotent(slab)
