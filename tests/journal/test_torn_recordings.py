"""A power failure in the middle of a recording: any subset of the pages written since the last sync is on the disk.

An image is the file at the last sync, a random subset of the later pages, and a random end behind the last sync.
"""

from __future__ import annotations

import mmap
import random
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from bruce_mp.journal.journal_file import read_journal
from bruce_mp.journal.recorder import JOURNAL, JournalRecorder
from bruce_mp.kernels import ChunkPool, Lanes
from bruce_mp.slab.fences import assign_chunk, attempt_of
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.tables import TopicTable
from support.examples import seeds
from support.slabs import Input, datagram, new_slab, set_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.journal.journal_file import JournalContent, RunKey
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

GEOMETRY: Final = Geometry(chunks=128, topics=16, partitions=16, landing_slots=32, landing_slot_size=20_000)
TOPICS: Final = ((b"t1", 3), (b"t2", 1), (b"t3", 1))
SEEDS: Final = 30
IMAGES: Final = 60
_ATTEMPTS: Final = 4
_MESSAGES: Final = 5
_LARGEST: Final = 9000


class _AttemptPool:
    """A pool that gives all its chunks to one attempt."""

    def __init__(self, pool: ChunkPool, slab: Slab, number: int) -> None:
        self._pool = pool
        self._slab = slab
        self._number = number

    def allocate(self, span: int, now_ms: int) -> int | None:
        chunk = self._pool.allocate(span, now_ms)
        if chunk is not None:
            assign_chunk(self._slab, chunk, self._number)
        return chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


class Recording(NamedTuple):
    """The journal file after a recording, and the runs in it."""

    data: bytes
    content: JournalContent


class Story:
    """A slab that gets plain messages and complete attempts, loses some of them, and is recorded."""

    def __init__(self, slab: Slab, directory: Path, rng: random.Random) -> None:
        self._slab = slab
        self._rng = rng
        self._input = Input(slab, topics=TOPICS)
        self._recorder = JournalRecorder(slab, directory)
        self._path = directory / JOURNAL
        self._attempts = 0
        self._held: list[Segment] = []

    def _messages(self) -> list[bytes]:
        rng = self._rng
        return [
            datagram(rng.choice(TOPICS)[0], rng.randbytes(rng.randrange(_LARGEST)))
            for _ in range(rng.randrange(1, _MESSAGES))
        ]

    def receive(self) -> None:
        for _ in range(self._rng.randrange(_ATTEMPTS)):
            self._receive_attempt()
        self._input.receive(self._messages())
        self._held += self._input.close_all()

    def _receive_attempt(self) -> None:
        self._attempts += 1
        pool = _AttemptPool(self._input.pool, self._slab, self._attempts)
        lanes = Lanes(self._slab, pool, TopicTable(self._slab), lambda _: 1000)
        self._input.lanes, plain = lanes, self._input.lanes
        self._input.receive(self._messages())
        self._held += self._input.close_all()
        self._input.lanes = plain

    def settle(self) -> None:
        gone = [segment for segment in self._held if self._rng.random() < 0.3]
        set_state(self._slab, gone, RunState.DELIVERED)
        self._held = [segment for segment in self._held if segment not in gone]

    def record(self) -> Recording:
        self._recorder.record()
        content = read_journal(self._path)
        assert content is not None
        assert {(key.chunk, key.offset) for key in content.runs} == {(each.chunk, each.run) for each in self._held}
        return Recording(self._path.read_bytes(), content)

    def attempts_of(self, runs: set[RunKey]) -> dict[int, set[RunKey]]:
        """Return the runs of each attempt; 0 has those of none."""
        found: defaultdict[int, set[RunKey]] = defaultdict(set)
        for key in runs:
            found[attempt_of(self._slab, key.chunk)].add(key)
        return found


def torn_images(before: bytes, after: bytes, rng: random.Random) -> Iterator[bytes]:
    """Yield images of the last write of a file: pages of it are missing, in the middle and at the end."""
    assert after.startswith(before)
    for _ in range(IMAGES):
        image, share = bytearray(after), rng.random()
        for start in range(len(before) - len(before) % mmap.PAGESIZE, len(after), mmap.PAGESIZE):
            if rng.random() < share:
                missing = slice(max(start, len(before)), min(start + mmap.PAGESIZE, len(after)))
                image[missing] = bytes(missing.stop - missing.start)
        yield bytes(image[: rng.choice((len(after), rng.randint(len(before), len(after))))])


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", seeds(SEEDS))
def test_an_attempt_is_restored_as_a_whole_or_not_at_all(seed: int) -> None:
    rng = random.Random(seed)
    with new_slab(GEOMETRY) as slab, TemporaryDirectory() as directory:
        story = Story(slab, Path(directory) / "journal", rng)
        story.receive()
        recordings = [story.record()]
        for _ in range(rng.randrange(1, 4)):
            story.receive()
            story.settle()
            recordings.append(story.record())
        synced, last = recordings[-2:]
        held, recent = set(last.content.runs), set(last.content.runs) - set(synced.content.runs)
        path = Path(directory) / "image"
        for image in torn_images(synced.data, last.data, rng):
            path.write_bytes(image)
            content = read_journal(path)
            assert content is not None
            assert held - recent <= set(content.runs) <= held | set(synced.content.runs)
            assert all(run == last.content.runs.get(key, run) for key, run in content.runs.items())
            restored = story.attempts_of(set(content.runs) & recent)
            for attempt, whole in story.attempts_of(recent).items():
                assert not attempt or restored[attempt] in (set(), whole), f"half of attempt {attempt} is restored"
