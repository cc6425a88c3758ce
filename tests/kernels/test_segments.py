"""Claims, state words and cuts of segments."""

from __future__ import annotations

import struct
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp import kernels
from bruce_mp.errors import SlabError
from bruce_mp.kernels import (
    assign_sequences,
    bind_partition,
    claim,
    claim_runs,
    encode,
    messages,
    pack_segments,
    split_at,
    split_by_partition,
    split_by_size,
    time_range,
    write_sequence,
)
from bruce_mp.protocol.client.messages import Message
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.recovery import BuiltBatch
from bruce_mp.slab.rows import Move
from bruce_mp.slab.runs import Record, Segment, read_run, segment_records, segment_words, unpack_segments
from bruce_mp.slab.tables import PartitionTable
from support.crash_images import crash_images, machine_images
from support.examples import examples
from support.slabs import DISPATCHER_ROW, Input, datagram, new_slab, set_state

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import ProcessRow

MINE = state_word(RunState.ROUTED, 1)
BUILD: Final = Move(MINE, state_word(RunState.IN_FLIGHT, 4), lay.FLOW_SENT)
payloads = st.lists(st.integers(0, 400), min_size=1, max_size=12)
partition_keys = st.lists(st.sampled_from([0, 1, 2, 7, 2**31, 2**32 - 1]), min_size=1, max_size=12)


def one_run(slab: Slab, datagrams: list[bytes]) -> Segment:
    """Fill a run that the router holds, of a topic without a number, so that it mixes keys."""
    sender = Input(slab)
    sender.receive(datagrams)
    segments = claim(slab, sender.close_all(), RunState.FILLED, MINE)
    [segment] = segments
    return segment


def of_sizes(slab: Slab, sizes: list[int]) -> Segment:
    return one_run(slab, [datagram(value=bytes([index]) * size) for index, size in enumerate(sizes)])


def records(slab: Slab, segment: Segment) -> list[Record]:
    return [record for _, record in segment_records(slab, segment)]


def arrivals(slab: Slab, segment: Segment) -> list[int]:
    return [record.arrival for record in records(slab, segment)]


def is_split(slab: Slab, segment: Segment) -> bool:
    return read_run(slab, segment.chunk, segment.run).state is RunState.SPLIT


def check_parts(slab: Slab, whole: Segment, parts: list[Segment]) -> None:
    """Check that parts cover the whole in order, and that each can be claimed separately."""
    assert [arrival for part in parts for arrival in arrivals(slab, part)] == list(range(whole.records))
    assert all(part.payload == sum(r.key_length + r.value_length for r in records(slab, part)) for part in parts)
    assert is_split(slab, whole) == (len(parts) > 1)
    places = [at for part in parts for at in segment_words(slab, part)]
    assert len(places) == len(set(places))
    assert claim(slab, parts, MINE, MINE) == parts


def test_claimed_runs_have_the_fields_of_their_headers() -> None:
    with new_slab() as slab:
        sender, held = Input(slab, topics=[(b"t1", 4), (b"t2", 4), (b"t3", 1)]), state_word(RunState.QUEUED, 2)
        sender.now_ms = 70
        for topic, key in ((b"t1", 5), (b"t2", None), (b"t3", None)):
            sender.receive([datagram(topic, b"v" * 9, partition_key=key)] * 2)
        whole, split, damaged = claim(slab, sender.close_all(), RunState.FILLED, MINE)
        parts = [part for part in split_at(slab, split, 1, 100) if part is not None]
        bind_partition(slab, [whole, *parts, damaged], [1, 2, 3, 0])
        slab.words[(slab.chunk_at(damaged.chunk) + damaged.run + lay.RUN_SIZE) >> 2] += 4
        runs, [error] = claim_runs(slab, [whole, *parts, damaged, whole], MINE, held)
        assert runs == [
            (whole, 1, 1, 1, 2, 18, 70),
            (parts[0], 2, 2, 0, 1, 9, 70),
            (parts[1], 2, 3, 0, 1, 9, 70),
        ]
        assert f"chunk {damaged.chunk} " in str(error)
        assert claim_runs(slab, [whole, *parts], held, MINE) == (runs, [])


