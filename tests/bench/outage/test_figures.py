"""Figures from arrivals: groups, latencies, silences, the verdict."""

from __future__ import annotations

import msgspec
import pytest

from bench.latency import percentile
from bench.outage.drive import Loads, Observed, Phase
from bench.outage.figures import report_of
from bench.outage.load import Load, Place, parse_value
from bench.outage.read_back import ReadBack, check
from bench.outage.results import Group, Report
from bench.outage.sites import Traits
from bench.outage.table import render
from bench.outage.watcher import Arrival
from bruce_mp.protocol.client.messages import Message, parse_message
from bruce_mp.telemetry.books import Books
from support.kafka_reader import Record

LOADS = Loads(Load(rate=10, topics=("t",), partitions=2), Load(rate=10, topics=("d",), partitions=2))
S = 10**9
MS = 10**6
SECONDS = 8
NAMES = ("before", "down", "back", "after")
GOOD = Books(80, 80, {}, {"queued": 0}, possible_duplicates=0, consistent=True)
DEAD, ALIVE = Place("t", 0), Place("t", 1)


EMBEDDED = Traits("embedded", elects=False, has_append_times=False)
REAL = Traits("real", elects=True, has_append_times=True)


def arrival(load: Load, number: int, until_s: int) -> Arrival:
    """Return an arrival 10 ms after sending.

    Messages for the dead broker that were sent between 2 s and `until_s` arrive half a second after `until_s`.
    """
    home, sent_ns = load.home(number), number * S // load.rate
    waits = home.partition == 0 and 2 * S <= sent_ns < until_s * S
    return Arrival(number, home, sent_ns, until_s * S + S // 2 if waits else sent_ns + 10 * MS)


def record(load: Load, number: int) -> Record:
    sent_ns = number * S // load.rate
    return Record(number, None, load.value(number, sent_ns), sent_ns // MS + 4)


def observed(until_s: int = 5) -> Observed:
    """Return phases of 2 s: death at 2 s, return at 4 s; the dead broker's partitions receive again at `until_s`."""
    phases = [Phase(name, index * 2 * S, (index + 1) * 2 * S, 1.5) for index, name in enumerate(NAMES)]
    return Observed(
        *LOADS,
        killed_places=frozenset({DEAD, Place("d", 0)}),
        phases=phases,
        killed_ns=2 * S,
        back_ns=4 * S,
        sent=80,
        books=GOOD,
        arrivals=[arrival(load, number, until_s) for load in LOADS for number in range(SECONDS * load.rate)],
        records={
            place: [record(load, number) for number in range(80) if load.home(number) == place]
            for load in LOADS
            for place in load.places
        },
    )


def test_a_datagram_carries_its_number_time_and_home_partition() -> None:
    load = Load()
    message = parse_message(load.datagram(17, 123_456_789))
    assert isinstance(message, Message)
    assert message.partition_key is not None
    assert Place(message.topic.decode(), message.partition_key) == load.home(17)
    assert parse_value(message.value) == (17, 123_456_789)
    assert len(message.value) == load.size


def test_the_load_visits_every_partition_in_turn() -> None:
    load = Load()
    count = len(list(load.places))
    assert {load.home(number) for number in range(100, 100 + count)} == set(load.places)


@pytest.mark.parametrize(("percent", "value"), [(1, 1), (50, 2), (51, 3), (99, 4), (100, 4)])
def test_percentile_returns_a_sample_value(percent: int, value: int) -> None:
    assert percentile([1, 2, 3, 4], percent) == value


def test_report_separates_the_partition_groups() -> None:
    report = report_of(observed(), EMBEDDED, {})
    before, down, _, after = report.spans
    for group in Group:
        assert (before.flows[group].sent, before.flows[group].p50) == (5.0, 10.0)
        assert after.flows[group].p99 == 10.0
    assert down.flows[Group.OTHERS].p99 == down.flows[Group.DIRECT_OTHERS].p99 == 10.0
    assert down.flows[Group.DEAD].longest == down.flows[Group.DIRECT_DEAD].longest == 3500.0
    assert (down.flows[Group.DEAD].through, report.kept) == (0.0, 1.0)
    assert report.per_second[Group.OTHERS] == [5] * SECONDS
    assert report.per_second[Group.DEAD] == [5, 5, 0, 0, 0, 20, 5, 5]


def test_silence_starts_at_the_brokers_return_when_no_replica_takes_over() -> None:
    silence = report_of(observed(), EMBEDDED, {}).silences[Group.DEAD]
    assert (silence.longest, silence.flowing, silence.caught_up) == pytest.approx((3.2, 1.01, 1.5))


def test_silence_starts_at_the_brokers_death_when_a_replica_takes_over() -> None:
    silence = report_of(observed(until_s=3), REAL, {}).silences[Group.DEAD]
    assert (silence.longest, silence.flowing, silence.caught_up) == pytest.approx((1.2, 1.01, 1.5))


def test_an_unfinished_silence_ends_with_the_phase() -> None:
    silence = report_of(observed(), REAL, {}).silences[Group.DEAD]
    assert (silence.longest, silence.flowing) == pytest.approx((4 - 1.81, 2.0))


def test_records_diverted_to_another_partition_do_not_end_a_silence() -> None:
    seen = observed()
    diverted = Arrival(20, ALIVE, 2 * S, 3 * S)
    seen.arrivals = [diverted if one[:2] == (20, DEAD) else one for one in seen.arrivals]
    report = report_of(seen, EMBEDDED, {})
    assert report.silences[Group.DEAD] == report_of(observed(), EMBEDDED, {}).silences[Group.DEAD]
    assert report.spans[1].flows[Group.DEAD].arrived == 0.5


def test_report_has_log_append_times_only_where_brokers_supply_them() -> None:
    assert report_of(observed(), EMBEDDED, {}).spans[0].flows[Group.OTHERS].logged_p50 is None
    flow = report_of(observed(until_s=3), REAL, {}).spans[0].flows[Group.OTHERS]
    assert (flow.logged_p50, flow.logged_p99) == (4.0, 4.0)


def test_read_back_counts_missing_doubled_and_disordered_records() -> None:
    load = LOADS.load
    records = {DEAD: [record(load, number) for number in (2, 0, 0, 5)], ALIVE: [record(load, 1)]}
    assert check(load, 6, records) == ReadBack(6, 5, missing=2, doubled=1, disordered=1, elsewhere=1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"books": msgspec.structs.replace(GOOD, received=81)}, "80 were sent, 81 received"),
        ({"books": msgspec.structs.replace(GOOD, delivered=79)}, "the books do not balance"),
        ({"books": msgspec.structs.replace(GOOD, delivered=79, discarded={"NO_MEM": 1})}, "messages were discarded"),
        ({"read_back": ReadBack(80, 79, 1, 0, 0, 0)}, "1 messages are missing"),
        ({"read_back": ReadBack(80, 81, 0, 1, 0, 0)}, "1 messages are there twice"),
        ({"read_back": ReadBack(80, 80, 0, 0, 1, 0)}, "1 messages are out of order"),
        ({"rate": 12}, "83% of the pace was sent before"),
    ],
)
def test_a_report_is_refused_for_each_reason(change: dict[str, object], reason: str) -> None:
    good = report_of(observed(), EMBEDDED, {})
    assert good.refusals == []
    refused = msgspec.structs.replace(good, **change)
    assert reason in "; ".join(refused.refusals)
    assert f"NO FIGURE: {refused.refusals[0]}" in render(refused)


def test_report_names_unaffected_partitions_that_lose_throughput() -> None:
    seen = observed()
    seen.arrivals = [
        a._replace(seen_ns=5 * S) if a.place == ALIVE and 2 * S <= a.sent_ns < 3 * S else a for a in seen.arrivals
    ]
    report = report_of(seen, EMBEDDED, {})
    assert report.kept == 0.5
    assert "DID NOT KEEP 90% of their throughput: 50.0%" in render(report)
    assert "kept 90% of their throughput: 100.0%" in render(report_of(observed(), EMBEDDED, {}))


def test_a_report_survives_saving_and_loading() -> None:
    report = report_of(observed(until_s=3), REAL, {"cores": 2})
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
