"""Every invalid batch, and the error code for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c
import pytest

from bruce_mp.devbroker.batch import HEADER, BatchCheckSettings, BatchHead, check_batch, decode_records, rebase
from bruce_mp.devbroker.codes import Code, RefusedError
from devbroker.kit import make_batch

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = BatchCheckSettings(message_max_bytes=2000, strict=False)


def rewritten(**fields: int) -> bytes:
    """Return a batch with other header fields and a matching CRC."""
    raw = make_batch(3)
    changed = bytearray(HEADER.pack(*BatchHead.unpack(raw)._replace(**fields)) + raw[HEADER.size :])
    changed[17:21] = google_crc32c.value(bytes(changed[21:])).to_bytes(4, "big")
    return bytes(changed)


def flipped(at: int) -> bytes:
    raw = bytearray(make_batch(3))
    raw[at] ^= 1
    return bytes(raw)


WRONG: dict[str, tuple[Callable[[], bytes | None], Code]] = {
    "null": (lambda: None, Code.INVALID_RECORD),
    "empty": (lambda: b"", Code.INVALID_RECORD),
    "a few bytes": (lambda: b"\0" * 11, Code.INVALID_RECORD),
    "a length of 0": (lambda: b"\0" * 16, Code.CORRUPT_MESSAGE),
    "bytes up to the magic": (lambda: make_batch()[:16], Code.INVALID_RECORD),
    "half a header": (lambda: make_batch()[:40], Code.INVALID_RECORD),
    "no more than half a header": (lambda: rewritten(length=28)[:40], Code.CORRUPT_MESSAGE),
    "length below any record": (lambda: rewritten(length=13, magic=1), Code.CORRUPT_MESSAGE),
    "length below the header": (lambda: rewritten(length=20), Code.CORRUPT_MESSAGE),
    "old message set": (lambda: rewritten(magic=1), Code.INVALID_RECORD),
    "short old message set": (lambda: rewritten(length=28, magic=0)[:40], Code.INVALID_RECORD),
    "unknown magic": (lambda: rewritten(magic=3), Code.CORRUPT_MESSAGE),
    "negative magic": (lambda: rewritten(magic=-1), Code.CORRUPT_MESSAGE),
    "cut off": (lambda: make_batch(3)[:-1], Code.INVALID_RECORD),
    "two batches": (lambda: make_batch() + make_batch(), Code.INVALID_RECORD),
    "bytes behind": (lambda: make_batch() + b"\0", Code.INVALID_RECORD),
    "unknown codec": (lambda: rewritten(attributes=5), Code.UNSUPPORTED_COMPRESSION_TYPE),
    "base offset": (lambda: rewritten(base_offset=1), Code.INVALID_RECORD),
    "too large": (lambda: make_batch(1, value=b"x" * 2000), Code.MESSAGE_TOO_LARGE),
    "CRC": (lambda: flipped(17), Code.CORRUPT_MESSAGE),
    "body": (lambda: flipped(-1), Code.CORRUPT_MESSAGE),
    "no records": (lambda: rewritten(record_count=0, last_offset_delta=-1), Code.INVALID_RECORD),
    "count too low": (lambda: rewritten(record_count=2), Code.INVALID_RECORD),
    "offset delta too high": (lambda: rewritten(last_offset_delta=3), Code.INVALID_RECORD),
    "control": (lambda: rewritten(attributes=0x20), Code.INVALID_RECORD),
    "transaction": (lambda: rewritten(attributes=0x10), Code.INVALID_TXN_STATE),
    "no sequence": (lambda: rewritten(producer_id=5, producer_epoch=0), Code.INVALID_RECORD),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_invalid_batch_is_refused(name: str) -> None:
    make, code = WRONG[name]
    with pytest.raises(RefusedError) as refusal:
        check_batch(make(), 9, LIMITS)
    assert refusal.value.code == code


def test_the_limit_counts_the_whole_batch() -> None:
    raw = make_batch(3)
    assert check_batch(raw, 9, BatchCheckSettings(message_max_bytes=len(raw))).record_count == 3
    with pytest.raises(RefusedError):
        check_batch(raw, 9, BatchCheckSettings(message_max_bytes=len(raw) - 1))


def test_zstd_needs_version_7() -> None:
    raw = make_batch(3, codec=4)
    assert check_batch(raw, 7, LIMITS).codec == 4
    with pytest.raises(RefusedError) as refusal:
        check_batch(raw, 6, LIMITS)
    assert refusal.value.code == Code.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("codec", range(5))
def test_strict_mode_decodes_every_codec(codec: int) -> None:
    raw = make_batch(50, codec=codec)
    assert check_batch(raw, 9, BatchCheckSettings(strict=True)).record_count == 50
    assert [(r.offset, r.key, r.value) for r in decode_records(raw)] == [(i, b"key%d" % i, b"value") for i in range(50)]


def test_only_strict_mode_checks_the_records() -> None:
    raw = rewritten(record_count=4, last_offset_delta=3)
    assert check_batch(raw, 9, LIMITS).record_count == 4
    with pytest.raises(RefusedError) as refusal:
        check_batch(raw, 9, BatchCheckSettings(strict=True))
    assert refusal.value.code == Code.INVALID_RECORD


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_strict_mode_refuses_a_body_of_another_codec(codec: int) -> None:
    with pytest.raises(RefusedError):
        check_batch(rewritten(attributes=codec), 9, BatchCheckSettings(strict=True))


def test_rebase_keeps_the_checksum() -> None:
    stored = rebase(make_batch(3), 500, 7)
    head = BatchHead.unpack(stored)
    assert (head.base_offset, head.leader_epoch, head.record_count) == (500, 7, 3)
    assert google_crc32c.value(stored[21:]) == head.crc
    assert [r.offset for r in decode_records(stored)] == [500, 501, 502]


def test_the_last_sequence_wraps() -> None:
    head = BatchHead.unpack(make_batch(3))._replace(base_sequence=2**31 - 2)
    assert head.last_sequence == 0
