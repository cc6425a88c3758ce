"""One chaos run: topics, daemon, faults, reading back, comparison."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason
from bruce_mp.protocol.client.discard_line import LineEvent, parse_line
from chaos.variations import CODECS, Variation, variation_of
from support.chaos import (
    EXACTLY_ONCE,
    IN_DOUBT,
    LIMIT_REASONS,
    REASONS,
    UNFINISHED,
    Chaos,
    Guarantees,
    Outcome,
    check,
    settings_for,
    stuck_load,
)
from support.chaos_sites import LEADER_PRESERVING, FaultKind
from support.daemon import Daemon
from support.traffic import Account, Name, compare

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from bruce_mp.protocol.client.discard_line import DiscardLine
    from support.chaos_sites import Site
    from support.traffic import Load, Seen

__all__ = ["Report", "Run", "run_chaos"]

TOPICS: Final = 5
"""Number of topics; the last is the stuck one."""
CERTAIN: Final = frozenset(reason.name for reason in DiscardReason) - {IN_DOUBT}


@dataclass(frozen=True, slots=True)
class Run:
    """The parameters of a run; `rate` is in messages per second and sender, before the variation scales it."""

    seed: int
    seconds: float
    rate: float
    fault_kinds: Collection[FaultKind] = tuple(FaultKind)
    guarantees: Guarantees = EXACTLY_ONCE
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

    @property
    def repeated_after_cuts(self) -> int:
        """Return the number of repeated messages that a power cut restored."""
        return (self.account.repeated_names & self.outcome.restored).total()

    def __str__(self) -> str:
        outcome, account = self.outcome, self.account
        return (
            f"seed {self.run.seed}, {self.run.seconds:g} s, {self.run.variation}: {len(outcome.faults)} faults, books "
            f"balanced {outcome.checks} times, {outcome.received} received, {account.read} read, discarded "
            f"{dict(outcome.discarded)}, {len(account.missing)} missing, {outcome.sockets_lost} sockets lost, "
            f"{account.repeated.total()} repeated of {outcome.possible_duplicates} counted as possible; "
            f"{len(outcome.cuts)} power cuts restored {outcome.restored.total()}, of which {self.repeated_after_cuts} "
            f"repeated; {outcome.attacks}"
        )


def run_chaos(run: Run, site: Site, directory: Path) -> Report:
    """Run chaos at a site. AssertionError names the violated promise."""
    topics = tuple(f"chaos-{directory.name}-{number}" for number in range(TOPICS))
    site.create_topics(topics)
    load, rate = run.variation.load(topics[:-1], run.seed), run.variation.rate(run.rate)
    settings = {**run.variation.settings(), **settings_for(directory, run.fault_kinds), **run.settings}
    with Daemon(directory, site.bootstrap, settings) as daemon:
        outcome = Chaos(daemon, site, load, rate=rate, seed=run.seed, fault_kinds=run.fault_kinds).run(run.seconds)
    outcome.discarded_names = _discarded_names(directory)
    records = {topic: site.read_back(topic) for topic in topics}
    report = Report(run, outcome, _compare(run, load, site, outcome, records))
    print(f"{report}: {', '.join(outcome.faults)}")
    assert outcome.received > run.seconds * rate / 40, f"There was hardly any traffic: {report}"
    check(run.guarantees, outcome, report.account)
    _check_reasons(report)
    return report


def _compare(run: Run, load: Load, site: Site, outcome: Outcome, records: Mapping[str, list[Seen]]) -> Account:
    """Compare the records of the load and of the stuck topic.

    Restored messages choose their partitions again, and the flusher's connections may pass each other.
    """
    substitutes = (
        {} if LEADER_PRESERVING.issuperset(run.fault_kinds) else {topic: site.counts(topic) for topic in records}
    )
    restored = outcome.restored
    account = Account()
    for part in (load, stuck_load(load, site.stuck_topic)):
        is_stuck = part is not load
        account.add(
            compare(
                part,
                {sender: sent for sender, sent in outcome.sent.items() if (sender > load.senders) is is_stuck},
                {topic: records[topic] for topic in part.topics},
                substitutes,
                in_order=not run.guarantees.may_reorder,
                unordered=lambda name: name in restored or name.sender == load.senders,
            )
        )
    return account


def _check_reasons(report: Report) -> None:
    """Check that the run's faults and variation explain each reason, and that no foreign host read a page."""
    allowed = {UNFINISHED}.union(*(REASONS.get(kind, ()) for kind in report.run.fault_kinds))
    if report.run.variation.attempts:
        allowed |= LIMIT_REASONS
    assert report.outcome.discarded.keys() <= allowed, report.outcome.discarded
    attacks = report.outcome.attacks
    assert attacks is None or (attacks.refused and not attacks.leaks), attacks


def _discarded_names(directory: Path) -> set[Name]:
    """Return the messages of the discard file, except those that Kafka may have."""
    lines = [line for path in directory.glob("discards/*") for line in _whole_lines(path.read_bytes())]
    return {Name.of(line.value) for line in lines if line.event is LineEvent.DISCARD and line.info in CERTAIN}


def _whole_lines(data: bytes) -> list[DiscardLine]:
    """Return the lines that were written whole: a killed writer leaves a torn one, which the next writer marks."""
    *ended, _ = data.split(b"\n")
    return [parse_line(line) for line in ended if not line.endswith(b" cut")]
