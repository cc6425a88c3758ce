"""Parse the options of `format("bruce")` on the driver. Names are case-insensitive, as in Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING, Final

from bruce_mp.protocol.client.key_hashes import Partitioner
from bruce_mp.spark.errors import OptionError
from bruce_mp.spark.storage import absolute_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Acks", "OnDiscard", "OnDoubt", "SinkOptions", "is_topic_name", "parse_options"]

DEFAULT_TIMEOUT_MS: Final = 120_000
DEFAULT_CONNECT_TIMEOUT_MS: Final = 15_000
"""Longer than a daemon needs for a restart."""
_MAX_INT32: Final = 2**31 - 1
"""The highest value of int32 fields, such as the time limit of a barrier and the size of a message."""
MIN_RECORD_BYTES: Final = 64
"""The lowest value of `maxRecordBytes`: room for the fixed fields of a message and some content."""
MAX_RECORDS_PER_SECOND: Final = 10**9
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_INTEGER: Final = re.compile(r"[0-9]{1,12}")  # `int` alone would accept signs, underscores and other scripts' digits
_RUN_ID: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


@unique
class Acks(Enum):
    """The acknowledgment that a task awaits before it commits."""

    NONE = "none"
    """The task's host has accepted the bytes; the daemon may not have read them."""
    RECEIVED = "received"
    """Every message is in the daemon's slab, or the daemon has reported it as discarded."""
    DELIVERED = "delivered"
    """Kafka has acknowledged every message, or the daemon has reported it as discarded."""


@unique
class OnDiscard(Enum):
    """The reaction of a task to discarded messages."""

    FAIL = "fail"
    REPORT = "report"
    """Commit, and record the counts in the ledger."""


@unique
class OnDoubt(Enum):
    """The reaction of a repeated task if an earlier attempt is in doubt: Kafka may have its messages or not."""

    FAIL = "fail"
    SEND = "send"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The parsed options. `socket` is the path of the daemon's stream socket, or `host:port`."""

    socket: str
    topic: str | None = None
    acks: Acks = Acks.DELIVERED
    on_discard: OnDiscard = OnDiscard.FAIL
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    max_records_per_second: int | None = None
    max_record_bytes: int | None = None
    stamp: bool = True
    fence: bool = True
    ledger: str | None = None
    dead_letter_path: str | None = None
    connect_timeout_ms: int = DEFAULT_CONNECT_TIMEOUT_MS
    on_doubt: OnDoubt = OnDoubt.FAIL
    run_id: str | None = None
    partitioner: Partitioner = Partitioner.NONE
    """The rule by which record keys choose partitions; NONE leaves the choice to the daemon."""

    @property
    def is_exactly_once(self) -> bool:
        """Return True if no repeated task sends rows twice, except for an attempt in doubt with `OnDoubt.SEND`."""
        return self.ledger is not None and self.fence and self.acks is not Acks.NONE


def _integer_parser(low: int, high: int) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        if not _INTEGER.fullmatch(text) or not low <= int(text) <= high:
            raise OptionError(f"Option '{name}' is '{text}': give an integer from {low} to {high}.")
        return int(text)

    return parse


def _enum_parser(enum_class: type[Enum]) -> Callable[[str, str], Enum]:
    def parse(name: str, text: str) -> Enum:
        try:
            return enum_class(text.lower())
        except ValueError:
            raise OptionError(
                f"Option '{name}' is '{text}': give {_list_alternatives([member.value for member in enum_class])}."
            ) from None

    return parse


def _parse_partitioner(name: str, text: str) -> Partitioner:
    by_name = {rule.name.lower(): rule for rule in Partitioner if rule is not Partitioner.NONE}
    if text.lower() not in by_name:
        raise OptionError(f"Option '{name}' is '{text}': give {_list_alternatives(list(by_name))}, or leave it out.")
    return by_name[text.lower()]


