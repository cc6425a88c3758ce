"""Power cuts: kill a daemon with a journal, lose or tear its slab, and start it again.

Some time before the cut, `PowerCuts` records the sent messages, and the runs that are settled. At the cut, the journal
must have all of these messages that are not settled, and none of these runs. Only messages sent later may get lost, and
only messages in the journal may arrive twice.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab import layout as lay
from support.journals import held_runs, journaled_runs, lose, tear, values_in
from support.traffic import Name

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from bruce_mp.telemetry.books import Books
    from support.daemon import Daemon
    from support.endless_senders import Interval

__all__ = ["PowerCut", "PowerCuts"]

RECEIVE_S: Final = 2.0
"""Time for a sent message to become part of a run that its input has handed over."""
RECORDINGS: Final = 2
"""Number of awaited writes of the journal: the first may have begun before the messages came."""
RECORD_S: Final = 30.0


class PowerCut(NamedTuple):
    """A power cut: the books before it, the restored messages, and the last messages of each sender before it."""

    harm: str
    books: Books
    restored: Counter[Name]
    recent: Mapping[int, Interval]


class PowerCuts:
    """The power cuts of a daemon; `progress` returns the number of messages that each sender has sent."""

    def __init__(self, daemon: Daemon, rng: random.Random, progress: Callable[[], Mapping[int, int]]) -> None:
        self._daemon = daemon
        self._rng = rng
        self._progress = progress

    def cut(self) -> PowerCut:
        """Cut the power, check the journal, and start the daemon again."""
        daemon, slab = self._daemon, self._daemon.slab_path
        before = self._progress()
        time.sleep(RECEIVE_S)
        settled = journaled_runs(slab).keys() - held_runs(slab)
        for _ in range(RECORDINGS):
            self._await_recording()
        books = daemon.kill_all_when_consistent()
        recent = {sender: (before[sender], sent + 1) for sender, sent in self._progress().items()}
        runs = journaled_runs(slab)
        assert not settled & runs.keys(), f"the journal still has the settled runs {settled & runs.keys()}"
        restored = Counter(Name.of(value) for run in runs.values() for value in values_in(run))
        harm = self._rng.choice((lose, tear))
        harm(slab, self._rng)
        self._restart(restored.total())
        return PowerCut(harm.__name__, books, restored, recent)

    def _await_recording(self) -> None:
        last = self._recorded_ms()
        self._daemon.wait_for(lambda: self._recorded_ms() > last, "the journal to be written", RECORD_S)

    def _recorded_ms(self) -> int:
        with self._daemon.open_slab() as slab:
            return slab.read_signed(lay.SUPER_JOURNALED_MS)

    def _restart(self, restored: int) -> None:
        daemon = self._daemon
        read = len(daemon.log())
        daemon.start()
        assert not restored or f"Restored {restored:,} message" in daemon.log()[read:], daemon.log()[read:]
        for aside in daemon.slab_path.parent.glob(f"{daemon.slab_path.name}.*-*"):
            shutil.rmtree(aside) if aside.is_dir() else aside.unlink()
