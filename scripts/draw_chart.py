#!/usr/bin/env python3
"""Draw bar charts of the CPU time per message, in SVG. A test fails if the pictures in docs/images are out of date.

    scripts/draw_chart.py > docs/images/cpu-per-message.svg
    scripts/draw_chart.py applications > docs/images/application-and-daemon.svg

The first picture compares the daemon with other programs. Its figures are the groups `peers` and `ordinary` of
tests/bench/baseline.json, which `scripts/bench peers ordinary --record` writes, and, for the ancestor of this project
(a C++ daemon, which the benchmark cannot start), tests/bench/ancestor.json.

The second picture compares applications that send to the daemon, together with the daemon, with applications that use a
Kafka client and no daemon. Its figures are tests/bench/applications.json, which `scripts/bench applications --record`
writes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDED: Final = Path(__file__).parents[1] / "tests" / "bench"
SIZES: Final = {"100B": "messages of 100 bytes", "1KB": "messages of 1 KB"}
PEERS: Final = {
    "bruce": "bruce_mp",
    "rsyslog": "rsyslog, imuxsock to omkafka",
    "confluent-kafka": "confluent-kafka in process, no daemon",
}
"""Names of the programs in the cases of the group `peers`, each with the text beside its bar."""
ORDINARY: Final = {
    "datagrams-50t-3b": "bruce_mp, datagrams",
    "stream-50t-3b": "bruce_mp, UNIX stream, a message a write",
}
"""Cases of the group `ordinary` that have a bar, each with the text beside it."""
ORDINARY_TITLE: Final = "3,000 messages a second, 50 topics"

APPLICATION_SIZES: Final = {**SIZES, "10KB": "messages of 10 KB"}

# Lengths in the picture, in its own units:
LEFT: Final = 330  # left end of the bars
WIDTH: Final = 420  # of the longest bar
ROW: Final = 30  # height of a row, which has one bar
TOP: Final = 62  # top of the first panel

HEAD: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 {height}" role="img" aria-labelledby="title desc" \
font-family="system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif">
  <title id="title">{title}</title>
  <desc id="desc">{description}</desc>
  <style>
    .ground {{ fill: #ffffff; }} .text {{ fill: #1b2430; }} .small {{ fill: #46525f; }}
    .ours {{ fill: #2563a8; }} .other {{ fill: #a9b4c0; }} .ancestor {{ fill: #c98a2b; }} \
.own {{ fill: #7fb3e6; }} .axis {{ stroke: #8b98a9; }}
    @media (prefers-color-scheme: dark) {{
      .ground {{ fill: #12171e; }} .text {{ fill: #eaf0f6; }} .small {{ fill: #b4c0cc; }}
      .ours {{ fill: #6fb0f5; }} .other {{ fill: #66727f; }} .ancestor {{ fill: #e0a84e; }} \
.own {{ fill: #37618c; }} .axis {{ stroke: #5d6c7e; }}
    }}
    .text {{ font-size: 14px; }} .small {{ font-size: 12px; }}
    .bold {{ font-weight: 600; }} .name {{ text-anchor: end; }}
  </style>
  <rect class="ground" width="820" height="{height}" rx="10"/>
  <text class="text bold" x="20" y="30">{title} in µs, user and system: shorter is better</text>
"""


class Bar(NamedTuple):
    """One bar, for one measured figure."""

    name: str
    microseconds: float
    css_class: str
    own_microseconds: float = 0.0
    """The application's own part of `microseconds`, which has another color."""


def render() -> str:
    """Return the picture of the daemon and other programs as SVG."""
    groups, ancestor = _recorded("baseline.json")["groups"], _recorded("ancestor.json")
    peers = groups["peers"]
    panels = {SIZES[size]: _bars(size, peers["figures"], ancestor) for size in SIZES}
    panels[ORDINARY_TITLE] = _ordinary_bars(groups["ordinary"]["figures"], ancestor)
    return _picture("CPU time per message", panels, _notes(peers["machine"], groups["ordinary"]["figures"], ancestor))


def render_applications() -> str:
    """Return the picture of applications and daemon as SVG."""
    recorded = _recorded("applications.json")
    panels = {title: _application_bars(size, recorded["figures"]) for size, title in APPLICATION_SIZES.items()}
    machine = recorded["machine"]
    run = f"scripts/bench applications at {machine['commit']}, repetitions: {machine['repetitions']:.0f}"
    notes = [
        "Light: the application. Dark: the daemon. Grey: a Kafka client in the process, without a daemon.",
        f"One application without pauses, {machine['cores']:.0f} cores, {machine['date']}, {run}.",
    ]
    return _picture("CPU time per message, application and daemon", panels, notes)


def _application_bars(size: str, figures: dict[str, Any]) -> list[Bar]:
    # A figure without CPU time of the daemon is that of an application with its own Kafka client.
    found = {name: loads[size] for name, loads in figures.items() if size in loads}
    return [
        Bar(name, figure["total_us"], "ours", figure["application_us"])
        if figure["daemon_us"]
        else Bar(name, figure["total_us"], "other")
        for name, figure in found.items()
    ]


