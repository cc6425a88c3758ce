"""Record the states of a slab after a kill at any instruction.

`crash_images` runs an action once under a tracer that reads the memory after every bytecode instruction that can store
into it, and so records every store of Python. `machine_images` does so after every machine instruction, for compiled
code, in a fork and at a thousandth of the speed. Each prefix of the stores is a state after a SIGKILL. A store of more
than one word is not one machine instruction. So some prefixes of its 4-byte words are states as well, but an aligned
8-byte word stays whole.
"""

from __future__ import annotations

import ctypes
import dis
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from support.machine_steps import run_in_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from bruce_mp.slab.file import Slab

_TEARS: Final = 4
"""Number of tested prefixes of one store."""
_BLOCK: Final = 512
"""Bytes that one comparison passes over; a multiple of a word."""
_STORES_NOTHING: Final = tuple(
    "LOAD_ STORE_FAST STORE_DEREF POP_ JUMP_ BUILD_ COMPARE_OP BINARY_OP IS_OP CONTAINS_OP UNARY_NOT"
    " RESUME CACHE NOP PRECALL KW_NAMES PUSH_NULL COPY SWAP".split()
)
_CAN_STORE: Final = frozenset(number for name, number in dis.opmap.items() if not name.startswith(_STORES_NOTHING))
"""Instructions that call C code or assign to an item; calls of Python functions have instructions of their own."""

_compare_memory: Final = ctypes.CDLL(None).memcmp
_compare_memory.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]

Store = list[tuple[int, int]]
"""File offsets of 8-byte words and their new values, in order of place."""


class CrashImages:
    """The images of one action; `restore(n)` puts the slab into the n-th."""

    def __init__(self, slab: Slab, before: dict[range, bytes], stores: list[Store]) -> None:
        self._slab = slab
        self._before = before
        self._stores = stores

    def __len__(self) -> int:
        return len(self._stores) + 1

    def restore(self, count: int) -> None:
        """Apply the first `count` stores to the slab, and no others."""
        for region, data in self._before.items():
            self._slab.view[region.start : region.stop] = data
        for store in self._stores[:count]:
            for at, value in store:
                self._slab.longs[at >> 3] = value

    def __iter__(self) -> Iterator[int]:
        """Put the slab into each image in turn."""
        for count in range(len(self)):
            self.restore(count)
            yield count


def crash_images(slab: Slab, regions: Sequence[range], action: Callable[[], object]) -> CrashImages:
    """Run an action and return its possible images in `regions` of the file (multiples of 8), the complete one last."""
    recorder = Recorder(slab, regions)
    before = dict(recorder.seen)
    previous = sys.gettrace()
    # Python 3.12 sends the events of single instructions only if a frame asked for them before `settrace`.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(recorder.trace)
    try:
        action()
    finally:
        sys.settrace(previous)
    recorder.record_stores()
    return CrashImages(slab, before, recorder.stores)


def machine_images(slab: Slab, regions: Sequence[range], action: Callable[[], object]) -> CrashImages:
    """Do the same with compiled code as well; the action has no effect but its stores."""
    recorder = Recorder(slab, regions)
    before = dict(recorder.seen)
    run_in_steps(action, recorder.record_stores)
    return CrashImages(slab, before, recorder.stores)


class Recorder:
    """Records the stores to regions of the slab; `trace` is a trace function for `sys.settrace`."""

    def __init__(self, slab: Slab, regions: Sequence[range]) -> None:
        self._slab = slab
        self.seen = {region: self._read(region) for region in regions}
        self._addresses = {region: _address_of(slab, region) for region in regions}
        self.stores: list[Store] = []
        self._may_have_stored = True

    def _read(self, region: range) -> bytes:
        return bytes(self._slab.view[region.start : region.stop])

    def trace(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        if "bruce_mp" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if self._may_have_stored:
            self.record_stores()
        self._may_have_stored = frame.f_code.co_code[frame.f_lasti] in _CAN_STORE
        return self.trace

    def record_stores(self) -> None:
        for region, before in self.seen.items():
            if _compare_memory(self._addresses[region], before, len(before)):
                self.seen[region] = now = self._read(region)
                self._append(region, before, now)

    def _append(self, region: range, before: bytes, now: bytes) -> None:
        store = [(region.start + at, value) for at, value in _changed_words(before, now)]
        cuts = sorted({len(store) * tear // _TEARS for tear in range(1, _TEARS)} - {0, len(store)})
        edges = [0, *cuts, len(store)]
        self.stores += [store[start:stop] for start, stop in pairwise(edges)]


def _address_of(slab: Slab, region: range) -> int:
    """Return the address of a region in this process."""
    return ctypes.addressof(ctypes.c_char.from_buffer(slab.view, region.start))


def _changed_words(before: bytes, now: bytes) -> Iterator[tuple[int, int]]:
    """Yield the offsets of the 8-byte words that differ, and their new values."""
    for start in range(0, len(now), _BLOCK):
        old, new = before[start : start + _BLOCK], now[start : start + _BLOCK]
        if old != new:
            pairs = enumerate(zip(memoryview(old).cast("Q"), memoryview(new).cast("Q"), strict=True))
            yield from ((start + 8 * index, value) for index, (was, value) in pairs if was != value)
