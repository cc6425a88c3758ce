"""Recording and restoring: a new slab gets the messages that the old one held at the last recording."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp import kernels
from bruce_mp.errors import StartError
from bruce_mp.journal.journal_file import read_journal
from bruce_mp.journal.recorder import JOURNAL, JournalRecorder
from bruce_mp.journal.restorer import restore
from bruce_mp.protocol.client.key_hashes import Partitioner
from bruce_mp.slab import layout as lay
from bruce_mp.slab import producer_id
from bruce_mp.slab.fences import assign_chunk
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.handover_tickets import JournalProgress, input_progress
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.recovery import sweep
from bruce_mp.slab.runs import segment_records
from bruce_mp.slab.salvage import Salvage
from bruce_mp.telemetry.books import read_books
from support.examples import examples
from support.full_disk import files_end_at
from support.put_records import put_null_and_empty
from support.slabs import INPUT_ROW, Input, contents, datagram, new_slab, set_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.journal.journal_file import JournalContent
    from bruce_mp.slab.file import Slab

GEOMETRY: Final = Geometry(chunks=64, topics=16, partitions=16, landing_slots=32, landing_slot_size=20_000)
TOPICS: Final = ((b"t1", 3), (b"t2", 1))


class Held(NamedTuple):
    topic: bytes
    partition_key: int | None
    timestamp: int
    body: tuple[bytes, bytes, bytes]


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab(GEOMETRY) as made:
        yield made


@pytest.fixture
def keeper(slab: Slab, tmp_path: Path) -> JournalRecorder:
    return JournalRecorder(slab, tmp_path / "journal")


def content_of(directory: Path) -> JournalContent:
    content = read_journal(directory / JOURNAL)
    assert content is not None
    return content


@contextmanager
def restored(content: JournalContent, geometry: Geometry = GEOMETRY) -> Iterator[Slab]:
    with new_slab(geometry) as made:
        assert restore(made, content.runs.values(), lambda _: Partitioner.MURMUR2) == content.message_count
        yield made


def held(slab: Slab) -> list[Held]:
    """Return the held messages in order of arrival."""
    salvage = Salvage(slab.path, is_live=True)
    found = []
    for record in salvage.records():
        body = salvage.read_body(record)
        assert body is not None
        found.append(Held(record.topic, record.partition_key, record.timestamp, (body.key, body.value, body.headers)))
    salvage.close()
    return found


def test_a_new_slab_gets_the_messages_in_order_of_arrival(slab: Slab, keeper: JournalRecorder, tmp_path: Path) -> None:
    source = Input(slab, topics=TOPICS)
    source.receive([datagram(b"t1", b"%d" % number, b"key", timestamp=number) for number in range(20)])
    source.receive(
        [datagram(b"t2", b"%d" % number, partition_key=number, headers=((b"h", b"v"),)) for number in range(20)]
    )
    source.receive([datagram(b"unknown", bytes(15_000))])
    source.close_all()
    keeper.record()
    with restored(content_of(tmp_path / "journal")) as new:
        assert held(new) == held(slab)
        assert read_books(new).received == 41
        assert read_books(new).balanced


def test_null_and_empty_keys_and_values_are_restored(slab: Slab, keeper: JournalRecorder, tmp_path: Path) -> None:
    put_null_and_empty(slab)
    keeper.record()
    with restored(content_of(tmp_path / "journal")) as new:
        before, after = (options_by_arrival(each) for each in (slab, new))
    assert len(set(before)) == 6
    assert after == before


def options_by_arrival(slab: Slab) -> list[int]:
    found = [record for run in sweep(slab, {RunState.FILLED}) for _, record in segment_records(slab, run.segment)]
    return [record.options & lay.OPTIONS_OF_EMPTY for record in sorted(found, key=lambda record: record.arrival)]


def test_open_runs_and_settled_runs_are_left_out(slab: Slab, keeper: JournalRecorder, tmp_path: Path) -> None:
    source = Input(slab, topics=TOPICS)
    source.receive([datagram(b"t1", b"delivered")])
    set_state(slab, source.close_all(), RunState.DELIVERED)
    source.receive([datagram(b"t1", b"held")])
    source.close_all()
    source.receive([datagram(b"t1", b"open")])
    keeper.record()
    assert [run.record_count for run in content_of(tmp_path / "journal").runs.values()] == [1]
    with restored(content_of(tmp_path / "journal")) as new:
        assert [message.body[1] for message in held(new)] == [b"held"]


def test_a_run_stays_until_its_last_message_is_settled(slab: Slab, keeper: JournalRecorder, tmp_path: Path) -> None:
    source = Input(slab, topics=TOPICS)
    source.receive([datagram(b"t1", b"%d" % number) for number in range(3)])
    [segment] = source.close_all()
    head, tail = kernels.split_at(slab, segment, 1, 1 << 30)
    assert head is not None
    assert tail is not None
    keeper.record()
    set_state(slab, [head], RunState.DELIVERED)
    keeper.record()
    assert content_of(tmp_path / "journal").message_count == 3
    set_state(slab, [tail], RunState.DISCARDED)
    keeper.record()
    assert not content_of(tmp_path / "journal").runs


def test_the_cluster_is_on_the_disk_before_the_runs(
    slab: Slab, keeper: JournalRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper.record()
    synced: list[tuple[str, int]] = []

    def sync(_: int) -> None:
        content = content_of(tmp_path / "journal")
        synced.append((content.cluster_id, content.message_count))

    monkeypatch.setattr("bruce_mp.journal.journal_file.os.fdatasync", sync)
    source = Input(slab, topics=TOPICS)
    for cluster_id in ("cluster-a", "cluster-b"):
        producer_id.store_cluster(slab, cluster_id)
        source.receive([datagram(b"t1", b"value")])
        source.close_all()
        keeper.record()
    assert synced == [("cluster-a", 0), ("cluster-a", 1), ("cluster-b", 1), ("cluster-b", 2)]


def test_a_run_is_written_once(slab: Slab, keeper: JournalRecorder, tmp_path: Path) -> None:
    source = Input(slab, topics=TOPICS)
    source.receive([datagram(b"t1", bytes(5000))])
    source.close_all()
    keeper.record()
    size = (tmp_path / "journal" / JOURNAL).stat().st_size
    keeper.record()
    assert (tmp_path / "journal" / JOURNAL).stat().st_size == size > 5000


def test_the_journal_shrinks_when_most_of_it_is_settled(
    slab: Slab, keeper: JournalRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bruce_mp.journal.recorder._MAX_GARBAGE", 10_000)
    source = Input(slab, topics=TOPICS)
    for _ in range(4):
        source.receive([datagram(b"t1", bytes(5000))])
        segments = source.close_all()
        keeper.record()
        set_state(slab, segments, RunState.DELIVERED)
        keeper.record()
    assert (tmp_path / "journal" / JOURNAL).stat().st_size < 20_000


def test_a_long_recording_reports_its_progress_on_the_disk(
    slab: Slab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bruce_mp.journal.recorder._PART_RUNS", 3)
    source = Input(slab, topics=TOPICS)
    for _ in range(8):
        source.receive([datagram(b"t1", bytes(5000))])
        source.close_all()
    sizes: list[int] = []
    JournalRecorder(
        slab, tmp_path / "journal", lambda: sizes.append((tmp_path / "journal" / f"{JOURNAL}.new").stat().st_size)
    ).record()
    assert len(sizes) == 2
    assert [size // 5000 for size in sizes] == [2, 5]


def test_tickets_follow_the_sync(slab: Slab, keeper: JournalRecorder) -> None:
    source, progress = Input(slab, topics=TOPICS), JournalProgress(slab, INPUT_ROW)
    source.receive([datagram(b"t1", b"value")])
    source.close_all()
    last = progress.last_handed_over
    assert not progress.has(last)
    keeper.record()
    assert progress.has(last)
    source.receive([datagram(b"t1", b"value")])
    source.close_all()
    assert not progress.has(progress.last_handed_over)


def test_the_runs_of_an_attempt_are_recorded_together(slab: Slab, keeper: JournalRecorder, tmp_path: Path) -> None:
    source = Input(slab, topics=TOPICS)
    source.receive([datagram(b"t1", b"value")])
    [segment] = source.close_all()
    assign_chunk(slab, segment.chunk, 7)
    completing_at = (slab.row_at(INPUT_ROW) + lay.ROW_COMPLETING) >> 2
    slab.words[completing_at] = 7
    keeper.record()
    assert content_of(tmp_path / "journal").message_count == 0
    slab.words[completing_at] = 8
    keeper.record()
    assert content_of(tmp_path / "journal").message_count == 1


def test_the_ticket_of_an_attempt_waits_for_a_recording_with_its_runs(
    slab: Slab, keeper: JournalRecorder, tmp_path: Path
) -> None:
    """The first recording comes after the last hand-over, and before the end of the attempt's completion."""
    source, progress = Input(slab, topics=TOPICS), JournalProgress(slab, INPUT_ROW)
    source.receive([datagram(b"t1", b"value")])
    [segment] = source.close_all()
    assign_chunk(slab, segment.chunk, 7)
    completing_at = (slab.row_at(INPUT_ROW) + lay.ROW_COMPLETING) >> 2
    found = []
    for attempt in (7, 0):
        slab.words[completing_at] = attempt
        keeper.record()
        found.append((progress.has(progress.last_handed_over), content_of(tmp_path / "journal").message_count))
    assert found == [(False, 0), (True, 1)]


