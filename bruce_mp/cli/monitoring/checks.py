"""Checks of `bruce monitor`, as a table: each compares a number with two limits.

The table covers all values that the monitoring scripts of Dory and Bruce check, and adds ages, the balance of the
books, and the states of processes.
"""

from __future__ import annotations

from enum import IntEnum, unique
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from bruce_mp.discards.reasons import BY_CLIENTS, BY_FAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bruce_mp.cli.monitoring.readings import Readings
    from bruce_mp.cli.monitoring.state import MonitorState
    from bruce_mp.errors import DiscardReason

__all__ = ["CHECKS", "Check", "Result", "Severity"]


@unique
class Severity(IntEnum):
    """Exit codes of Nagios checks."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


class Result(NamedTuple):
    """Outcome of a check; `performance` is its part of the performance data behind the `|`."""

    severity: Severity
    text: str
    performance: str


Unit = Literal["", "s", "%"]


class Check(NamedTuple):
    """A number with its limits.

    `value` computes the number from the readings; without it, the number is the increase of `counters` since the last
    run. None means that the number is unknown. `text` has `{}` in place of the number, and names the remedy. The
    daemon's `sentences` follow it. A limit of None is never exceeded.
    """

    option: str
    meaning: str
    value: Callable[[Readings], float | None] | None
    counters: tuple[str, ...]
    text: str
    warning: float | None
    critical: float | None
    unit: Unit = ""
    sentences: Callable[[Readings], Sequence[str]] = lambda _: ()

    def evaluate(
        self, readings: Readings, before: MonitorState | None, warning: float | None, critical: float | None
    ) -> Result:
        """Compare the number with these limits."""
        value = self._number(readings, before)
        severity = _severity_of(value, warning, critical)
        limits = ";".join("" if limit is None else f"{limit:g}" for limit in (warning, critical))
        shown = "U" if value is None else f"{round(value, 3):.12g}{self.unit}"
        text = self.text.format(shown) + " ".join(self.sentences(readings))
        return Result(severity, text, f"{self.option.replace('-', '_')}={shown};{limits}")

    def _number(self, readings: Readings, before: MonitorState | None) -> float | None:
        if self.value is not None:
            return self.value(readings)
        return sum(before.increase_of(readings.counters, name) for name in self.counters) if before else None


def _severity_of(value: float | None, warning: float | None, critical: float | None) -> Severity:
    if value is None:
        return Severity.OK
    if critical is not None and value > critical:
        return Severity.CRITICAL
    return Severity.WARNING if warning is not None and value > warning else Severity.OK


# --- values of the checks ---------------------------------------------------------------------------------------------


def _discard_counters(reasons: Iterable[DiscardReason]) -> tuple[str, ...]:
    return tuple("MsgDiscarded" + reason.name.title().replace("_", "") for reason in reasons)


def _unaccounted(readings: Readings) -> float | None:
    books = readings.books
    if not books.consistent:
        return None
    return abs(books.received - books.delivered - sum(books.discarded.values()) - sum(books.held.values()))


def _dead_or_stalled(readings: Readings) -> float:
    return sum(line.state in {"dead", "stalled"} for line in readings.processes.processes)


def _metadata_age(readings: Readings) -> float:
    """Return the age in seconds; without any metadata, the time since the daemon's start."""
    page = readings.health
    return max(0.0, page.now - page.since) if page.metadata_age_ms is None else page.metadata_age_ms / 1000


_BROKER_FAILURES: Final = (
    *("ConnectFailOnTryGetMetadata", "MetadataResponseReadTimeout", "MetadataResponseReadLostTcpConnection"),
    *("ConnectorConnectFail", "ConnectorSocketBrokerClose", "ConnectorSocketError", "ConnectorSocketTimeout"),
)
_CLIENT_FAILURES: Final = tuple(
    f"{source}{failure}"
    for source in ("UnixStreamInput", "TcpInput")
    for failure in ("UncleanDisconnect", "InvalidSizeField", "MsgBodyTooLarge", "SocketError")
)
_BAD_RESPONSES: Final = ("BadMetadataResponse", "BadProduceResponse", "MsgSetCompressionError", "RefusedDamagedPlace")
_METADATA_FAILURES: Final = ("GetMetadataFail", "MetadataHasEmptyTopicList")

