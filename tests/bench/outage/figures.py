"""Figures from the observations of an outage."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from bench.latency import percentile
from bench.outage.load import parse_value
from bench.outage.read_back import check
from bench.outage.results import FORMAT, Flow, Group, Report, Silence, Span

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.outage.drive import Observed, Phase
    from bench.outage.load import Place
    from bench.outage.sites import Traits
    from bench.outage.watcher import Arrival

__all__ = ["report_of"]

_SECOND_NS = 10**9
_Logged = dict[tuple[str, int], int]
"""Time in the leader's log by topic and message number, in ms since the epoch."""


def report_of(observed: Observed, site: Traits, machine: dict[str, str | float]) -> Report:
    """Return the report on a complete outage."""
    groups = _grouped(observed)
    logged = _logged(observed) if site.has_append_times else {}
    start_ns = observed.phases[0].start_ns
    assert observed.books is not None
    return Report(
        format=FORMAT,
        machine=machine,
        site=site.name,
        since="its death" if site.elects else "its return",
        rate=observed.load.rate,
        spans=[
            Span(phase.name, phase.seconds, phase.cores, {group: _flow(some, phase, logged) for group, some in groups})
            for phase in observed.phases
        ],
        silences={group: _silence(group, some, observed, site) for group, some in groups},
        per_second={group: _per_second(some, start_ns, observed.phases[-1].end_ns) for group, some in groups},
        pauses=observed.pauses,
        books=observed.books,
        read_back=check(
            observed.load,
            observed.sent,
            {place: records for place, records in observed.records.items() if place.topic in observed.load.topics},
        ),
    )


def _grouped(observed: Observed) -> list[tuple[Group, list[Arrival]]]:
    groups: dict[Group, list[Arrival]] = {group: [] for group in Group}
    for arrival in observed.arrivals:
        groups[_group_of(arrival, observed)].append(arrival)
    return list(groups.items())


def _group_of(arrival: Arrival, observed: Observed) -> Group:
    if arrival.place.topic in observed.load.topics:
        return Group.DEAD if observed.load.home(arrival.number) in observed.killed_places else Group.OTHERS
    return Group.DIRECT_DEAD if arrival.place in observed.killed_places else Group.DIRECT_OTHERS


def _logged(observed: Observed) -> _Logged:
    return {
        (topic, parse_value(record.value or b"").number): record.timestamp
        for (topic, _), records in observed.records.items()
        for record in records
    }


def _flow(arrivals: Iterable[Arrival], phase: Phase, logged: _Logged) -> Flow:
    arrived = sum(phase.start_ns <= arrival.seen_ns < phase.end_ns for arrival in arrivals)
    sent = [arrival for arrival in arrivals if phase.start_ns <= arrival.sent_ns < phase.end_ns]
    latencies = sorted((arrival.seen_ns - arrival.sent_ns) / 1e6 for arrival in sent)
    in_log = sorted(logged[arrival.place.topic, arrival.number] - arrival.sent_ns / 1e6 for arrival in sent if logged)
    return Flow(
        sent=len(sent) / phase.seconds,
        arrived=arrived / phase.seconds,
        p50=percentile(latencies, 50),
        p99=percentile(latencies, 99),
        longest=latencies[-1],
        logged_p50=percentile(in_log, 50) if in_log else None,
        logged_p99=percentile(in_log, 99) if in_log else None,
    )


def _silence(group: Group, arrivals: Iterable[Arrival], observed: Observed, site: Traits) -> Silence:
    event_ns = observed.killed_ns if site.elects else observed.back_ns
    end_ns = next(phase.end_ns for phase in observed.phases if event_ns < phase.end_ns)
    moments: dict[Place, list[int]] = {}
    for arrival in arrivals:
        is_at_home = (arrival.place in observed.killed_places) == group.is_killed
        if arrival.seen_ns < end_ns and is_at_home:
            moments.setdefault(arrival.place, []).append(arrival.seen_ns)
    gaps = [_longest_gap([*some, end_ns], observed.killed_ns) for some in moments.values()]
    flowing_ns = max(after for _, after in gaps)
    waited = (arrival.seen_ns for arrival in arrivals if arrival.sent_ns <= flowing_ns)
    return Silence(
        longest=max(after - before for before, after in gaps) / 1e9,
        flowing=(flowing_ns - event_ns) / 1e9,
        caught_up=(max(waited) - event_ns) / 1e9,
    )


def _longest_gap(moments: Iterable[int], since_ns: int) -> tuple[int, int]:
    """Return the longest gap between two moments with the second one after `since_ns`."""
    gaps = (gap for gap in pairwise(sorted(moments)) if gap[1] > since_ns)
    return max(gaps, key=lambda gap: gap[1] - gap[0])


def _per_second(arrivals: Iterable[Arrival], start_ns: int, end_ns: int) -> list[int]:
    counts = Counter((arrival.seen_ns - start_ns) // _SECOND_NS for arrival in arrivals)
    return [counts[second] for second in range((end_ns - start_ns) // _SECOND_NS)]