def test_an_attempt_with_the_number_of_an_earlier_one_removes_no_run_from_the_journal(
    slab: Slab, keeper: JournalRecorder, tmp_path: Path
) -> None:
    source = Input(slab, topics=TOPICS)
    source.receive([datagram(b"t1", b"value")])
    [segment] = source.close_all()
    assign_chunk(slab, segment.chunk, 1)
    keeper.record()
    completing_at = (slab.row_at(INPUT_ROW) + lay.ROW_COMPLETING) >> 2
    slab.words[completing_at] = 1  # a new worker numbers its attempts from 1 again
    keeper.record()
    assert content_of(tmp_path / "journal").message_count == 1


def test_runs_handed_over_during_the_recording_wait_for_the_next_one(
    slab: Slab, keeper: JournalRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Input(slab, topics=TOPICS)
    source.receive([datagram(b"t1", b"value")])
    source.close_all()
    before = input_progress(slab)
    source.receive([datagram(b"t1", b"later")])
    source.close_all()
    monkeypatch.setattr("bruce_mp.journal.recorder.input_progress", lambda _: before)
    keeper.record()
    assert content_of(tmp_path / "journal").message_count == 1
    assert not JournalProgress(slab, INPUT_ROW).has(JournalProgress(slab, INPUT_ROW).last_handed_over)


def test_after_a_full_disk_the_journal_is_written_again(slab: Slab, keeper: JournalRecorder, tmp_path: Path) -> None:
    source, progress = Input(slab, topics=TOPICS), JournalProgress(slab, INPUT_ROW)
    keeper.record()
    source.receive([datagram(b"t1", bytes(15_000))])
    source.close_all()
    with files_end_at(4096), pytest.raises(OSError, match="too large"):
        keeper.record()
    assert not progress.has(progress.last_handed_over)
    keeper.record()
    assert progress.has(progress.last_handed_over)
    assert content_of(tmp_path / "journal").message_count == 1


def test_a_slab_that_is_too_small_is_refused_with_the_remedy(
    slab: Slab, keeper: JournalRecorder, tmp_path: Path
) -> None:
    source = Input(slab, topics=TOPICS)
    for _ in range(30):
        source.receive([datagram(b"t1", bytes(15_000))])
    source.close_all()
    keeper.record()
    with new_slab(replace(GEOMETRY, chunks=16)) as small, pytest.raises(StartError, match=r"raise slab\.size"):
        restore(small, content_of(tmp_path / "journal").runs.values(), None)


def test_explicit_timestamps_stay_explicit(slab: Slab, keeper: JournalRecorder, tmp_path: Path) -> None:
    source = Input(slab, topics=TOPICS)
    data = [datagram(b"t1", b"%d" % number) for number in range(4)]
    for message, keeps_timestamps in zip(data, (True, False, False, True), strict=True):
        source.lanes.ingest(memoryview(message), [(0, len(message))], source.base, 1, keeps_timestamps=keeps_timestamps)
        slab.longs[slab.geometry.landing_at >> 3] += 1
    source.close_all()
    keeper.record()
    with restored(content_of(tmp_path / "journal")) as new:
        assert explicit(new) == explicit(slab) == [True, False, False, True]


def explicit(slab: Slab) -> list[bool]:
    """Return for each held message, in order of arrival, if the daemon must keep its timestamp."""
    salvage = Salvage(slab.path, is_live=True)
    options = [slab.view[each.key_at - lay.RECORD_HEADER + lay.RECORD_OPTIONS] for each in salvage.records()]
    salvage.close()
    return [bool(each & lay.OPTION_KEEPS_TIMESTAMP) for each in options]


def test_a_record_key_chooses_the_partition_again(slab: Slab, keeper: JournalRecorder, tmp_path: Path) -> None:
    source = Input(slab, topics=TOPICS)
    source.lanes.partitioners = lambda _: Partitioner.MURMUR2
    source.receive([datagram(b"t1", b"value", b"%d" % number) for number in range(5)])
    source.close_all()
    keeper.record()
    with restored(content_of(tmp_path / "journal")) as new:
        keys = sorted(content.partition_key for content in contents(new))
        assert keys == sorted(content.partition_key for content in contents(slab))
        assert any(keys)


_messages = st.builds(
    datagram,
    st.sampled_from([b"t1", b"t2", b"unknown"]),
    st.binary(max_size=40) | st.integers(1, 19_000).map(bytes),
    st.binary(max_size=5),
    st.none() | st.integers(0, 2**32 - 1),
    st.integers(0, 2**40),
)
_outcomes = st.sampled_from([RunState.DELIVERED, RunState.DISCARDED, RunState.QUEUED, RunState.IN_FLIGHT])


@pytest.mark.exhaustive
@examples(50)
@given(rounds=st.lists(st.tuples(st.lists(_messages, max_size=6), st.lists(_outcomes, max_size=8)), max_size=4))
def test_a_restored_slab_holds_the_messages_of_the_old_one_after_any_events(
    rounds: list[tuple[list[bytes], list[RunState]]],
) -> None:
    with new_slab(GEOMETRY) as slab, TemporaryDirectory() as directory:
        keeper, source = JournalRecorder(slab, Path(directory) / "journal"), Input(slab, topics=TOPICS)
        segments = []
        for messages, outcomes in rounds:
            source.receive(messages)
            segments += source.close_all()
            for segment, outcome in zip(segments, outcomes, strict=False):
                set_state(slab, [segment], state_word(outcome))
            segments = segments[len(outcomes) :]
            source.pool.reclaim(GEOMETRY.chunks)
            keeper.record()
        keeper.record()
        with restored(content_of(Path(directory) / "journal")) as new:
            assert held(new) == held(slab)
