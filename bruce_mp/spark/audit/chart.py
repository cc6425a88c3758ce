"""Draw a topic over time as SVG: bars for the numbers of messages, and below each bar marks for its problems.

The size of a mark does not depend on the number of messages, so that one lost message among a million is visible.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["PROBLEMS", "STYLE", "VOLUMES", "Bar", "draw_chart"]

VOLUMES: Final = ("delivered", "discarded")
"""Columns of the balance that the bars show."""
PROBLEMS: Final = ("missing", "doubled", "out_of_order")
"""Columns of the balance that the marks show."""
STYLE: Final = """
figure { margin: 0 } svg.chart { width: 100%; height: auto; background: #f6f8fa; border-radius: .4rem }
.delivered { fill: #3a8f5c } .discarded { fill: #d9a400 } .missing { fill: #c0392b } .doubled { fill: #7d4cc2 }
.out_of_order { fill: #2f7dc1 } .axis { font-size: 11px; fill: #57606a } .line { stroke: #d9dee3 }
figcaption { color: #57606a } figcaption span { margin-right: 1rem; white-space: nowrap }
figcaption svg { width: .7rem; height: .7rem; margin-right: .3rem }
@media (prefers-color-scheme: dark) { svg.chart { background: #161b22 } .axis { fill: #9aa4ae }
  .line { stroke: #30363d } figcaption { color: #9aa4ae } }
"""
# Positions and sizes in units of the SVG's viewBox, which is 960 wide.
_LEFT: Final = 90.0
_RIGHT: Final = 945.0
_BARS_TOP: Final = 15.0
_BARS_BOTTOM: Final = 150.0
_MARKS_TOP: Final = 160.0
_MARK_SIZE: Final = 9.0
_HEIGHT: Final = 215
_MAX_BAR_WIDTH: Final = 60.0


@dataclass(frozen=True, slots=True)
class Bar:
    """An interval of one topic, with the numbers of messages by column of the balance.

    `index` is the number of the interval on the time axis; `start_ms` is its start since the epoch.
    """

    index: int
    start_ms: int
    length_ms: int
    counts: Mapping[str, int]


def draw_chart(bars: Sequence[Bar]) -> str:
    """Return the figure as HTML. `bars` are in order of time; an interval without messages may have none."""
    if not any(count for bar in bars for count in bar.counts.values()):
        return "<p>No ledger contains messages of this topic.</p>"
    first, last = bars[0].index, bars[-1].index
    width = min((_RIGHT - _LEFT) / (last - first + 1), _MAX_BAR_WIDTH)
    highest_count = max(1, *(sum(bar.counts[name] for name in VOLUMES) for bar in bars))
    height_per_message = (_BARS_BOTTOM - _BARS_TOP) / highest_count
    body = "".join(_draw_bar(bar, _LEFT + (bar.index - first) * width, width, height_per_message) for bar in bars)
    right = _LEFT + (last - first + 1) * width
    return (
        f"<figure><svg class=chart viewBox='0 0 960 {_HEIGHT}' role=img aria-label='messages over time'>"
        f"{_draw_axes(bars, highest_count, right)}{body}</svg><figcaption>{_LEGEND}</figcaption></figure>"
    )


def _draw_axes(bars: Sequence[Bar], highest_count: int, right: float) -> str:
    end = _format_time(bars[-1].start_ms + bars[-1].length_ms)
    labels = [
        (_LEFT - 6, _BARS_TOP + 4, "end", f"{highest_count:,}"), (_LEFT - 6, _BARS_BOTTOM, "end", "0"),
        (_LEFT, _HEIGHT - 8, "start", _format_time(bars[0].start_ms)),
        # In a chart of few bars, a distance of 260 leaves room for the time of the start and that of the end.
        (max(right, _LEFT + 260), _HEIGHT - 8, "end", end), (_LEFT - 6, _MARKS_TOP + 18, "end", "problems"),
    ]  # fmt: skip
    texts = (
        f"<text class=axis x={x:.0f} y={y:.0f} text-anchor={anchor}>{text}</text>" for x, y, anchor, text in labels
    )
    heights = (_BARS_TOP, _BARS_BOTTOM)
    lines = (f"<line class=line x1={_LEFT:.0f} x2={_RIGHT:.0f} y1={y:.0f} y2={y:.0f} />" for y in heights)
    return "".join((*lines, *texts))


def _draw_bar(bar: Bar, x: float, width: float, height_per_message: float) -> str:
    parts, y = [], _BARS_BOTTOM
    inner_width = max(width - 1, 1.0)  # leaves a gap of 1 between bars
    for name in VOLUMES:
        if bar.counts[name]:
            height = max(bar.counts[name] * height_per_message, 1.0)
            y -= height
            parts.append(_draw_rectangle(bar, name, (x, y, inner_width, height)))
    for row, name in enumerate(PROBLEMS):
        if bar.counts[name]:
            mark_width = min(max(inner_width, 4.0), _MARK_SIZE)
            mark_x = x + (inner_width - mark_width) / 2
            mark = (mark_x, _MARKS_TOP + row * (_MARK_SIZE + 2), mark_width, _MARK_SIZE)
            parts.append(_draw_rectangle(bar, name, mark))
    return "".join(parts)


def _draw_rectangle(bar: Bar, name: str, box: tuple[float, float, float, float]) -> str:
    """Draw one count of a bar; `box` is x, y, width, height."""
    x, y, width, height = box
    title = f"{_format_time(bar.start_ms)}: {bar.counts[name]:,} {_label(name)}"
    return f"<rect class={name} x={x:.1f} y={y:.1f} width={width:.1f} height={height:.1f}><title>{title}</title></rect>"


def _format_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _label(name: str) -> str:
    return name.replace("_", " ")


_LEGEND: Final = "".join(
    f"<span><svg viewBox='0 0 1 1'><rect class={name} width=1 height=1 /></svg>{_label(name)}</span>"
    for name in (*VOLUMES, *PROBLEMS)
)