def _picture(title: str, panels: dict[str, list[Bar]], notes: list[str]) -> str:
    """Return a picture of panels, which are groups of bars by title, with notes below them."""
    scale = WIDTH / max(bar.microseconds for bars in panels.values() for bar in bars)
    below = TOP + sum(_height(bars) for bars in panels.values())
    description = escape(_description(panels))
    lines = [HEAD.format(title=title, height=below + 18 * len(notes) + 14, description=description)]
    at = TOP
    for name, bars in panels.items():
        lines.extend(_panel(name, bars, at, scale))
        at += _height(bars)
    lines.extend(_note(note, below + 18 * number) for number, note in enumerate(notes))
    return "".join([*lines, "</svg>\n"])


def _recorded(name: str) -> dict[str, Any]:
    return dict(json.loads((RECORDED / name).read_text()))


def _bars(size: str, figures: dict[str, Any], ancestor: dict[str, Any]) -> list[Bar]:
    bars = [
        Bar(name, figures[f"{size}-{peer}"]["daemon_us"], "ours" if peer == "bruce" else "other")
        for peer, name in PEERS.items()
    ]
    return [*bars, _ancestor_bar(size, ancestor)]


def _ordinary_bars(figures: dict[str, Any], ancestor: dict[str, Any]) -> list[Bar]:
    bars = [Bar(name, figures[case]["daemon_us"], "ours") for case, name in ORDINARY.items()]
    bare = Bar("a C program that only receives", figures["datagrams-50t-3b"]["plain_us"], "other")
    return [*bars, bare, _ancestor_bar("ordinary", ancestor)]


def _ancestor_bar(load: str, ancestor: dict[str, Any]) -> Bar:
    measured_beside = f"{ancestor['name']}, measured beside {ancestor['commit']}"
    return Bar(measured_beside, ancestor["us_per_message"][load], "ancestor")


def _height(bars: list[Bar]) -> int:
    return ROW * len(bars) + 54


def _panel(title: str, bars: list[Bar], at: int, scale: float) -> Iterator[str]:
    yield f'  <text class="text bold name" x="{LEFT - 12}" y="{at + 8}">{escape(title)}</text>\n'
    top = at + 20
    for number, bar in enumerate(bars):
        yield from _row(bar, top + ROW * number, scale)
    yield f'  <path class="axis" d="M{LEFT} {top}V{top + ROW * len(bars)}"/>\n'


def _row(bar: Bar, at: int, scale: float) -> Iterator[str]:
    width = bar.microseconds * scale
    yield f'  <text class="text name" x="{LEFT - 12}" y="{at + 20}">{escape(bar.name)}</text>\n'
    yield f'  <rect class="{bar.css_class}" x="{LEFT}" y="{at + 5}" width="{width:.1f}" height="{ROW - 10}"/>\n'
    if bar.own_microseconds:
        own_width = bar.own_microseconds * scale
        yield f'  <rect class="own" x="{LEFT}" y="{at + 5}" width="{own_width:.1f}" height="{ROW - 10}"/>\n'
    yield f'  <text class="text" x="{LEFT + width + 8:.1f}" y="{at + 20}">{_figure(bar)}</text>\n'


def _figure(bar: Bar) -> str:
    return f"{bar.microseconds:.1f}" if bar.microseconds >= 1 else f"{bar.microseconds:.2f}"


def _notes(machine: dict[str, Any], ordinary: dict[str, Any], ancestor: dict[str, Any]) -> list[str]:
    ours = ancestor["bruce_us_per_message"]
    beside = " and ".join(f"{ours[size]:.1f} µs for {SIZES[size]}" for size in SIZES)
    run = f"scripts/bench peers at {machine['commit']}, repetitions: {machine['repetitions']:.0f}"
    sittings = " and ".join(dict.fromkeys(ordinary[case]["sitting"] for case in ORDINARY))  # without repetitions
    return [
        f"Above: datagrams from one sender without pauses, {machine['cores']:.0f} cores, {machine['date']}, {run}.",
        f"Below: 50 to 3,000 bytes from two senders, batches of 200 ms, 3 brokers, scripts/bench ordinary, {sittings}.",
        f"{ancestor['name']}: {ancestor['load']}.",
        f"In that sitting bruce_mp at {ancestor['commit']} needed {beside}.",
    ]


def _note(text: str, at: int) -> str:
    return f'  <text class="small" x="20" y="{at}">{escape(text)}</text>\n'


def _description(panels: dict[str, list[Bar]]) -> str:
    return " ".join(
        f"{title}: " + ", ".join(f"{bar.name} {_figure(bar)}" for bar in bars) + "." for title, bars in panels.items()
    )


if __name__ == "__main__":
    sys.stdout.write(render_applications() if sys.argv[1:] == ["applications"] else render())
