"""A short session against a real daemon."""

from __future__ import annotations

import math

import pytest

from bench.cases import PER_TOPIC, Case, Site
from bench.peers import PEERS
from bench.results import figure_of
from bench.session import TIME_LIMIT_S, Plan, Session

pytestmark = [pytest.mark.process, pytest.mark.quiet]


def test_a_session_measures_each_case_and_the_daemon_lifecycle() -> None:
    cases = (Case("small", 100, 3000), Case("many", 500, 1000, senders=5))
    session = Session(Plan(cases, repetitions=2, idle_s=0.0, limit_s=0.0))
    session.run()
    assert not session.refused
    assert session.repetitions == 1, "none begins after the time limit"
    assert [pair.case for pair in session.pairs] == ["small", "many"]
    figure = figure_of(session.pairs[:1])
    assert figure.plain_us > 0
    assert {"supervisor", "input", "router", "dispatcher-0", "status"} <= figure.process_us.keys()
    assert figure.discarded_share == 0
    (life,) = session.lives
    assert 0 < life.taken_s <= life.received_s
    assert set(life.memory_after) == {"small", "many"}
    assert 0 < life.slab_mapped <= life.slab_file * 2


def test_explicit_repetitions_have_no_time_limit() -> None:
    assert Plan.of("growth", [], None, quick=False).limit_s == TIME_LIMIT_S
    plan = Plan.of("growth", [], 7, quick=False)
    assert (plan.repetitions, plan.limit_s) == (7, math.inf)


def test_session_measures_streams_a_full_slab_and_latencies() -> None:
    full, streams = Site(PER_TOPIC, brokers=2, filled=90), Site(streams=True)
    timed = Site(PER_TOPIC, brokers=2, filled=90, keeps_records=True)
    cases = (
        Case("flat out", 100, 3000, site=full),
        Case("paced", 100, 500, percent=10, site=timed),
        Case("unix", 100, 3000, transport="unix", per_write=32, site=streams),
        Case("tcp", 1000, 500, transport="tcp", keyed=True, site=streams),
    )
    session = Session(Plan(cases, repetitions=1, idle_s=0.0))
    session.run()
    assert not session.refused
    flat_out, paced, unix, tcp = (pair.daemon for pair in session.pairs)
    assert [run.delivered for run in (flat_out, unix, tcp)] == [3000, 3000, 500]
    assert 0 < paced.latency_ms["p50"] <= paced.latency_ms["p99"]


def test_peers_carry_the_load_or_are_listed_as_absent() -> None:
    peers = [Case(name, 200, 500, by=name) for name in PEERS]
    session = Session(Plan(peers, repetitions=1, idle_s=0.0))
    session.run()
    assert not session.refused
    assert {*(pair.case for pair in session.pairs), *session.absent} == PEERS.keys()
    assert {"confluent-kafka", "kafka-python"} <= {pair.case for pair in session.pairs}  # tests have them
    assert all(pair.daemon.stored == 500 for pair in session.pairs)
