"""One whole session against a real daemon, as short as can be."""

from __future__ import annotations

import pytest

from bench.cases import Case
from bench.results import figure_of
from bench.session import Plan, Session

pytestmark = pytest.mark.process


def test_a_session_brings_a_figure_for_each_case_and_the_daemons_life() -> None:
    cases = (Case("small", 100, 3000), Case("many", 500, 1000, senders=5))
    session = Session(Plan(cases, repetitions=1, idle_s=0.0))
    session.run()
    assert not session.refused
    assert [pair.case for pair in session.pairs] == ["small", "many"]
    figure = figure_of(session.pairs[:1])
    assert figure.multiple > 1
    assert {"supervisor", "input", "router", "dispatcher-0", "status"} <= figure.process_us.keys()
    assert figure.discarded_share == 0
    (life,) = session.lives
    assert 0 < life.taken_s <= life.received_s
    assert set(life.memory_after) == {"small", "many"}
    assert 0 < life.slab_mapped <= life.slab_file * 2
