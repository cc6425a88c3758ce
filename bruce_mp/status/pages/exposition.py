"""The two formats of metrics: Prometheus' text format 0.0.4, and OpenMetrics 1.0.

https://prometheus.io/docs/instrumenting/exposition_formats/
https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from werkzeug.http import parse_options_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from werkzeug.datastructures import MIMEAccept

__all__ = [
    "CONTENT_TYPES",
    "OTHER",
    "Family",
    "Format",
    "Kind",
    "Sample",
    "choose_format",
    "histogram",
    "limit_series",
    "render_families",
]

Format = Literal["prometheus", "openmetrics"]
CONTENT_TYPES: Final[Mapping[Format, str]] = {
    "prometheus": "text/plain; version=0.0.4; charset=utf-8",
    "openmetrics": "application/openmetrics-text; version=1.0.0; charset=utf-8",
}
OTHER: Final = "(other)"
"""Value of the label `topic` for the series of all topics without a separate series. Kafka allows no such topic."""

Kind = Literal["counter", "gauge", "histogram"]
_ESCAPES: Final = {"\\": r"\\", "\n": r"\n", '"': r"\""}


class Sample(NamedTuple):
    """A value of a family with the labels that identify it. In a histogram, `suffix` extends the name of the family."""

    value: float
    labels: Mapping[str, str] = {}
    suffix: str = ""


class Family(NamedTuple):
    """A metric with all its samples. `name` ends with the unit, and then with `_total` if the metric is a counter."""

    name: str
    kind: Kind
    help: str
    samples: list[Sample]


def choose_format(accept: MIMEAccept) -> Format:
    """Choose OpenMetrics if the Accept header of a request names it, and does not prefer plain text."""
    openmetrics_quality = prometheus_quality = 0.0
    for value, quality in accept:
        media_type, options = parse_options_header(value)
        if media_type == "application/openmetrics-text" and options.get("version", "1.0.0") == "1.0.0":
            openmetrics_quality = max(openmetrics_quality, quality)
        elif media_type == "text/plain":
            prometheus_quality = max(prometheus_quality, quality)
    return "openmetrics" if openmetrics_quality and openmetrics_quality >= prometheus_quality else "prometheus"


def render_families(families: Iterable[Family], form: Format = "prometheus") -> str:
    text = "".join(f"{line}\n" for family in families for line in _lines(family, form))
    return f"{text}# EOF\n" if form == "openmetrics" else text


def _lines(family: Family, form: Format) -> Iterator[str]:
    is_openmetrics = form == "openmetrics"
    # OpenMetrics names a counter's family without the suffix of its samples.
    name = family.name.removesuffix("_total") if is_openmetrics and family.kind == "counter" else family.name
    yield f"# HELP {name} {_escape(family.help, escape_quotes=is_openmetrics)}"
    yield f"# TYPE {name} {family.kind}"
    for sample in family.samples:
        labels = ",".join(f'{label}="{_escape(value)}"' for label, value in sample.labels.items())
        yield f"{family.name}{sample.suffix}{'{' + labels + '}' if labels else ''} {sample.value!r}"


def _escape(text: str, *, escape_quotes: bool = True) -> str:
    return re.sub(r'[\\\n"]' if escape_quotes else r"[\\\n]", lambda match: _ESCAPES[match[0]], text)


def histogram(name: str, meaning: str, bounds: Iterable[float], counts: list[int], sum_of_values: float) -> Family:
    """Build the family of a histogram.

    `counts` has the number of values in each bucket; the last bucket has no bound and counts all larger values.
    """
    samples, cumulative = [], 0
    for bound, count in zip([*map(repr, bounds), "+Inf"], counts, strict=True):
        cumulative += count
        samples.append(Sample(cumulative, {"le": bound}, "_bucket"))
    samples += [Sample(sum_of_values, suffix="_sum"), Sample(cumulative, suffix="_count")]
    return Family(name, "histogram", meaning, samples)


def limit_series(
    values: Iterable[tuple[str, float]], limit: int, combine: Callable[[list[float]], float]
) -> list[Sample]:
    """Return a series for each of the first `limit` topics, and one series that combines the values of the rest.

    `values` has (topic, value); `combine` is `sum` or `max`.
    """
    named: dict[str, float] = {}
    other_values: list[float] = [0]  # so that `combine` never gets an empty list
    for topic, value in values:
        if len(named) < limit and topic != OTHER:
            named[topic] = value
        else:
            other_values.append(value)
    return [Sample(value, {"topic": topic}) for topic, value in [*named.items(), (OTHER, combine(other_values))]]