CHECKS: Final = (
    Check(
        "problems",
        "problems on /healthz are",
        lambda readings: len(readings.health.problems),
        (),
        "{} problems on /healthz: ",
        None,
        0,
        sentences=lambda readings: readings.health.problems,
    ),
    Check(
        "warnings",
        "warnings on /healthz are",
        lambda readings: len(readings.health.warnings),
        (),
        "{} warnings on /healthz: ",
        0,
        None,
        sentences=lambda readings: readings.health.warnings,
    ),
    Check(
        "imbalance",
        "messages unaccounted for are",
        _unaccounted,
        (),
        "{} messages are unaccounted for: a bug; keep /books/json and the log, and report it.",
        None,
        0,
    ),
    Check(
        "discards",
        "good messages discarded since the last check are",
        None,
        _discard_counters(BY_FAULT),
        "{} messages were discarded since the last check; /discards and the log say why.",
        None,
        0,
    ),
    Check(
        "client-discards",
        "messages discarded through client errors since the last check are",
        None,
        _discard_counters(BY_CLIENTS),
        "{} invalid messages came from clients since the last check; /discards shows them.",
        0,
        None,
    ),
    Check(
        "processes",
        "dead or stalled processes are",
        _dead_or_stalled,
        (),
        "{} processes are dead or stalled; /processes lists them, and the log says why.",
        None,
        0,
    ),
    Check(
        "restarts",
        "processes that died since the last check are",
        None,
        ("ProcessRestarted",),
        "{} processes died since the last check and were restarted; the log says why.",
        0,
        None,
    ),
    Check(
        "oldest",
        "the age of the oldest held message, in seconds, is",
        lambda readings: readings.held.oldest_ms / 1000,
        (),
        "The oldest message has waited for {}; /brokers gives the reason.",
        60,
        300,
        "s",
    ),
    Check(
        "held",
        "held messages are",
        lambda readings: readings.held.messages,
        (),
        "{} messages are held; /brokers gives the reason.",
        None,
        None,
    ),
    Check(
        "slab",
        "the used share of the slab, in percent, is",
        lambda readings: readings.held.slab_in_use * 100,
        (),
        "{} of the slab are in use; check that the brokers keep up (/brokers), or raise slab.size.",
        75,
        90,
        "%",
    ),
    Check(
        "metadata-age",
        "the age of the metadata, in seconds, is",
        _metadata_age,
        (),
        "The metadata are {} old; the log names the brokers that failed.",
        1800,
        3600,
        "s",
    ),
    Check(
        "metadata-failures",
        "failed metadata fetches since the last check are",
        None,
        _METADATA_FAILURES,
        "{} metadata fetches failed since the last check; the log names the brokers and the errors.",
        None,
        0,
    ),
    Check(
        "broker-failures",
        "failed connections to brokers since the last check are",
        None,
        _BROKER_FAILURES,
        "{} connections to brokers failed since the last check; /brokers has the last errors.",
        10,
        100,
    ),
    Check(
        "bad-answers",
        "unreadable answers and other errors since the last check are",
        None,
        _BAD_RESPONSES,
        "{} internal errors since the last check, in responses or batches; the log has them.",
        0,
        None,
    ),
    Check(
        "client-failures",
        "failures of stream clients since the last check are",
        None,
        _CLIENT_FAILURES,
        "{} stream clients failed or disconnected inside a message since the last check; /discards shows the data.",
        10,
        None,
    ),
    Check(
        "duplicates",
        "possible duplicates since the last check are",
        None,
        ("PossibleDuplicateMsg",),
        "{} messages may be in Kafka more than once since the last check; docs/delivery.md says when that happens.",
        0,
        None,
    ),
    Check(
        "unread-reports",
        "periods without a reader of /discards since the last check are",
        None,
        ("NoDiscardQuery",),
        "{} discard report periods had no reader since the last check.",
        None,
        None,
    ),
)
"""Checks in order of output: the most severe first."""
