"""All runs in their order: repetition by repetition, the plain receiver and the daemon in turn.

The machine may be faster or slower from minute to minute; what is compared is measured seconds apart.  Each repetition
starts daemons of its own, so that nothing is carried over.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.cases import CASES, IDLE, TOPICS
from bench.corpus import write_datagrams
from bench.daemon import measured_daemon
from bench.plain import run_plain
from bench.results import Pair, refusals_of
from bench.tools import SendError, make_tools

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench.cases import Case
    from bench.daemon import MeasuredDaemon
    from bench.results import Life
    from bench.tools import Tools

__all__ = ["Plan", "Session"]

TIME_LIMIT_S: Final = 230.0
"""No repetition is begun that might end later than this."""
SHORT_REST_S: Final = 2.0
SHARED_MEMORY: Final = Path("/dev/shm")
QUICK_SHARE: Final = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for.  `idle_s` 0: the idle daemon is only measured as long as the other figures need it."""

    cases: Sequence[Case]
    repetitions: int
    idle_s: float

    @classmethod
    def of(cls, names: Sequence[str], repetitions: int | None, *, quick: bool) -> Plan:
        """From the command line; no names: everything."""
        cases = [case for case in CASES if not names or case.name in names]
        if quick:
            cases = [case.shortened(QUICK_SHARE) for case in cases]
        idle_s = (5.0 if quick else 20.0) if not names or IDLE in names else 0.0
        return cls(cases, repetitions or (1 if quick else 3), idle_s)

    def groups(self) -> Iterator[tuple[Mapping[str, object], list[Case]]]:
        """Cases by the settings of their daemon."""
        settings: list[Mapping[str, object]] = []
        for case in self.cases or CASES[:1]:
            if case.settings not in settings:
                settings.append(case.settings)
                yield case.settings, [other for other in self.cases if other.settings == case.settings]


@dataclass(slots=True)
class Session:
    """What the runs brought."""

    plan: Plan
    language: str = ""
    pairs: list[Pair] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    repetitions: int = 0

    def run(self) -> None:
        """Do it all."""
        base = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        with tempfile.TemporaryDirectory(prefix="bruce-bench-", dir=base) as directory:
            place = Path(directory)
            tools = make_tools(place)
            self.language = tools.language
            self._repeat(tools, place)

    def _repeat(self, tools: Tools, place: Path) -> None:
        start, longest = time.monotonic(), 0.0
        while self.repetitions < self.plan.repetitions:
            began = time.monotonic()
            if self.repetitions and began - start + longest > TIME_LIMIT_S:
                _say(f"The time is up after {self.repetitions} of {self.plan.repetitions} repetitions.")
                return
            for number, (settings, cases) in enumerate(self.plan.groups()):
                home = place / f"{self.repetitions}-{number}"
                home.mkdir()
                with measured_daemon(home, settings) as daemon:
                    daemon.rest(self._rest_s(number))
                    self._carry_all(tools, cases, daemon, home)
                    self.lives.append(daemon.life())
            self.repetitions += 1
            longest = max(longest, time.monotonic() - began)

    def _rest_s(self, group: int) -> float:
        """Long enough to be reported once, else long enough to be taken off the other figures."""
        return self.plan.idle_s if self.plan.idle_s and not self.repetitions and not group else SHORT_REST_S

    def _carry_all(self, tools: Tools, cases: Sequence[Case], daemon: MeasuredDaemon, home: Path) -> None:
        for case in cases:
            try:
                self._carry(tools, case, daemon, home)
            except SendError as error:
                self._refuse(case, str(error))

    def _carry(self, tools: Tools, case: Case, daemon: MeasuredDaemon, home: Path) -> None:
        datagrams = home / "datagrams"
        write_datagrams(datagrams, TOPICS, case.size)
        pair = Pair(case.name, run_plain(tools, case, home, datagrams), daemon.carry(tools, case, datagrams))
        reasons = refusals_of(pair.daemon)
        self.pairs.append(pair)
        if reasons:
            self._refuse(case, "; ".join(reasons))
        else:
            _say(f"{self.repetitions + 1}/{self.plan.repetitions} {case.name:<16} {pair.multiple:6.1f} x")

    def _refuse(self, case: Case, reason: str) -> None:
        self.refused[case.name] = reason
        _say(f"{case.name}: no figure: {reason}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
