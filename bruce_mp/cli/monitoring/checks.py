"""Table of the checks of `bruce monitor`: each compares a value with two limits.

The table covers all values that the monitoring scripts of Dory and Bruce check. It adds ages, the states of processes,
and the balance of the books.
"""

from __future__ import annotations

from enum import IntEnum, unique
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from bruce_mp.discards.reasons import CAUSED_BY_CLIENTS, CAUSED_BY_FAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bruce_mp.cli.monitoring.readings import MonitorState, Readings
    from bruce_mp.errors import DiscardReason

__all__ = ["CHECKS", "Check", "Result", "Severity"]


@unique
class Severity(IntEnum):
    """Exit statuses of Nagios checks."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


class Result(NamedTuple):
    """Outcome of a check; `performance` has the value and the limits, for the part of the output after `|`."""

    severity: Severity
    text: str
    performance: str


class Check(NamedTuple):
    """A check: the value to compare, its default limits, and texts.

    `option` is the beginning of the names of the two options for the limits, and `meaning` describes the value in their
    help. `text` reports a fault: it has `{}` in place of the value, and `sentences` of the daemon follow it. `compute`
    returns the value; None as the result means an unknown value. If the field `compute` is None, the value is the
    increase of `counters` since the last `bruce monitor`. `warning` and `critical` are default limits, which the value
    must not exceed; None means no limit.
    """

    option: str
    meaning: str
    text: str
    compute: Callable[[Readings], float | None] | None = None
    counters: tuple[str, ...] = ()
    warning: float | None = None
    critical: float | None = None
    unit: Literal["", "s", "%"] = ""
    sentences: Callable[[Readings], Sequence[str]] = lambda _: ()

    def evaluate(
        self, readings: Readings, previous_state: MonitorState | None, warning: float | None, critical: float | None
    ) -> Result:
        """Compare the value with the limits `warning` and `critical`; None means no limit."""
        value = self._value(readings, previous_state)
        severity = _severity_of(value, warning, critical)
        # Nagios reads U as an unknown value. It cannot read exponents; the format with 12 digits avoids them.
        limits = ";".join("" if limit is None else f"{limit:.12g}" for limit in (warning, critical))
        shown = "U" if value is None else f"{round(value, 3):.12g}{self.unit}"
        text = self.text.format(shown) + " ".join(self.sentences(readings))
        return Result(severity, text, f"{self.option.replace('-', '_')}={shown};{limits}")

    def _value(self, readings: Readings, previous_state: MonitorState | None) -> float | None:
        if self.compute is not None:
            return self.compute(readings)
        if previous_state is None:
            return None
        return sum(previous_state.increase_of(readings.counters, name) for name in self.counters)


def _severity_of(value: float | None, warning: float | None, critical: float | None) -> Severity:
    if value is None:  # this is the first run, or the books changed while they were read
        return Severity.OK
    if critical is not None and value > critical:
        return Severity.CRITICAL
    return Severity.WARNING if warning is not None and value > warning else Severity.OK


# --- values of the checks ---------------------------------------------------------------------------------------------


def _discard_counters(reasons: Iterable[DiscardReason]) -> tuple[str, ...]:
    """Return the names of the counters of `reasons`, such as MsgDiscardedNoMem for NO_MEM."""
    return tuple("MsgDiscarded" + reason.name.title().replace("_", "") for reason in reasons)


def _count_unaccounted(readings: Readings) -> float | None:
    """Return the number of messages that the books do not account for; None if the books changed during the reading."""
    books = readings.books
    if not books.consistent:
        return None
    difference = books.received - books.delivered - sum(books.discarded.values()) - sum(books.held.values())
    negative_count = -sum(min(0, held_count) for held_count in books.held.values())  # in stages with a negative count
    return abs(difference) or books.unaccounted or negative_count


def _count_dead_or_stalled(readings: Readings) -> float:
    return sum(line.state in {"dead", "stalled"} for line in readings.processes.processes)


def _metadata_age(readings: Readings) -> float:
    """Return the age of the metadata in seconds. If the daemon has none yet, return the time since its start."""
    page = readings.health
    return max(0.0, page.now - page.since) if page.metadata_age_ms is None else page.metadata_age_ms / 1000


_BROKER_FAILURE_COUNTERS: Final = (
    "ConnectFailOnTryGetMetadata", "MetadataResponseReadTimeout", "MetadataResponseReadLostTcpConnection",
    "ConnectorConnectFail", "ConnectorSocketBrokerClose", "ConnectorSocketError", "ConnectorSocketTimeout",
)  # fmt: skip
_CLIENT_FAILURE_COUNTERS: Final = tuple(
    f"{source}{failure}"
    for source in ("UnixStreamInput", "TcpInput")
    for failure in ("UncleanDisconnect", "InvalidSizeField", "MsgBodyTooLarge", "SocketError")
)
_INTERNAL_ERROR_COUNTERS: Final = (
    "BadMetadataResponse", "BadProduceResponse", "MsgSetCompressionError", "RefusedDamagedPlace",
)  # fmt: skip

CHECKS: Final = (
    Check(
        "problems",
        "problems on /healthz",
        "{} problems on /healthz: ",
        compute=lambda readings: len(readings.health.problems),
        critical=0,
        sentences=lambda readings: readings.health.problems,
    ),
    Check(
        "warnings",
        "warnings on /healthz",
        "{} warnings on /healthz: ",
        compute=lambda readings: len(readings.health.warnings),
        warning=0,
        sentences=lambda readings: readings.health.warnings,
    ),
    Check(
        "imbalance",
        "messages unaccounted for",
        "{} messages are unaccounted for: a bug; keep /books/json and the log, and report it.",
        compute=_count_unaccounted,
        critical=0,
    ),
    Check(
        "discards",
        "good messages discarded since the last check",
        "{} messages were discarded since the last check; /discards and the log say why.",
        counters=_discard_counters(CAUSED_BY_FAULT),
        critical=0,
    ),
    Check(
        "client-discards",
        "messages discarded through client errors since the last check",
        "{} invalid messages came from clients since the last check; /discards shows them.",
        counters=_discard_counters(CAUSED_BY_CLIENTS),
        warning=0,
    ),
    Check(
        "processes",
        "dead or stalled processes",
        "{} processes are dead or stalled; /processes lists them, and the log says why.",
        compute=_count_dead_or_stalled,
        critical=0,
    ),
    Check(
        "restarts",
        "processes that died since the last check",
        "{} processes died since the last check and were restarted; the log says why.",
        counters=("ProcessRestarted",),
        warning=0,
    ),
    Check(
        "oldest",
        "age of the oldest held message, in seconds",
        "The oldest message has waited for {}; /brokers gives the reason.",
        compute=lambda readings: readings.held.oldest_ms / 1000,
        warning=60,
        critical=300,
        unit="s",
    ),
    Check(
        "held",
        "held messages",
        "{} messages are held; /brokers gives the reason.",
        compute=lambda readings: readings.held.messages,
    ),
    Check(
        "slab",
        "used share of the slab, in percent",
        "{} of the slab are in use; check that the brokers keep up (/brokers), or raise slab.size.",
        compute=lambda readings: readings.held.slab_in_use * 100,
        warning=75,
        critical=90,
        unit="%",
    ),
    Check(
        "metadata-age",
        "age of the metadata, in seconds",
        "The metadata are {} old; the log names the brokers that failed.",
        compute=_metadata_age,
        warning=1800,
        critical=3600,
        unit="s",
    ),
    Check(
        "metadata-failures",
        "failed metadata fetches since the last check",
        "{} metadata fetches failed since the last check; the log names the brokers and the errors.",
        counters=("GetMetadataFail", "MetadataHasEmptyTopicList"),
        critical=0,
    ),
    Check(
        "broker-failures",
        "failed connections to brokers since the last check",
        "{} connections to brokers failed since the last check; /brokers has the last errors.",
        counters=_BROKER_FAILURE_COUNTERS,
        warning=10,
        critical=100,
    ),
    Check(
        "bad-answers",
        "unreadable responses, and errors in batches or the slab, since the last check",
        "{} internal errors since the last check, in responses, batches or the slab; the log has them.",
        counters=_INTERNAL_ERROR_COUNTERS,
        warning=0,
    ),
    Check(
        "client-failures",
        "failures of stream clients since the last check",
        "{} stream clients failed or disconnected inside a message since the last check; /discards shows the data.",
        counters=_CLIENT_FAILURE_COUNTERS,
        warning=10,
    ),
    Check(
        "duplicates",
        "possible duplicates since the last check",
        "{} messages since the last check may be in Kafka twice or more; docs/delivery.md says when that happens.",
        counters=("PossibleDuplicateMsg",),
        warning=0,
    ),
    Check(
        "unread-reports",
        "discard reports without a reader since the last check",
        "{} discard reports had no reader since the last check.",
        counters=("NoDiscardQuery",),
    ),
)
"""All checks; faults of equal severity are printed in this order."""
