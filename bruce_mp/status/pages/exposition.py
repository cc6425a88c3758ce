"""Prometheus' text exposition format, version 0.0.4.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["CONTENT_TYPE", "Family", "Kind", "Sample", "histogram", "limit_series", "render_families"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OTHER: Final = "(other)"
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


def render_families(families: Iterable[Family]) -> str:
    """Return the text of the families."""
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {_escape(family.help, quotes=False)}"
    yield f"# TYPE {family.name} {family.kind}"
    for sample in family.samples:
        labels = ",".join(f'{name}="{_escape(value)}"' for name, value in sample.labels.items())
        yield f"{family.name}{sample.suffix}{'{' + labels + '}' if labels else ''} {sample.value!r}"


def _escape(text: str, *, quotes: bool = True) -> str:
    return re.sub(r'[\\\n"]' if quotes else r"[\\\n]", lambda match: _ESCAPES[match[0]], text)


def histogram(name: str, meaning: str, bounds: Iterable[float], counts: list[int], total: float) -> Family:
    """Build a histogram family from bucket counts; the last bucket counts the values above all bounds."""
    samples, cumulative = [], 0
    for bound, count in zip([*map(repr, bounds), "+Inf"], counts, strict=True):
        cumulative += count
        samples.append(Sample(cumulative, {"le": bound}, "_bucket"))
    return Family(
        name, "histogram", meaning, [*samples, Sample(total, suffix="_sum"), Sample(cumulative, suffix="_count")]
    )


def limit_series(values: Iterable[tuple[str, float]], limit: int, *, combine: Literal["sum", "max"]) -> list[Sample]:
    """Return a series for each of the first `limit` topics, and always one for the sum or maximum of all others."""
    named: dict[str, float] = {}
    others: list[float] = [0]
    for topic, value in values:
        if len(named) < limit and topic != OTHER:
            named[topic] = value
        else:
            others.append(value)
    rest = sum(others) if combine == "sum" else max(others)
    return [Sample(value, {"topic": topic}) for topic, value in [*named.items(), (OTHER, rest)]]