def _parse_flag(name: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise OptionError(f"Option '{name}' is '{text}': give 'true' or 'false'.")
    return text.lower() == "true"


def _parse_text(name: str, text: str) -> str:
    if not text:
        raise OptionError(f"Option '{name}' is empty: give a value or leave it out.")
    return text


def _parse_location(name: str, text: str) -> str:
    """Return a URI as it is, and a path as an absolute one."""
    return absolute_path(_parse_text(name, text))


def _parse_topic(name: str, text: str) -> str:
    if not is_topic_name(text):
        raise OptionError(
            f"Option '{name}' has {len(text.encode())} bytes: a Kafka topic has 1 to 249 letters, digits, '.', '_' and "
            f"'-'. It is '{text:.80}'."
        )
    return text


def is_topic_name(text: str) -> bool:
    """Return True if Kafka allows a topic of this name."""
    return _TOPIC_NAME.fullmatch(text) is not None and text not in {".", ".."}


def _parse_run_id(name: str, text: str) -> str:
    if not _RUN_ID.fullmatch(text):
        raise OptionError(f"Option '{name}' is '{text}': give 1 to 100 letters, digits, '.', '_' and '-'.")
    return text


def _list_alternatives(values: list[str]) -> str:
    """Return for example "'a', 'b' or 'c'"."""
    return ", ".join(f"'{value}'" for value in values[:-1]) + f" or '{values[-1]}'"


_OPTIONS: Final[Mapping[str, tuple[str, Callable[[str, str], object]]]] = {
    "bruce.socket": ("socket", _parse_text),
    "topic": ("topic", _parse_topic),
    "acks": ("acks", _enum_parser(Acks)),
    "onDiscard": ("on_discard", _enum_parser(OnDiscard)),
    "timeoutMs": ("timeout_ms", _integer_parser(1, _MAX_INT32)),
    "connectTimeoutMs": ("connect_timeout_ms", _integer_parser(0, _MAX_INT32)),
    "maxRecordsPerSecond": ("max_records_per_second", _integer_parser(1, MAX_RECORDS_PER_SECOND)),
    "maxRecordBytes": ("max_record_bytes", _integer_parser(MIN_RECORD_BYTES, _MAX_INT32)),
    "stamp": ("stamp", _parse_flag),
    "fence": ("fence", _parse_flag),
    "ledger": ("ledger", _parse_location),
    "deadLetterPath": ("dead_letter_path", _parse_location),
    "onDoubt": ("on_doubt", _enum_parser(OnDoubt)),
    "runId": ("run_id", _parse_run_id),
    "partitioner": ("partitioner", _parse_partitioner),
}
"""For each documented option, the field of SinkOptions and the parser."""
_NAMES_BY_LOWER_CASE: Final = {name.lower(): name for name in _OPTIONS}
_SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "outputmode", "queryname"})
"""Spark's own options of streaming queries, in lower case; Spark passes them to the data source, too."""


def parse_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse the options that Spark passes; `path` is the argument of `.save()`. Raise `OptionError`."""
    fields: dict[str, object] = {}
    for key, text in given.items():
        name = _documented_name(key)
        if name is not None:
            field, parse = _OPTIONS[name]
            value = parse(name, text)
            # The same option may be given as 'path' and 'bruce.socket', or with different capital letters.
            if fields.setdefault(field, value) != value:
                raise OptionError(f"Option '{name}' has two values: '{fields[field]}' and '{value}'. Give one.")
    if "socket" not in fields:
        raise OptionError(
            "Name the daemon's socket on each host: .option('bruce.socket', PATH) or .save(PATH) with its "
            "input.unix_stream.path, or 'host:port' with its input.tcp.port."
        )
    options = SinkOptions(**fields)  # type: ignore[arg-type]  # each parser returns its field's type
    if options.run_id is not None and not options.is_exactly_once:
        raise OptionError("Option 'runId' needs the option 'ledger', 'fence' and an 'acks' other than 'none'.")
    return options


def _documented_name(key: str) -> str | None:
    """Return the documented name of an option; None for an option of Spark. Raise `OptionError` for other options."""
    lower = key.lower()
    if lower == "path":
        return "bruce.socket"
    if lower in _SPARK_OPTIONS:
        return None
    if lower.startswith("kafka."):
        raise OptionError(
            f"Option '{key}': connections to Kafka belong to the daemon. Set it in the daemon's configuration, and "
            "leave it out here."
        )
    if lower not in _NAMES_BY_LOWER_CASE:
        raise OptionError(f"Option '{key}' is not known. Options are {', '.join(_OPTIONS)}.")
    return _NAMES_BY_LOWER_CASE[lower]
