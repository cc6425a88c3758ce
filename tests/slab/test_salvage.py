"""The reading of damaged slabs: every readable record, in order, and a sentence for each damage."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp import kernels
from bruce_mp.errors import SlabError
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry, Slab, create_slab, lock_exclusive, lock_shared
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.runs import split_run
from bruce_mp.slab.salvage import Salvage
from support.crash_images import crash_images
from support.examples import examples
from support.slabs import DISPATCHER_ROW, SMALL, Input, datagram, put_in_landing_zone, set_state, slab_file

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.slab.salvage import ChunkCounts, SalvagedRecord

ROOMY = replace(SMALL, chunks=64)  # every message of the property finds room
TOPICS = [(b"t1", 3), (b"t2", 1)]
HELD = [state for state in RunState if state not in lay.SETTLED and state is not RunState.SPLIT]
REAL = Geometry.for_size(1 << 20, 65536)
TABLES_1_0_0 = {"topics": 4096, "partitions": 32768, "rows": 96}


class Found:
    """The result of a file's salvage."""

    def __init__(self, path: Path, *, settled: bool = False, is_live: bool = False) -> None:
        salvage = Salvage(path, is_live=is_live)
        self.geometry = salvage.slab.geometry
        self.layout_version = salvage.slab.layout_version
        self.chunks: ChunkCounts = salvage.count_chunks()
        self.records: list[SalvagedRecord] = list(salvage.records(settled=settled))
        pairs = [salvage.read_body(kept) for kept in self.records]
        self.values = [pair.value for pair in pairs if pair]
        self.topics = [kept.topic for kept in self.records]
        self.zone = salvage.read_landing_zone()
        self.pending = [bytes(salvage.slab.view[item.offset : item.offset + item.length]) for item in self.zone.pending]
        self.damage = salvage.damage
        salvage.close()


def fill(path: Path, geometry: Geometry = SMALL) -> None:
    """Fill three chunks: t1 with two runs of two records, t2 with one run of one, a topic without a number."""
    create_slab(path, geometry, now_ms=0)
    slab = Slab(path)
    sender = Input(slab, linger_ms=0, topics=TOPICS)
    for batch in ([(b"t1", b"0"), (b"t1", b"1")], [(b"t2", b"2")], [(b"t1", b"3"), (b"t1", b"4")], [(b"new", b"5")]):
        sender.receive([datagram(topic, value) for topic, value in batch])
    slab.close()


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


