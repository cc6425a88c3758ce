"""Text format of Prometheus, version 0.0.4: metric families rendered as text.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["CONTENT_TYPE", "Family", "Kind", "Sample", "bounded", "expose", "histogram"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
REST: Final = "(other)"
"""Label value for all topics without a series of their own. Kafka allows no topic of this name."""

Kind = Literal["counter", "gauge", "histogram"]
_ESCAPES: Final = {"\\": r"\\", "\n": r"\n", '"': r"\""}


class Sample(NamedTuple):
    """A value of a family, identified by its labels. Only parts of a histogram have a `suffix`."""

    value: float
    labels: Mapping[str, str] = {}
    suffix: str = ""


class Family(NamedTuple):
    """A metric. `name` follows Prometheus' conventions: it includes the unit, and `_total` for a counter."""

    name: str
    kind: Kind
    help: str
    samples: list[Sample]


def expose(families: Iterable[Family]) -> str:
    """Render the page."""
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {_escape(family.help, quotes=False)}"
    yield f"# TYPE {family.name} {family.kind}"
    for sample in family.samples:
        labels = ",".join(f'{name}="{_escape(value)}"' for name, value in sample.labels.items())
        yield f"{family.name}{sample.suffix}{'{' + labels + '}' if labels else ''} {sample.value!r}"


def _escape(text: str, *, quotes: bool = True) -> str:
    return re.sub(r'[\\\n"]' if quotes else r"[\\\n]", lambda found: _ESCAPES[found[0]], text)


def histogram(name: str, meaning: str, bounds: Iterable[float], counts: list[int], total: float) -> Family:
    """Build a histogram family from bucket counts; the last bucket counts the values above all bounds."""
    samples, below = [], 0
    for bound, count in zip([*map(repr, bounds), "+Inf"], counts, strict=True):
        below += count
        samples.append(Sample(below, {"le": bound}, "_bucket"))
    return Family(name, "histogram", meaning, [*samples, Sample(total, suffix="_sum"), Sample(below, suffix="_count")])


def bounded(values: Iterable[tuple[str, float]], most: int, *, together: Literal["sum", "max"]) -> list[Sample]:
    """Return a series for each of the first `most` topics, and one for all others. The latter is always present."""
    named: dict[str, float] = {}
    others: list[float] = [0]
    for topic, value in values:
        if len(named) < most and topic != REST:
            named[topic] = value
        else:
            others.append(value)
    rest = sum(others) if together == "sum" else max(others)
    return [Sample(value, {"topic": topic}) for topic, value in [*named.items(), (REST, rest)]]
