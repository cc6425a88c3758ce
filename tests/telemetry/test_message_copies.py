"""Copies on the way to their files: bounded, with lost ones counted."""

from __future__ import annotations

from collections import Counter as Tally

import pytest

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.message_copies import FRAME_BYTES, MAX_QUEUED_BYTES, Copy, CopyQueue, CopyTarget, decode_copies
from support.links import Keeping


class Made:
    def __init__(self) -> None:
        self.link = Keeping()
        self.counted: Tally[Counter] = Tally()
        self.copies = CopyQueue(self.link, self._count)

    def _count(self, counter: Counter, amount: int) -> None:
        self.counted[counter] += amount


def copy_of(size: int, number: int = 0) -> Copy:
    return Copy(CopyTarget.DISCARDS, number, -1, "NO_MEM", b"\xff\n", b"key", bytes(size), 2**32 - 1)


@pytest.fixture
def made() -> Made:
    return Made()


def test_copies_cross_the_link_unchanged(made: Made) -> None:
    copies = [copy_of(3), Copy(CopyTarget.MSG_SEND, 1, 2, "", b"t", b"", b"", None)]
    for copy in copies:
        made.copies.add(copy)
    assert made.copies.has_pending
    assert not made.link.sent
    made.copies.flush()
    made.copies.flush()
    assert made.link.copies() == copies
    assert (made.copies.has_pending, made.link.asked) == (False, 1)


def test_a_full_frame_is_sent_immediately(made: Made) -> None:
    for number in range(9):
        made.copies.add(copy_of(FRAME_BYTES // 4, number))
    assert len(made.link.sent) == 2
    made.copies.flush()
    assert [copy.copied_ms for copy in made.link.copies()] == list(range(9))


def test_copies_beyond_the_queue_limit_are_counted(made: Made) -> None:
    made.link.is_full = True
    size = MAX_QUEUED_BYTES // 8
    for number in range(10):
        made.copies.add(copy_of(size, number))
    assert made.counted == {Counter.MsgCopyLost: 3, Counter.DiscardCopySettled: 3}
    assert made.link.asked == 1, "a link that refuses is not asked again with every message"
    made.link.is_full = False
    made.copies.flush()
    assert [copy.copied_ms for copy in made.link.copies()] == list(range(7))


def test_staged_copies_wait_for_their_transaction(made: Made) -> None:
    for number in range(9):
        made.copies.prepare(copy_of(FRAME_BYTES // 4, number))
    assert (made.copies.prepared_count, made.link.sent) == (9, [])
    made.copies.queue_prepared()
    made.copies.flush()
    assert made.copies.prepared_count == made.counted[Counter.DiscardCopyQueued] == 0, "the transaction counts them"
    assert [copy.copied_ms for copy in made.link.copies()] == list(range(9))


def test_a_flush_counts_staged_copies_without_a_transaction(made: Made) -> None:
    made.copies.prepare(copy_of(1))
    assert made.copies.has_pending
    made.copies.flush()
    assert made.counted == {Counter.DiscardCopyQueued: 1}
    assert len(made.link.copies()) == 1


def test_one_copy_of_any_size_is_accepted(made: Made) -> None:
    made.copies.add(copy_of(MAX_QUEUED_BYTES * 2))
    assert len(made.link.copies()) == 1
    assert not made.counted


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\x80", b"\x91\x92\x09\x01"])
def test_invalid_copy_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="copies of messages"):
        decode_copies(data)