@examples(30)
@given(sizes=payloads, count=st.integers(0, 13), limit=st.integers(0, 2500))
def test_split_at_takes_as_many_records_as_fit(sizes: list[int], count: int, limit: int) -> None:
    with new_slab() as slab:
        whole = of_sizes(slab, sizes)
        head, rest = split_at(slab, whole, count, limit)
        check_parts(slab, whole, [part for part in (head, rest) if part])
        taken = head.records if head else 0
        assert taken <= count
        assert sum(sizes[:taken]) <= limit
        assert taken in {len(sizes), count} or sum(sizes[: taken + 1]) > limit


@examples(30)
@given(keys=partition_keys, partitions=st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_split_by_partition_uses_the_unsigned_key(keys: list[int], partitions: list[int]) -> None:
    with new_slab() as slab:
        whole = one_run(slab, [datagram(partition_key=key) for key in keys])
        parts = split_by_partition(slab, whole, partitions)
        check_parts(slab, whole, [part for _, part in parts])
        assert [p for p, part in parts for _ in arrivals(slab, part)] == [partitions[k % len(partitions)] for k in keys]
        assert all(before != after for (before, _), (after, _) in pairwise(parts))


def test_a_lane_of_one_key_is_not_walked_or_split(slab: Slab) -> None:
    sender = Input(slab, topics=[(b"t1", 3)])
    sender.receive([datagram(partition_key=key) for key in (4, 1, 7)])
    [segment] = sender.close_all()
    assert split_by_partition(slab, segment, [7, 8, 9]) == [(8, segment)]
    assert [partition for partition, _ in split_by_partition(slab, segment, [7, 8])] == [7, 8]
    assert is_split(slab, segment)


@examples(40)
@given(sizes=payloads, limit=st.integers(0, 400))
def test_by_size_separates_fitting_from_oversized_records(sizes: list[int], limit: int) -> None:
    with new_slab() as slab:
        whole = of_sizes(slab, sizes)
        parts = split_by_size(slab, whole, limit)
        check_parts(slab, whole, [part for _, part in parts])
        assert [(fits, part.records) for fits, part in parts] == [
            (fits, len(list(group))) for fits, group in groupby(size <= limit for size in sizes)
        ]


def test_a_part_can_be_split_again(slab: Slab) -> None:
    whole = of_sizes(slab, [10] * 9)
    head, rest = split_at(slab, whole, 6, 1000)
    assert head
    assert rest
    first, second = split_at(slab, head, 2, 1000)
    assert first
    assert second
    check_parts(slab, whole, [first, second, rest])
    set_state(slab, [second], state_word(RunState.QUEUED, 5))
    assert claim(slab, [whole], MINE, MINE) == []
    assert claim(slab, [second], state_word(RunState.QUEUED, 5), MINE) == [second]
    assert claim(slab, [whole], MINE, MINE) == [whole]


def test_bind_partition_binds_each_segment_without_sequence_numbers(slab: Slab) -> None:
    whole = of_sizes(slab, [1] * 6)
    [(_, cut), (_, rest)] = split_by_partition(
        slab, one_run(slab, [datagram(partition_key=key) for key in (0, 1, 1)]), [5, 6]
    )
    write_sequence(slab, [whole, cut, rest], 9, 100, 3, opens_batch=True)
    bind_partition(slab, [whole, rest], [7, 2])
    run = read_run(slab, whole.chunk, whole.run)
    assert (run.partition, run.sequence, run.epoch, run.flags) == (7, -1, -1, 0)
    assert [(record.partition, record.sequence) for record in records(slab, cut)] == [(9, 106)]
    assert [(record.partition, record.sequence, record.epoch) for record in records(slab, rest)] == [(2, -1, -1)] * 2
    with pytest.raises(SlabError):
        bind_partition(slab, [whole._replace(generation=whole.generation + 1)], [1])
    with pytest.raises(ValueError, match="shorter"):
        bind_partition(slab, [whole, rest], [1])


def test_a_repeated_doorbell_claims_once(slab: Slab) -> None:
    whole = of_sizes(slab, [1, 2])
    assigned = state_word(RunState.ASSIGNED, 3)
    assert claim(slab, [whole, whole], MINE, assigned) == [whole]
    assert claim(slab, [whole], MINE, assigned) == []
    assert claim(slab, [whole], state_word(RunState.ASSIGNED, 4), MINE) == []


def test_claim_skips_invalid_segments(slab: Slab) -> None:
    whole = of_sizes(slab, [1, 2])
    bad = [
        whole._replace(chunk=2**32 - 1),
        whole._replace(run=2**32 - 8),
        whole._replace(run=whole.run + 8),
        whole._replace(first=whole.first + 8),
        whole._replace(records=1),
        whole._replace(records=0),
        whole._replace(generation=whole.generation - 1),
    ]
    assert claim(slab, [*bad, whole], MINE, MINE) == [whole]
    runs, errors = claim_runs(slab, [*bad, whole], MINE, MINE)
    assert ([segment for segment, *_ in runs], errors) == ([whole], [])
    for segment in bad:
        with pytest.raises(SlabError):
            set_state(slab, [segment], MINE)


def test_every_kernel_refuses_a_segment_of_an_older_generation(slab: Slab) -> None:
    sender = Input(slab, topics=[(b"t1", 3)])
    sender.receive([datagram(value=b"old")])
    [old] = sender.close_all()
    set_state(slab, [old], RunState.DELIVERED)
    new = None
    while new is None or new.chunk != old.chunk:
        sender.receive([datagram(value=b"new")])
        [new] = sender.close_all()
    assert new == old._replace(generation=new.generation)
    assert claim(slab, [old], RunState.FILLED, MINE) == []
    assert claim_runs(slab, [old], RunState.FILLED, MINE) == ([], [])
    for refused in (
        lambda: set_state(slab, [old], MINE),
        lambda: encode(slab, [old]),
        lambda: split_at(slab, old, 1, 1),
        lambda: split_by_size(slab, old, 1),
        lambda: time_range(slab, old),
        lambda: messages(slab, old, b"t", 1),
        lambda: split_by_partition(slab, old, [1, 2]),
    ):
        with pytest.raises(SlabError):
            refused()
    assert claim(slab, [new], RunState.FILLED, MINE) == [new]


def test_time_range_and_messages_read_a_segment(slab: Slab) -> None:
    sender = Input(slab)
    stamps = [5, -(2**63), 2**63 - 1]
    sender.receive([datagram(value=b"value", key=b"key", timestamp=stamp) for stamp in stamps])
    [segment] = sender.close_all()
    assert time_range(slab, segment) == (min(stamps), max(stamps))
    for size, key, value in ((0, b"", b""), (4, b"key", b"valu"), (100, b"key", b"value"), (None, b"key", b"value")):
        assert messages(slab, segment, b"t", size) == [Message(b"t", value, key, stamp, None) for stamp in stamps]


def test_messages_have_their_partition_keys(slab: Slab) -> None:
    segment = one_run(slab, [datagram(value=b"v", partition_key=key) for key in (0, 2**32 - 1)])
    assert [message.partition_key for message in messages(slab, segment, b"t", None)] == [0, 2**32 - 1]


def entry_of(slab: Slab, sequence: int, epoch: int) -> int:
    """Return the file offset of the table entry of topic 1's partition 3."""
    table = PartitionTable(slab)
    table.ensure_entry(1, 3)
    table.store_next_sequence(1, 3, sequence, epoch)
    return table.entry_at(1, 3)


def numbers(slab: Slab, segment: Segment) -> list[tuple[int, int, int]]:
    """Return (partition, sequence, epoch) of the records of a split run."""
    return [(record.partition, record.sequence, record.epoch) for record in records(slab, segment)]


def row_of(slab: Slab) -> ProcessRow:
    return kernels.ProcessRow(slab, DISPATCHER_ROW)


@pytest.mark.parametrize("first", [0, 2**31 - 2])
def test_sequence_numbers_of_batches_are_consecutive(slab: Slab, first: int) -> None:
    whole = of_sizes(slab, [1] * 5)
    head, rest = split_at(slab, whole, 3, 1000)
    assert head
    assert rest
    entry, end = entry_of(slab, first, 7), 2**31
    batches = [(entry, 1, 3, [head]), (entry, 1, 3, [rest])]
    assert assign_sequences(slab, row_of(slab), batches, BUILD, is_numbered=True) == [
        BuiltBatch(1, 3, 7, first, (head,)),
        BuiltBatch(1, 3, 7, (first + 3) % end, (rest,)),
    ]
    assert numbers(slab, head) + numbers(slab, rest) == [
        (3, (first + write_sequence) % end, 7) for write_sequence in range(5)
    ]
    opening = [record.flags & lay.FLAG_BATCH_START for part in (head, rest) for record in records(slab, part)]
    assert [bool(flag) for flag in opening] == [True, False, False, True, False]
    assert claim(slab, [head, rest], BUILD.after, MINE) == [head, rest]
    assert PartitionTable(slab).epoch_and_sequence(1, 3) == (7, (first + 5) % end)


IMAGES: Final = {"pure": crash_images, "compiled": machine_images}


@pytest.mark.process
def test_a_kill_at_any_store_finds_sequences_before_states(slab: Slab, with_variant: str) -> None:
    cut, whole = of_sizes(slab, [1] * 3), of_sizes(slab, [1, 1])
    head, rest = split_at(slab, cut, 1, 1000)
    assert head
    assert rest
    entry, sent, row = entry_of(slab, 11, 7), BUILD.after, row_of(slab)
    regions = [range(entry, entry + 16)]
    regions += [range(at, at + lay.CHUNK_BYTES) for at in (slab.chunk_at(one.chunk) for one in (rest, whole))]
    outcomes = set()
    for _ in IMAGES[with_variant](
        slab, regions, lambda: assign_sequences(slab, row, [(entry, 1, 3, [rest, whole])], BUILD, is_numbered=True)
    ):
        words = [slab.words[at] for segment in (rest, whole) for at in segment_words(slab, segment)]
        run = read_run(slab, whole.chunk, whole.run)
        if sent in words:
            assert [*numbers(slab, rest), run[5:8]] == [(3, 11, 7), (3, 12, 7), (3, 13, 7)]
            assert run.flags == 0
            assert records(slab, rest)[0].flags & lay.FLAG_BATCH_START
        is_stored = PartitionTable(slab).epoch_and_sequence(1, 3) == (7, 11 + 4)
        assert is_stored or PartitionTable(slab).epoch_and_sequence(1, 3) == (7, 11)
        outcomes.add((words.count(sent), is_stored))
    assert outcomes == {(0, False), (1, False), (2, False), (3, False), (3, True)}


@pytest.mark.parametrize(("epoch", "is_numbered"), [(lay.LAST_EPOCH, True), (7, False)])
def test_unnumbered_batches_leave_the_next_sequence_unchanged(slab: Slab, epoch: int, is_numbered: bool) -> None:
    whole = of_sizes(slab, [1, 2])
    entry = entry_of(slab, 11, epoch)
    [batch] = assign_sequences(slab, row_of(slab), [(entry, 1, 3, [whole])], BUILD, is_numbered=is_numbered)
    assert batch == BuiltBatch(1, 3, -1, -1, (whole,))
    assert PartitionTable(slab).epoch_and_sequence(1, 3) == (epoch, 11)


def test_an_invalid_batch_is_skipped_and_the_next_one_numbered(slab: Slab) -> None:
    head, rest = split_at(slab, of_sizes(slab, [1] * 4), 1, 1000)
    assert head
    assert rest
    entry, before = entry_of(slab, 11, 0), numbers(slab, head)
    stale = rest._replace(generation=rest.generation + 1)
    batches = [(entry, 1, 3, [head, stale]), (entry, 1, 3, [rest])]
    found = assign_sequences(slab, row_of(slab), batches, BUILD, is_numbered=True)
    assert found == [None, BuiltBatch(1, 3, 0, 11, (rest,))]
    assert numbers(slab, head) == before
    assert claim(slab, [head], MINE, MINE) == [head]
    assert PartitionTable(slab).epoch_and_sequence(1, 3) == (0, 14)


@given(st.lists(st.builds(Segment, *[st.integers(0, 2**32 - 1)] * 6), max_size=5))
@examples(50)
def test_packed_segments_unpack_unchanged(segments: list[Segment]) -> None:
    assert unpack_segments(pack_segments(segments)) == segments


@pytest.mark.parametrize("field", range(6))
def test_a_number_that_is_too_large_cannot_be_packed(field: int) -> None:
    fields = [1] * 6
    fields[field] = 2**32
    with pytest.raises(struct.error):
        pack_segments([Segment(*[1] * 6), Segment(*fields)])
