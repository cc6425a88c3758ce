"""Refusal of figures, and the figures of sound runs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.__main__ import merge
from bench.cases import GROUPS, GROWTH, IDLE, LOADS, ORDINARY, PACES, Site, case_names, choose_cases
from bench.results import DaemonRun, Figure, Idle, Life, Pair, PlainRun, Recorded, Report, figure_of, refusals_of
from bench.session import Plan
from bench.table import render

GOOD = DaemonRun(
    sent=1000,
    received=1000,
    delivered=990,
    discarded=10,
    held=0,
    stored=990,
    send_s=0.5,
    settle_s=1.0,
    cpu_s={"input": 0.00297, "router": 0.00099},
    wakeups={"input": 99, "router": 0},
    sink_cpu_s=0.00099,
    balanced=True,
    same_processes=True,
)
PLAIN = PlainRun(messages=1000, seconds=0.25, cpu_s=0.001)


def pair(cpu_s: float) -> Pair:
    return Pair("a-case", PLAIN, msgspec.structs.replace(GOOD, cpu_s={"input": cpu_s}))


def report(**figures: Figure) -> Report:
    idle = Idle(20.0, {"input": 0.001}, {"input": 1.0})
    life = Life(0.5, 0.75, idle, {"input": 10_000_000}, {"a-case": {"input": 11_000_000}}, 5_000_000, 8_000_000)
    refused, absent = {"bad-case": "the books do not balance"}, {"a-peer": "it is not installed"}
    return Report({"cores": 2}, figures, refused, absent, idle, [life], [])


def test_a_sound_run_is_accepted() -> None:
    assert refusals_of(GOOD) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sent": 1001}, "1001 were sent, 1000 received"),
        ({"received": 999, "sent": 999}, "received are 999, delivered, discarded or held 1000"),
        ({"balanced": False}, "the books do not balance"),
        ({"held": 5, "delivered": 985, "stored": 985}, "5 were still held when the time was up"),
        ({"stored": 991}, "990 are delivered by the books, the broker stored 991"),
        ({"delivered": 0, "stored": 0, "discarded": 1000}, "nothing was delivered"),
        ({"same_processes": False}, "a process was started again"),
    ],
)
def test_a_run_is_refused_for_each_reason_alone(change: dict[str, object], reason: str) -> None:
    assert refusals_of(msgspec.structs.replace(GOOD, **change)) == [reason]


def test_a_figure_is_per_delivered_message_and_the_median_of_the_repetitions() -> None:
    figure = figure_of([pair(0.00198), pair(0.0099), pair(0.00396)])
    assert figure.plain_us == pytest.approx(1.0)
    assert figure.daemon_us == pytest.approx(4.0)
    assert (figure.multiple, figure.lowest_multiple, figure.highest_multiple) == pytest.approx((4.0, 2.0, 10.0))
    assert figure.process_us == pytest.approx({"input": 4.0})
    assert figure.wakeups_per_1000 == pytest.approx({"input": 100.0})
    assert (figure.plain_rate, figure.rate_in, figure.rate_through) == pytest.approx((4000, 2000, 990))
    assert figure.discarded_share == pytest.approx(0.01)


def test_the_table_shows_figures_beside_the_baseline_and_refusals() -> None:
    now = report(first=figure_of([pair(0.00396)]), second=figure_of([pair(0.0099)]))
    before = report(first=figure_of([pair(0.00198)]))
    lines = render("loads", now, before).splitlines()
    first, second = (next(line for line in lines if line.startswith(name)) for name in ("first", "second"))
    assert first.split()[1:7] == ["1.00", "4.00", "4.0", "x", "(4.0-4.0)", "2.0"]
    assert second.split()[5:7] == ["(10.0-10.0)", "-"]
    assert f"{'bad-case':<32} NO FIGURE: the books do not balance" in lines
    assert f"{'a-peer':<32} not measured: it is not installed" in lines
    assert any(line.startswith("idle") and "0.10 % of a core (was 0.10 %)" in line for line in lines)


def test_growth_table_shows_ratios_of_figures_and_of_multiples() -> None:
    growth = GROWTH[0]
    few, many = figure_of([pair(0.00198)]), figure_of([pair(0.00495)])
    lines = render("growth", report(**{growth.small.name: few, growth.large.name: many}), None).splitlines()
    assert any(line.split()[-6:] == ["2.00", "5.00", "2.50", "2.0", "5.0", "2.50"] for line in lines)


def test_latency_figures_are_medians_and_appear_in_the_table() -> None:
    runs = [msgspec.structs.replace(GOOD, latency_ms={"p50": 1.0 * n, "p99": 10.0 * n}) for n in (1, 2, 9)]
    figure = figure_of([Pair("a-case", PLAIN, run) for run in runs])
    assert figure.latency_ms == {"p50": 2.0, "p99": 20.0}
    assert "p50 2.00 ms  p99 20.00 ms" in render("latency", report(slow=figure), None)


def test_the_table_of_an_ordinary_host_shows_its_rhythm() -> None:
    runs = [msgspec.structs.replace(GOOD, runs=10 * n, batches=20 * n, settle_s=2.0) for n in (1, 2, 9)]
    figure = figure_of([Pair("a-case", PLAIN, run) for run in runs])
    assert (figure.runs_per_s, figure.batches_per_s) == (10.0, 20.0)
    assert "10 runs/s, 20 record batches/s; wake-ups/s: input 50" in render("ordinary", report(paced=figure), None)
    assert "runs/s" not in render("loads", report(paced=figure), None)


def test_a_quick_plan_leaves_the_grid_out() -> None:
    quick = Plan.of("ordinary", [], None, quick=True)
    assert [case.name for case in quick.cases] == [case.name for case in ORDINARY if not case.in_full]


def test_a_pattern_chooses_cells_beside_the_axes_of_the_grid() -> None:
    names = [case.name for case in choose_cases("ordinary", ["datagrams 100B */s 1000t 10b"])]
    assert names == [f"datagrams 100B {pace}/s 1000t 10b" for pace in PACES]
    assert not {*names} & {case.name for case in ORDINARY}


def test_a_recorded_slice_keeps_the_other_figures() -> None:
    old, new = figure_of([pair(0.00396)], "before"), figure_of([pair(0.0099)], "now")
    merged = merge(report(a=old, b=old), report(b=new, c=new), is_whole=False)
    assert {name: figure.sitting for name, figure in merged.figures.items()} == {"a": "before", "b": "now", "c": "now"}
    assert merge(report(a=old), report(b=new), is_whole=True).figures == {"b": new}


def test_a_report_survives_saving_and_loading() -> None:
    written = Recorded(2, {"loads": report(first=figure_of([pair(0.00396)]))})
    assert msgspec.json.decode(msgspec.json.encode(written), type=Recorded) == written


def test_the_recorded_baseline_has_every_case() -> None:
    recorded = msgspec.json.decode(Path(__file__).with_name("baseline.json").read_bytes(), type=Recorded).groups
    assert recorded.keys() == GROUPS.keys()
    for name, cases in GROUPS.items():
        assert {*recorded[name].figures, *recorded[name].absent} >= {case.name for case in cases}
        assert not recorded[name].refused
    assert recorded["loads"].idle is not None


def test_case_names_are_unique() -> None:
    assert len(set(case_names())) == len(case_names())


@pytest.mark.parametrize("group", GROUPS)
def test_a_plan_without_names_has_the_whole_group(group: str) -> None:
    plan = Plan.of(group, [], None, quick=False)
    assert (list(plan.cases), plan.repetitions) == (list(GROUPS[group]), 3)
    by_site = [case.name for _, cases in plan.sites() for case in cases]
    assert sorted(by_site) == sorted(case.name for case in GROUPS[group])


def test_only_the_first_group_measures_the_idle_daemon() -> None:
    assert [Plan.of(group, [], None, quick=False).idle_s for group in GROUPS] == [20.0, *[0.0] * (len(GROUPS) - 1)]


def test_a_quick_plan_is_shorter_everywhere() -> None:
    plan = Plan.of("loads", [], None, quick=True)
    assert plan.repetitions == 1
    assert all(quick.messages < whole.messages for quick, whole in zip(plan.cases, LOADS, strict=True))


def test_the_idle_daemon_can_be_measured_alone() -> None:
    plan = Plan.of("loads", [IDLE], 1, quick=False)
    assert list(plan.sites()) == [(Site(), [])]
    assert plan.idle_s == 20.0


def test_a_named_case_does_not_measure_the_idle_daemon() -> None:
    plan = Plan.of("loads", ["1KB"], None, quick=False)
    assert [case.name for case in plan.cases] == ["1KB"]
    assert plan.idle_s == 0.0


def test_a_percent_case_adds_the_case_that_measures_the_highest_rate() -> None:
    plan = Plan.of("latency", ["unbatched-10%"], 1, quick=False)
    assert [case.name for case in plan.cases] == ["100B-flat-out", "unbatched-10%"]
    paced = plan.cases[1].paced(50_000)
    assert (paced.rate, paced.messages) == (5_000, 15_000)
