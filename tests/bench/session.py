"""All runs in their order: repetition by repetition, the plain receiver and the daemon in turn.

The speed of a machine may change from minute to minute, so compared runs are only seconds apart.  Each repetition
starts new daemons, so it has no effect on the next.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bench.cases import BRUCE, GROUPS, IDLE, choose_cases
from bench.corpus import write_datagrams
from bench.daemon import measured_daemon
from bench.machine import scratch_directory
from bench.peers import absence, run_peer
from bench.plain import run_plain
from bench.results import Pair, refusals_of
from bench.tools import SendError, make_tools, run_sender

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from bench.cases import Case, Site
    from bench.daemon import MeasuredDaemon
    from bench.results import Life
    from bench.tools import Tools

__all__ = ["Plan", "Session"]

TIME_LIMIT_S: Final = 230.0
"""No repetition of a group begins that might end later than this, unless the command line gives their number."""
SHORT_REST_S: Final = 2.0
LONG_REST_S: Final = 20.0
QUICK_SHARE: Final = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for one group.  `idle_s` 0: the idle daemon is measured only for the other figures' needs.

    `limit_s`: no repetition begins that might end after this time.
    """

    cases: Sequence[Case]
    repetitions: int
    idle_s: float
    limit_s: float = TIME_LIMIT_S

    @classmethod
    def of(cls, group: str, names: Sequence[str], repetitions: int | None, *, quick: bool) -> Plan:
        """Return the plan for the command line's options; without names, for the whole group."""
        cases = choose_cases(group, names)
        if any(case.percent for case in cases) and GROUPS[group][0] not in cases:
            cases.insert(0, GROUPS[group][0])
        if quick:
            cases = [case.shortened(QUICK_SHARE) for case in cases if names or not case.in_full]
        rests = group == WITH_IDLE and (not names or IDLE in names)
        idle_s = LONG_REST_S / (QUICK_SHARE if quick else 1) if rests else 0.0
        if repetitions:
            return cls(cases, repetitions, idle_s, math.inf)
        return cls(cases, 1 if quick else 3, idle_s)

    def sites(self) -> Iterator[tuple[Site, list[Case]]]:
        """Yield each site with its cases."""
        sites: list[Site] = []
        for case in self.cases or GROUPS[WITH_IDLE][:1]:
            if case.site not in sites:
                sites.append(case.site)
                yield case.site, [other for other in self.cases if other.site == case.site]


WITH_IDLE: Final = "loads"
"""The group that measures the idle daemon as well."""


@dataclass(slots=True)
class Session:
    """The runs of a group and their results."""

    plan: Plan
    language: str = ""
    pairs: list[Pair] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    repetitions: int = 0
    _highest: float = 0.0
    """Throughput of the first case in messages a second."""

    def run(self) -> None:
        """Run all repetitions."""
        with scratch_directory() as place:
            tools = make_tools(place)
            self.language = tools.language
            self._repeat(tools, place)

    def _repeat(self, tools: Tools, place: Path) -> None:
        start, longest = time.monotonic(), 0.0
        while self.repetitions < self.plan.repetitions:
            began = time.monotonic()
            if self.repetitions and began - start + longest > self.plan.limit_s:
                _say(f"The time is up after {self.repetitions} of {self.plan.repetitions} repetitions.")
                return
            for number, (site, cases) in enumerate(self.plan.sites()):
                home = place / f"{self.repetitions}-{number}"
                home.mkdir()
                self._visit(tools, site, cases, home, self._rest_s(number))
            self.repetitions += 1
            longest = max(longest, time.monotonic() - began)

    def _visit(self, tools: Tools, site: Site, cases: Sequence[Case], home: Path, rest_s: float) -> None:
        with measured_daemon(tools, home, site) as daemon:
            if site.filled:
                daemon.fill(tools, site.filled, home / "fill")
            daemon.rest(rest_s)
            self._carry_all(tools, cases, daemon, home)
            self.lives.append(daemon.life())

    def _rest_s(self, site: int) -> float:
        """Return the seconds of idle measurement: long for the reported one, else short, to correct other figures."""
        return self.plan.idle_s if self.plan.idle_s and not self.repetitions and not site else SHORT_REST_S

    def _carry_all(self, tools: Tools, cases: Sequence[Case], daemon: MeasuredDaemon, home: Path) -> None:
        for case in cases:
            if case.by != BRUCE and (reason := absence(case.by)):
                self.absent[case.name] = reason
                continue
            try:
                self._carry(tools, case, daemon, home)
            except (SendError, TimeoutError) as error:
                self._refuse(case, str(error))

    def _carry(self, tools: Tools, case: Case, daemon: MeasuredDaemon, home: Path) -> None:
        messages = home / "messages"
        write_datagrams(messages, case.site.topic_names, case.size, keyed=case.keyed, largest=case.largest)
        load = case.paced(self._highest) if case.percent else case
        plain = run_plain(tools, load, home, messages)
        if case.by == BRUCE:
            daemon.warm_up(tools, load, messages)
            address = daemon.address(load.transport)
            run = daemon.carry(load, lambda: run_sender(tools, load, address, messages))
        else:
            run = run_peer(tools, load, home)
        pair = Pair(case.name, plain, run)
        self._highest = self._highest or pair.daemon.delivered / pair.daemon.settle_s
        reasons = refusals_of(pair.daemon)
        self.pairs.append(pair)
        if reasons:
            self._refuse(case, "; ".join(reasons))
        else:
            _say(f"{self.repetitions + 1}/{self.plan.repetitions} {case.name:<32} {pair.multiple:6.1f} x")

    def _refuse(self, case: Case, reason: str) -> None:
        self.refused[case.name] = reason
        _say(f"{case.name}: no figure: {reason}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
