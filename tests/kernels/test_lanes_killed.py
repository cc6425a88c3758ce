"""Killed at any store, lanes lose and double nothing.

The pure kernels are interrupted after each Python instruction, the compiled ones after each machine instruction.  That
takes so long that the compiled ones get only some of the batches, and no kill during recovery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.recovery import sweep, sweep_filled
from support.crash_images import crash_images, machine_images
from support.lane_checks import Message, check_runs, expected, records, send
from support.slabs import INPUT_ROW, Input, contents, datagram, put_in_landing_zone, set_state
from support.variants import VARIANTS

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

TOPICS = [(b"t1", 3), (b"t2", 1)]
NESTED_EVERY = 20
IMAGES: Final = {"pure": crash_images, "compiled": machine_images}


def regions(slab: Slab) -> list[range]:
    geometry = slab.geometry
    row_at = geometry.rows_at + INPUT_ROW * lay.ROW_BYTES
    return [
        range(row_at, row_at + lay.ROW_BYTES),
        range(geometry.landing_at, geometry.landing_slots_at),
        range(geometry.chunks_at, geometry.file_size),
    ]


BEFORE: list[Message] = [
    (b"t1", b"before", b"k", None),
    (b"t2", bytes(3000), b"", None),
    (b"unnumbered", b"", b"", None),
]
BATCHES: dict[str, list[Message]] = {
    "appended to open runs": [
        (b"t1", b"a", b"", None),
        (b"t2", b"b", b"k", None),
        (b"unnumbered", b"c", b"", None),
        (b"t1", b"d", b"", None),
    ],
    "over the end of chunks": [(b"t2", bytes([i]) * 3000, b"", None) for i in range(7)],
    "topics without a number": [(b"new", b"a", b"", None), (b"other", b"b", b"", 7), (b"new", b"c", b"", None)],
    "keys of several lanes": [(b"t1", bytes([i]), b"", i) for i in range(6)],
    "a span": [
        (b"t1", b"small", b"", None),
        (b"t1", bytes(4000), bytes(60), None),
        (b"t1", b"end", b"", None),
        (b"t2", b"after", b"", None),
    ],
}


FOR_COMPILED: Final[dict[str, tuple[pytest.MarkDecorator, ...]]] = {
    "appended to open runs": (),
    "over the end of chunks": (pytest.mark.soak,),
    "topics without a number": (pytest.mark.soak,),
    "a span": (),
}
"""Batches, and the marks of their tests, which take ten seconds to a minute; those without a mark also open chunks."""
CASES: Final = [
    *(("pure", name) for name in BATCHES),
    *(pytest.param("compiled", name, marks=marks) for name, marks in FOR_COMPILED.items() if "compiled" in VARIANTS),
]


@pytest.mark.process
@pytest.mark.parametrize(("variant", "name"), CASES, indirect=["variant"])
def test_a_kill_at_any_store_neither_loses_nor_duplicates_messages(slab: Slab, variant: str, name: str) -> None:
    batch = BATCHES[name]
    sender = Input(slab, topics=TOPICS)
    send(sender, BEFORE)
    put_in_landing_zone(slab, [datagram(*message, timestamp=-5) for message in batch])
    images = IMAGES[variant](slab, regions(slab), sender.admit)
    assert len(images) > 20

    def recover_and_check() -> None:
        again = Input(slab)
        again.close_all()
        assert records(slab) == expected([BEFORE, batch])
        assert again.base == again.row.counters[0] == len(BEFORE) + len(batch)
        assert again.row.version % 2 == 0
        handed_over = sweep(slab, {RunState.FILLED})
        assert sweep_filled(slab) == handed_over  # the row has the last ticket
        check_runs(slab, [found.segment for found in handed_over], [BEFORE, batch])

    for count in images:
        if variant == "pure" and count % NESTED_EVERY == 0:
            nested = crash_images(slab, regions(slab), lambda: Input(slab))
            for _ in nested:
                recover_and_check()
            images.restore(count)
        recover_and_check()


@pytest.mark.parametrize("variant", ["pure"], indirect=True)
def test_recovery_does_not_repeat_a_copy_delivered_before_the_crash(slab: Slab) -> None:
    """The router may claim a run of a batch that is not landed yet, because it is in the slab like any other."""
    sender = Input(slab, topics=TOPICS)
    batch: list[Message] = [(b"t1", bytes([i]) * 3500, b"", None) for i in range(8)]
    put_in_landing_zone(slab, [datagram(*message, timestamp=-5) for message in batch])
    images = crash_images(slab, regions(slab), sender.admit)
    delivered_early = 0
    for _ in images:
        filled = [found.segment for found in sweep(slab, {RunState.FILLED})]
        set_state(slab, filled, RunState.DELIVERED)
        done = {content.arrival for content in contents(slab) if content.state is RunState.DELIVERED}
        for _ in range(2):  # the second input adopts all chunks of the first, which are sealed
            again = Input(slab)
            again.close_all()
        delivered = {content.arrival for content in contents(slab) if content.state is RunState.DELIVERED}
        held = [content.arrival for content in contents(slab) if content.state is RunState.FILLED]
        assert len(held) == len(set(held))
        assert delivered == done
        assert not delivered & set(held)
        landed = again.base
        assert sorted([*held, *delivered]) == list(range(landed))
        delivered_early += len(done)
    assert delivered_early