ALL = [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_records_are_found_in_arrival_order(tmp_path: Path) -> None:
    fill(tmp_path / "slab")
    found = Found(tmp_path / "slab")
    assert found.values == ALL
    assert found.topics == [b"t1", b"t1", b"t2", b"t1", b"t1", b"new"]
    assert found.chunks == (SMALL.chunks - 3, 3, 0)
    assert found.damage == []


@examples(40)
@given(
    batches=st.lists(
        st.lists(
            st.tuples(
                st.sampled_from([b"t1", b"t2", b"new", b"\xff\n"]), st.sampled_from([0, 20, 3000]), st.booleans()
            ),
            min_size=1,
            max_size=10,
        ),
        max_size=5,
    ),
    fates=st.lists(st.tuples(st.sampled_from([*HELD, *lay.SETTLED]), st.booleans()), min_size=60, max_size=60),
    leave_open=st.booleans(),
)
def test_held_records_are_found_in_every_state(
    batches: list[list[tuple[bytes, int, bool]]], fates: list[tuple[RunState, bool]], leave_open: bool
) -> None:
    with slab_file(ROOMY) as path:
        slab = Slab(path)
        sender = Input(slab, topics=TOPICS)
        expected: dict[int, tuple[bytes, int | None, bytes, RunState]] = {}
        for batch in batches:
            base = sender.base
            for index, (topic, size, keyed) in enumerate(batch):
                expected[base + index] = (
                    topic,
                    2**32 - 1 - index if keyed else None,
                    bytes([index]) * size,
                    RunState.OPEN,
                )
            sender.receive(
                [
                    datagram(topic, value, b"key", key, timestamp=-arrival)
                    for arrival, (topic, key, value, _) in list(expected.items())[-len(batch) :]
                ]
            )
        segments = [] if leave_open else sender.close_all()
        for segment, (state, cut) in zip(segments, fates, strict=False):
            if cut:
                split_run(slab, segment.chunk, segment.run)
            set_state(slab, [segment], state_word(state, 1))
        for settled in (False, True):
            found = Found(path, settled=settled)
            assert found.damage == []
            arrivals = [kept.arrival for kept in found.records]
            assert arrivals == sorted(arrivals)
            for kept, value in zip(found.records, found.values, strict=True):
                assert (kept.topic, kept.partition_key, value) == expected[kept.arrival][:3]
                assert kept.timestamp == -kept.arrival
                assert kept.value_at - kept.key_at == 3
            by_state = [kept for kept in found.records if kept.state in lay.SETTLED]
            assert settled or not by_state
        assert len(found.records) == len(expected)
        slab.close()


def test_states_of_whole_and_split_runs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    create_slab(path, SMALL, now_ms=0)
    slab = Slab(path)
    sender = Input(slab, topics=TOPICS)
    sender.receive([datagram(b"t1", b"%d" % number) for number in range(3)] + [datagram(b"t2", b"x")])
    first, second = sender.close_all()
    split_run(slab, first.chunk, first.run)
    parts = kernels.split_at(slab, first, 1, 1000)
    assert parts[0] is not None
    set_state(slab, [parts[0]], state_word(RunState.IN_FLIGHT, 2))
    ProcessRow(slab, DISPATCHER_ROW).settle([second], RunState.DISCARDED, 10, {1: 1})
    found = Found(path, settled=True)
    states = [(kept.state, kept.reason, kept.was_built) for kept in found.records]
    assert states == [
        (RunState.IN_FLIGHT, 0, True),
        (RunState.FILLED, 0, False),
        (RunState.FILLED, 0, False),
        (RunState.DISCARDED, 10, False),
    ]
    slab.close()


def test_salvage_never_writes_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    fill(path)
    redo = SMALL.rows_at + lay.ROW_BYTES * DISPATCHER_ROW + lay.ROW_REDO
    overwrite(path, redo, b"\x01" + bytes(3) + b"\x0a")  # an unfinished transaction
    overwrite(path, lay.SUPER_TOPIC_COUNT, b"\0\0\0\0")
    before, changed = path.read_bytes(), path.stat().st_mtime_ns
    assert Found(path).values == ALL
    assert path.read_bytes() == before
    assert path.stat().st_mtime_ns == changed
    slab = Slab(path, private=True)
    slab.view[:] = bytes(len(slab.view))
    slab.close()
    assert path.read_bytes() == before


@pytest.mark.exhaustive
def test_a_crash_at_any_store_neither_loses_nor_duplicates_records(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    create_slab(path, SMALL, now_ms=0)
    slab = Slab(path)
    sender = Input(slab, topics=TOPICS)
    sender.receive([datagram(b"t1", b"a")])
    batch = [datagram(b"t1", b"b", partition_key=4), datagram(b"new", b"c"), b"malformed", datagram(b"t2", b"d")]
    put_in_landing_zone(slab, batch)
    geometry = slab.geometry
    regions = [range(geometry.rows_at, geometry.landing_slots_at), range(geometry.chunks_at, geometry.file_size)]
    settler = ProcessRow(slab, DISPATCHER_ROW)

    def work() -> None:
        sender.admit()
        segments = [segment for segment in sender.close_all() if segment.records]
        settler.settle(segments, RunState.DELIVERED, 0, {1: 5})

    held: list[int] = []
    for _ in crash_images(slab, regions, work):
        found = Found(path)
        seen = found.values + [_value(data) for data in found.pending]
        assert found.damage == []
        assert len(seen) == len(set(seen))
        assert not seen or b"a" in seen  # all of a transaction or nothing
        assert set(seen) <= {b"a", b"b", b"c", b"d", b"malformed"}
        assert len(seen) in {5, 4, 0}
        held.append(len(seen))
    assert held == sorted(held, reverse=True)
    assert set(held) == {5, 4, 0}
    slab.close()


def _value(data: bytes) -> bytes:
    return data if data == b"malformed" else data[-1:]


# --- damage ----------------------------------------------------------------------------------------------------------


def test_a_chunk_without_a_valid_header_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    fill(path)
    overwrite(path, SMALL.chunks_at + lay.CHUNK_BYTES, b"\xff\xff")
    found = Found(path)
    assert found.values == [b"0", b"1", b"3", b"4", b"5"]
    assert found.chunks == (SMALL.chunks - 3, 2, 1)
    assert found.damage == ["Chunk 1 has no valid header; it was skipped."]


def test_a_damaged_run_hides_only_later_runs_of_its_chunk(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    fill(path)
    second_run = path.read_bytes().index(b"RUN!", SMALL.chunks_at + lay.CHUNK_HEADER + lay.RUN_HEADER)
    overwrite(path, second_run, b"NUR!")
    found = Found(path)
    assert found.values == [b"0", b"1", b"2", b"5"]
    [text] = found.damage
    assert text.startswith("The run at byte ")
    assert text.endswith("of chunk 0 is damaged. It was skipped, with the rest of the chunk.")


def test_a_damaged_record_hides_only_later_records_of_its_run(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    fill(path)
    records_at = SMALL.chunks_at + lay.CHUNK_HEADER + lay.RUN_HEADER
    overwrite(path, records_at + lay.RECORD_HEADER + 8 + lay.RECORD_VALUE_LENGTH, b"\xff\xff\xff\xff")
    found = Found(path)
    assert found.values == [b"0", b"2", b"3", b"4", b"5"]
    assert [text.partition(" of chunk 0 is damaged. It was skipped")[0] for text in found.damage] == [
        f"The record at byte {lay.CHUNK_HEADER + lay.RUN_HEADER + lay.RECORD_HEADER + 8}"
    ]


def test_messages_survive_the_loss_of_their_topic_name(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    fill(path)
    overwrite(path, SMALL.topics_at + lay.TOPIC_ENTRY, bytes(lay.TOPIC_ENTRY))
    found = Found(path)
    assert found.values == ALL
    assert found.topics == [b"", b"", b"t2", b"", b"", b"new"]
    assert found.damage == ["The name of topic number 1 is lost; its messages are listed without one."]


@pytest.mark.parametrize("count", [0, 10_000, 2**32 - 1])
def test_topics_are_recounted_when_the_count_is_invalid(tmp_path: Path, count: int) -> None:
    path = tmp_path / "slab"
    fill(path)
    overwrite(path, lay.SUPER_TOPIC_COUNT, count.to_bytes(4, "little"))
    found = Found(path)
    assert set(found.topics) == {b"t1", b"t2", b"new"}
    assert found.damage == ["The superblock has an impossible number of topics; the table has 2."]


@pytest.mark.parametrize("page", [bytes(lay.PAGE), os.urandom(lay.PAGE), b"BRUCESLX"])
@pytest.mark.parametrize("largest", [10, 1000, 65536, 200_000])
@pytest.mark.parametrize("tables", [{}, TABLES_1_0_0], ids=["present", "1.0.0"])
def test_a_lost_superblock_is_reconstructed(tmp_path: Path, page: bytes, largest: int, tables: dict[str, int]) -> None:
    path = tmp_path / "slab"
    geometry = replace(Geometry.for_size(1 << 20, largest), **tables)
    fill(path, geometry)
    slab = Slab(path)
    kernels.DatagramReceiver(slab)
    put_in_landing_zone(slab, [b"one", b"two", b"three"])
    del slab
    overwrite(path, 0, page)
    found = Found(path)
    assert found.geometry == geometry
    assert found.layout_version == (1 if tables else lay.LAYOUT_VERSION)
    assert found.values == ALL
    assert set(found.topics) == {b"t1", b"t2", b"new"}
    assert found.pending == [b"one", b"two", b"three"]
    assert "is not a slab: it does not begin with BRUCESLB. It was read with 128 chunks" in found.damage[0]


@pytest.mark.parametrize(("version", "tables"), [(lay.LAYOUT_VERSION, {}), (1, TABLES_1_0_0)])
def test_an_intact_version_selects_the_geometry_of_a_damaged_superblock(
    tmp_path: Path, version: int, tables: dict[str, int]
) -> None:
    """With slots of 2 MiB, geometries of both versions fit the first chunk header; no datagram has set up the slots."""
    path = tmp_path / "slab"
    geometry = replace(Geometry.for_size(1 << 20, 2 << 20), **tables)
    fill(path, geometry)
    overwrite(path, lay.SUPER_VERSION, version.to_bytes(4, "little") + bytes(8))
    found = Found(path)
    assert found.geometry == geometry
    assert found.layout_version == version
    assert found.values == ALL


def test_a_truncated_file_is_read_up_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    fill(path)
    os.truncate(path, SMALL.chunks_at + 2 * lay.CHUNK_BYTES + 100)
    found = Found(path)
    assert found.values == [b"0", b"1", b"2", b"3", b"4"]
    assert "its superblock does not match its size. It was read with 2 chunks" in found.damage[0]


def test_an_extended_file_is_read_by_its_superblock(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    fill(path)
    os.truncate(path, SMALL.file_size + 12345)
    found = Found(path)
    assert found.values == ALL
    assert found.geometry == SMALL
    assert len(found.damage) == 1


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"", "is not a slab"), (b"x" * 10_000, "is not a slab"), (bytes(3 << 20), "is not a slab")],
)
def test_a_file_that_is_not_a_slab_is_refused(tmp_path: Path, data: bytes, text: str) -> None:
    path = tmp_path / "slab"
    path.write_bytes(data)
    with pytest.raises(SlabError, match=text):
        Salvage(path, is_live=False)


def test_a_file_truncated_before_its_chunks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    fill(path)
    os.truncate(path, SMALL.chunks_at)
    with pytest.raises(SlabError, match="does not match its size"):
        Salvage(path, is_live=False)


def test_another_layout_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    fill(path)
    overwrite(path, 8, b"\x63")
    with pytest.raises(SlabError, match=r"layout version 99; this program reads 1 and 2. Use a release of bruce"):
        Salvage(path, is_live=False)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SlabError, match="cannot be opened: No such file"):
        Salvage(tmp_path / "slab", is_live=False)


@pytest.mark.exhaustive
@examples(40)
@given(flips=st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 255)), min_size=1, max_size=20))
def test_any_damage_raises_only_slab_errors(flips: list[tuple[int, int]]) -> None:
    with slab_file() as path:
        slab = Slab(path)
        sender = Input(slab, topics=TOPICS)
        sender.receive([datagram(b"t1", bytes(300), partition_key=number) for number in range(9)] + [datagram(b"new")])
        for segment in sender.close_all()[::2]:
            split_run(slab, segment.chunk, segment.run)
        put_in_landing_zone(slab, [b"landed"])
        hot = [*range(lay.PAGE), *range(SMALL.topics_at, SMALL.topics_at + 600)]
        hot += [*range(SMALL.landing_at, SMALL.landing_at + 200)]
        hot += range(SMALL.chunks_at, SMALL.chunks_at + 6 * lay.CHUNK_BYTES)
        hot += [SMALL.rows_at + row * lay.ROW_BYTES + lay.ROW_REDO for row in range(SMALL.rows)]
        for where, bits in flips:
            slab.view[hot[where % len(hot)]] ^= bits
        slab.close()
        with suppress(SlabError):
            found = Found(path, settled=True)
            assert len(found.values) == len(found.records)


