from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.errors import SlabError
from bruce_mp.ipc.frames import EVERYTHING, Parcel, ParcelKind, pack_parcels, unpack_parcels
from bruce_mp.slab.runs import Segment
from support.examples import examples

u32 = st.integers(0, 2**32 - 1)
segments = st.builds(Segment, u32, u32, u32, u32, u32, u32)
parcels = st.builds(
    Parcel, st.sampled_from(ParcelKind), u32, st.integers(EVERYTHING, 2**31 - 1), st.lists(segments, max_size=5)
)
HEAD = 16
SEGMENT = 24


@given(st.lists(parcels, max_size=5))
@examples(50)
def test_packed_parcels_unpack_unchanged(sent: list[Parcel]) -> None:
    assert [parcel._replace(segments=list(parcel.segments)) for parcel in unpack_parcels(pack_parcels(sent))] == sent


def test_the_layout_matches_the_documentation() -> None:
    data = pack_parcels([Parcel(ParcelKind.QUEUE, 7, -1, [Segment(1, 2, 3, 4, 5, 6)])])
    assert data.hex(" ", 4) == (
        "03000000 07000000 ffffffff 01000000 01000000 02000000 03000000 04000000 05000000 06000000"
    )


@given(st.binary(max_size=200))
@examples(150)
def test_garbage_is_unpacked_or_raises_only_slab_error(data: bytes) -> None:
    try:
        found = unpack_parcels(data)
    except SlabError:
        return
    assert len(pack_parcels(found)) == len(data)


@given(st.lists(parcels, min_size=1, max_size=3), st.data())
@examples(50)
def test_a_truncated_message_is_never_accepted_as_complete(sent: list[Parcel], data: st.DataObject) -> None:
    whole = pack_parcels(sent)
    cut = whole[: data.draw(st.integers(1, len(whole) - 1))]
    ends = {len(pack_parcels(sent[:count])) for count in range(len(sent) + 1)}
    if len(cut) in ends:
        assert len(unpack_parcels(cut)) < len(sent)
    else:
        with pytest.raises(SlabError, match="A frame between processes"):
            unpack_parcels(cut)


@pytest.mark.parametrize("kind", [0, max(ParcelKind) + 1, 255])
def test_an_unknown_kind_is_refused(kind: int) -> None:
    with pytest.raises(SlabError, match=f"kind {kind} "):
        unpack_parcels(bytes([kind]) + bytes(HEAD - 1))


def test_a_segment_count_beyond_the_message_is_refused() -> None:
    data = bytearray(pack_parcels([Parcel(ParcelKind.RUNS, segments=[Segment(0, 0, 0, 0, 0, 0)] * 2)]))
    assert len(data) == HEAD + 2 * SEGMENT
    data[12:16] = (2**32 - 1).to_bytes(4, "little")
    with pytest.raises(SlabError, match="4294967295 segments"):
        unpack_parcels(bytes(data))
