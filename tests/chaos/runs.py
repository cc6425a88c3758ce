"""One chaos run: topics, daemon, faults, reading back, comparison."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from chaos.variations import CODECS, Variation, variation_of
from support.accounts import Account, compare
from support.chaos import EXACTLY_ONCE, Chaos, Law, Outcome, check
from support.chaos_sites import LEADER_PRESERVING, FaultKind
from support.daemon import Daemon

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from support.chaos_sites import Site

__all__ = ["Report", "Run", "run_chaos"]

TOPICS: Final = 4


@dataclass(frozen=True, slots=True)
class Run:
    """The parameters of a run; `rate` is in messages per second and sender, before the variation scales it."""

    seed: int
    seconds: float
    rate: float
    fault_kinds: Collection[FaultKind] = tuple(FaultKind)
    law: Law = EXACTLY_ONCE
    codecs: tuple[str, ...] = CODECS
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def variation(self) -> Variation:
        return variation_of(self.seed, self.codecs)


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run."""

    run: Run
    outcome: Outcome
    account: Account

    def __str__(self) -> str:
        outcome, account = self.outcome, self.account
        return (
            f"seed {self.run.seed}, {self.run.seconds:g} s, {self.run.variation}: {len(outcome.faults)} faults, books "
            f"balanced {outcome.checks} times, {outcome.received} received, {account.read} read, "
            f"{len(account.missing)} gone with {outcome.sockets_lost} sockets, {account.repeated.total()} repeated of "
            f"{outcome.possible_duplicates} counted as possible"
        )


def run_chaos(run: Run, site: Site, directory: Path) -> Report:
    """Run chaos at a site. AssertionError names the violated promise."""
    topics = tuple(f"chaos-{directory.name}-{number}" for number in range(TOPICS))
    site.make_topics(topics)
    load, rate = run.variation.load(topics, run.seed), run.variation.rate(run.rate)
    with Daemon(directory, site.bootstrap, {**run.variation.settings(), **run.settings}) as daemon:
        outcome = Chaos(daemon, site, load, rate=rate, seed=run.seed, fault_kinds=run.fault_kinds).run(run.seconds)
    records = {topic: site.read_back(topic) for topic in topics}
    standing_in = (
        {} if LEADER_PRESERVING.issuperset(run.fault_kinds) else {topic: site.counts(topic) for topic in topics}
    )
    account = compare(load, outcome.sent, records, standing_in, in_order=not run.law.may_reorder)
    report = Report(run, outcome, account)
    print(f"{report}: {', '.join(outcome.faults)}")
    assert outcome.received > run.seconds * rate / 4, f"There was hardly any traffic: {report}"
    check(run.law, outcome, account)
    return report
