"""The slab's producer id belongs to the slab's cluster after a kill of the router at any instruction."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp.config.model import Config
from bruce_mp.config.sections import Kafka
from bruce_mp.ipc.control_messages import AcceptCluster
from bruce_mp.protocol.kafka.kafka_types import ClusterMetadata
from bruce_mp.router.metadata_fetch import FetchResult
from bruce_mp.router.metadata_refresh import FetchSchedule
from bruce_mp.router.process import _RouterProcess
from bruce_mp.slab import layout as lay
from bruce_mp.slab import producer_id
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.runs import write_placement
from bruce_mp.slab.tables import PartitionTable
from bruce_mp.telemetry.clock import steady_ms
from support.crash_images import CrashImages, crash_images
from support.slabs import Input, datagram, new_slab, set_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bruce_mp.slab.file import Slab

OLD, NEW = ("cluster-a", 4711), ("cluster-b", 9)
_BUILT_EPOCH: Final = 0
_LATER_ID: Final = 12


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab() as made:
        yield made


def router(slab: Slab) -> Any:
    """The part of a router process that stores its identity."""
    return SimpleNamespace(_slab=slab, _cluster_status=SimpleNamespace(on_producer_refused=lambda _: None))


def fetched(cluster: str, number: int | None) -> FetchResult:
    return FetchResult(ClusterMetadata({}, {}, cluster_id=cluster), number)


def identities(slab: Slab, images: CrashImages) -> Iterator[tuple[str, int] | None]:
    """Yield the cluster and the producer id of each image, None if the next router requests an id."""
    for _ in images:
        found = producer_id.cluster_of(slab), slab.read_signed(lay.SUPER_PRODUCER_ID)
        yield found if producer_id.is_idempotent(slab) else None


def images_of(slab: Slab, action: Callable[[], object]) -> CrashImages:
    partitions = range(slab.geometry.partitions_at, slab.geometry.rows_at)
    return crash_images(slab, [range(lay.PAGE), partitions], action)


def test_a_killed_first_fetch_leaves_no_producer_id_without_its_cluster(slab: Slab) -> None:
    images = images_of(slab, lambda: _RouterProcess._store_identity(router(slab), fetched(*OLD)))
    assert set(identities(slab, images)) == {None, OLD}


def test_a_killed_change_leaves_no_producer_id_of_the_other_cluster(slab: Slab) -> None:
    PartitionTable(slab).ensure_entry(1, 0)
    _RouterProcess._store_identity(router(slab), fetched(*OLD))
    images = images_of(slab, lambda: producer_id.change_cluster(slab, *NEW))
    assert set(identities(slab, images)) == {None, OLD, NEW}


class AcceptingRouter:
    """The part of a router process that fetches metadata and changes the cluster; the test ends its fetches."""

    def __init__(self, slab: Slab, *, holds_everything: bool, spread_s: int = 0) -> None:
        self.schedule = FetchSchedule(random.Random(1), spread_s)
        self.applied: list[str] = []
        process = object.__new__(_RouterProcess)
        process._slab = slab
        process._row = ProcessRow(slab, lay.ROW_ROUTER)
        process._config = Config(kafka=Kafka(bootstrap_servers=("b1:9092",)))
        process._brokers, process._accepted_cluster, process._next_is_refresh = [], "", True
        parts: dict[str, Any] = {
            "_fetcher": SimpleNamespace(start=lambda *_, **__: None),
            "_core": SimpleNamespace(
                holds_everything=holds_everything,
                names_to_request=[],
                brokers_to_ask_last=[],
                on_fetch_started=self.schedule.on_started,
                on_fetch_failed=self.schedule.on_failed,
                request_fetch_now=self.schedule.set_time,
                hand_back_all=lambda _: None,
                clear_topic_ids=lambda: None,
            ),
            "_apply_metadata": lambda result, _: self.applied.append(result.metadata.cluster_id),
        }
        vars(process).update(parts)
        self.process = process
        self.start_fetch, self.on_control, self.on_fetched = process._fetch, process.on_control, process._on_fetched


def test_a_fetch_from_before_the_acceptance_of_a_cluster_changes_nothing(slab: Slab) -> None:
    """It may have asked for no producer id, or have one of the other cluster."""
    producer_id.store_cluster(slab, OLD[0])
    producer_id.store_producer(slab, OLD[1])
    some = AcceptingRouter(slab, holds_everything=True)
    some.start_fetch()
    some.on_control(AcceptCluster(NEW[0]))
    some.on_fetched(fetched(NEW[0], None))
    assert producer_id.cluster_of(slab) == OLD[0]
    assert some.schedule.due_ms == pytest.approx(steady_ms(), abs=1000)
    assert some.applied == []

    some.start_fetch()
    assert some.process._current_is_refresh  # as the first fetch was
    some.on_fetched(fetched(*NEW))
    assert (producer_id.cluster_of(slab), slab.read_signed(lay.SUPER_PRODUCER_ID)) == NEW
    assert some.applied == [NEW[0]]


def test_a_change_of_the_cluster_polls_dispatchers_without_regard_to_the_own_moment(slab: Slab) -> None:
    some = AcceptingRouter(slab, holds_everything=False, spread_s=300)
    some.on_control(AcceptCluster(NEW[0]))
    some.start_fetch()
    some.on_fetched(fetched(*NEW))
    assert some.schedule.due_ms == pytest.approx(steady_ms() + 100, abs=1000)
    assert some.applied == []


def test_built_batches_are_renumbered_under_the_id_that_follows_a_killed_change(slab: Slab) -> None:
    PartitionTable(slab).ensure_entry(1, 0)
    _RouterProcess._store_identity(router(slab), fetched(*OLD))
    put_built_batch(slab)
    images = images_of(slab, lambda: producer_id.change_cluster(slab, *NEW))
    for identity in identities(slab, images):
        if identity is None:
            producer_id.store_producer(slab, _LATER_ID)
        if identity != OLD:
            assert PartitionTable(slab).epoch_and_sequence(1, 0) > (_BUILT_EPOCH, 0)


def put_built_batch(slab: Slab) -> None:
    source = Input(slab, topics=[(b"t1", 1)])
    source.receive([datagram()])
    segments = source.close_all()
    for segment in segments:
        write_placement(slab, segment, 0, 3, _BUILT_EPOCH, opens_batch=True)
    set_state(slab, segments, state_word(RunState.RETURNED_SENT, 1))