# --- living daemons --------------------------------------------------------------------------------------------------


def test_salvage_excludes_daemons_but_not_other_readers(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    create_slab(path, SMALL, now_ms=0)
    first, second = lock_shared(path), lock_shared(path)
    assert first is not None
    assert second is not None
    with pytest.raises(SlabError, match="belongs to a daemon"):
        lock_exclusive(path)
    os.close(first)
    os.close(second)
    mine = lock_exclusive(path)
    assert lock_shared(path) is None
    os.close(mine)
    with pytest.raises(SlabError, match="cannot be opened"):
        lock_shared(tmp_path / "nothing")


def test_a_record_of_a_reused_chunk_is_not_returned(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    create_slab(path, SMALL, now_ms=0)
    slab = Slab(path)
    sender = Input(slab, topics=TOPICS)
    sender.receive([datagram(b"t1", b"first"), datagram(b"t1", b"second")])
    segments = sender.close_all()
    salvage = Salvage(path, is_live=True)
    records = salvage.records()
    kept = next(records)
    assert salvage.read_body(kept) == (b"", b"first", b"")
    set_state(slab, segments, RunState.DELIVERED)
    sender.pool.allow_reclaim()
    sender.pool.reclaim(SMALL.chunks)
    for _ in range(SMALL.chunks):
        sender.pool.allocate(1, 1)
    assert salvage.read_body(kept) is None
    list(records)
    assert salvage.damage == []
    salvage.close()
    slab.close()


def test_a_transaction_of_a_live_process_stays_unfinished(tmp_path: Path) -> None:
    path = tmp_path / "slab"
    create_slab(path, SMALL, now_ms=0)
    slab = Slab(path)
    sender = Input(slab, topics=TOPICS)
    sender.receive([datagram(b"t1", b"a")])
    segments = sender.close_all()
    regions = [range(SMALL.rows_at, SMALL.landing_at), range(SMALL.chunks_at, SMALL.file_size)]
    settler = ProcessRow(slab, DISPATCHER_ROW)
    images = crash_images(slab, regions, lambda: settler.settle(segments, RunState.DELIVERED, 0, {1: 1}))
    pairs = {(len(Found(path).values), len(Found(path, is_live=True).values)) for _ in images}
    assert pairs == {(1, 1), (0, 1), (0, 0)}
    slab.close()
