"""The evaluation of `/counters` and `/discards` by the four monitoring scripts of Dory and Bruce.

`CounterMonitor` and `DiscardMonitor` follow the scripts' source: the names, the sums, the choice of the earlier
reports, and the types that each page must have. A script keeps its reports in files; here they are in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.error import URLError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = [
    "BRUCE",
    "CRITICAL",
    "DORY",
    "OK",
    "SCRIPTS",
    "UNKNOWN",
    "WARNING",
    "CounterMonitor",
    "DiscardMonitor",
    "Limits",
    "Script",
    "check_counters",
]

OK, WARNING, CRITICAL, UNKNOWN = range(4)

_CRITICAL: Final = """
    MsgUnprocessedDestroy NoDiscardQuery MetadataHasEmptyTopicList MetadataHasEmptyBrokerList
    BugDispatchBatchOutOfRangeIndex BugDispatchMsgOutOfRangeIndex TopicHasNoAvailablePartitions GetMetadataFail
"""
_WARNING: Final = """
    MetadataResponseNegativeBrokerCount MetadataResponseNegativeBrokerNodeId MetadataResponseBadBrokerHostLen
    MetadataResponseBadBrokerPort MetadataResponseNegativeTopicCount MetadataResponseBadTopicNameLen
    MetadataResponseNegativePartitionCount MetadataResponseNegativePartitionId MetadataResponseInvalidLeaderNodeId
    MetadataResponseNegativePartitionReplicaCount MetadataResponseNegativeReplicaNodeId
    MetadataResponseNegativePartitionCaughtUpReplicaCount MetadataResponseNegativeCaughtUpReplicaNodeId
    BadMetadataResponse BadMetadataResponseSize BadKafkaResponseSize ProduceResponseBadPartitionCount
    ProduceResponseBadTopicNameLength ProduceResponseBadTopicCount ProduceResponseUnexpectedTopic
    ProduceResponseUnexpectedPartition ProduceResponseShortPartitionList ProduceResponseShortTopicList
    CorrelationIdMismatch BadProduceResponse BadProduceResponseSize BugGetAckWaitQueueOutOfRangeIndex BugAllTopicsEmpty
    BugMsgListMultipleTopics BugMsgSetEmpty BugMultiPartitionGroupEmpty BugProduceRequestEmpty MsgSetCompressionError
    ConnectorTruncateLongTimeout
"""
_SOCKET_ERRORS: Final = """
    ConnectFailOnTryGetMetadata ConnectorConnectFail ConnectorSocketBrokerClose ConnectorSocketError
    ConnectorSocketTimeout SendMetadataRequestFail SendMetadataRequestLostTcpConnection
"""
_MAY_HAPPEN_ONCE: Final = ("MongooseUrlDecodeError", "MongooseStdException", "MongooseUnknownException")
_OTHERS: Final = ("MsgCreate", "MsgDestroy", "GetMetadataSuccess")


class Script(NamedTuple):
    """The names that the two scripts of a daemon read: counters by their use, and fields of a discard report."""

    critical: tuple[str, ...]
    warning: tuple[str, ...]
    socket_errors: tuple[str, ...]
    counts: tuple[str, ...]
    samples: tuple[str, ...]

    @property
    def counters(self) -> set[str]:
        return {*self.critical, *self.warning, *self.socket_errors, *_MAY_HAPPEN_ONCE, *_OTHERS}


_COUNTS: Final = "malformed_msg_count unsupported_api_key_msg_count unsupported_version_msg_count bad_topic_msg_count"
_SAMPLES: Final = ("recent_malformed", "recent_bad_topic", "recent_too_long_msg")
DORY: Final = Script(
    (
        *_CRITICAL.split(),
        "MetadataSanityCheckFail",
        *"StreamClientWorkerStdException StreamClientWorkerUnknownException".split(),
    ),
    tuple(
        f"""{_WARNING} ShortMetadataResponse UnixStreamInputUncleanDisconnect UnixStreamInputInvalidSizeField
        UnixStreamInputMsgBodyTooLarge TcpInputUncleanDisconnect TcpInputInvalidSizeField TcpInputMsgBodyTooLarge
        """.split()
    ),
    tuple(
        f"""{_SOCKET_ERRORS} MetadataResponseReadLostTcpConnection MetadataResponseReadTimeout
        UnixStreamInputSocketError TcpInputSocketError""".split()
    ),
    tuple(f"{_COUNTS} unix_stream_unclean_disconnect_count tcp_unclean_disconnect_count".split()),
    (*_SAMPLES, "unix_stream_unclean_disconnect", "tcp_unclean_disconnect"),
)
BRUCE: Final = Script(
    (*_CRITICAL.split(), "InitialGetMetadataFail"),
    (*_WARNING.split(), "MetadataResponseHasExtraJunk", "BadMetadataContent"),
    tuple(
        f"""{_SOCKET_ERRORS} MetadataResponseRead1LostTcpConnection MetadataResponseRead1TimedOut
        MetadataResponseRead2LostTcpConnection MetadataResponseRead2TimedOut MetadataResponseRead2UnexpectedEnd
        ReadMetadataResponse2Fail""".split()
    ),
    tuple(_COUNTS.split()),
    _SAMPLES,
)
SCRIPTS: Final = {"dory": DORY, "bruce": BRUCE}


class Limits(NamedTuple):
    """The options -w, -c, -W and -C."""

    socket_warning: int = 10
    socket_critical: int = 100
    held_warning: int = 10
    held_critical: int = 100


_DEFAULT_LIMITS: Final = Limits()


class _Report(NamedTuple):
    pid: int
    counters: dict[str, int]


class CounterMonitor:
    """A counters script with its reports; `interval_s` is its option -i."""

    def __init__(self, script: Script, limits: Limits = _DEFAULT_LIMITS, interval_s: int = 1) -> None:
        self._script = script
        self._limits = limits
        self._interval_s = interval_s
        self._reports: dict[int, _Report] = {}

    def check(self, read: Callable[[], Any]) -> int:
        """Fetch `/counters/json`, keep the report, and return the exit code."""
        try:
            page = read()
        except URLError:
            return CRITICAL
        now, report = page["now"], _parse_counters(page)
        earlier = sorted(time for time in self._reports if time < now)
        self._reports[now] = report
        last = self._report_of(report.pid, earlier[-1:])
        older = self._report_of(report.pid, [time for time in earlier if time <= now - self._interval_s][-1:])
        before = dict.fromkeys(report.counters, 0) if last is None else last.counters
        found = check_counters(before, report.counters, self._script, self._limits)
        is_stale = older is not None and older.counters["GetMetadataSuccess"] >= report.counters["GetMetadataSuccess"]
        return max(found, CRITICAL if is_stale else OK)

    def _report_of(self, pid: int, times: list[int]) -> _Report | None:
        """Return the report of this time, None if there is none or it belongs to an earlier daemon."""
        reports = [self._reports[time] for time in times if self._reports[time].pid == pid]
        return reports[0] if reports else None


def _parse_counters(page: Mapping[str, Any]) -> _Report:
    _expect(page, now=int, since=int, pid=int, version=str, counters=list)
    for item in page["counters"]:
        _expect(item, name=str, value=int, location=str)
    counters = {item["name"]: item["value"] for item in page["counters"]}
    assert len(counters) == len(page["counters"]), "the script exits with 3 for a name that is there twice"
    return _Report(page["pid"], counters)


def _expect(table: Mapping[str, Any], **types: type) -> None:
    """Assert the types for which a script exits with 3 if they differ."""
    wrong = {name: table.get(name) for name, kind in types.items() if type(table.get(name)) is not kind}
    assert not wrong, f"the script exits with 3: {wrong}"


def check_counters(
    before: Mapping[str, int], now: Mapping[str, int], script: Script = DORY, limits: Limits = _DEFAULT_LIMITS
) -> int:
    """Return the exit code for two reports of one process, without the check of GetMetadataSuccess."""
    if before.keys() != now.keys() or any(now[name] < before[name] for name in now):
        return UNKNOWN
    rise = {name: now[name] - before[name] for name in now}
    return max(_findings(rise, now, script, limits), default=OK)


def _findings(rise: Mapping[str, int], now: Mapping[str, int], script: Script, limits: Limits) -> Iterator[int]:
    yield from (CRITICAL for name in script.critical if rise[name])
    yield from (WARNING for name in script.warning if rise[name])
    yield _judge(sum(rise[name] for name in script.socket_errors), limits.socket_warning, limits.socket_critical)
    yield from (UNKNOWN for name in _MAY_HAPPEN_ONCE if rise[name] > 1)
    held = now["MsgCreate"] - now["MsgDestroy"]
    yield CRITICAL if held < 0 else _judge(held, limits.held_warning, limits.held_critical)


def _judge(value: int, warning: int, critical: int) -> int:
    return CRITICAL if value > critical else WARNING if value > warning else OK


class DiscardMonitor(NamedTuple):
    """A discards script with its options -g and -i."""

    script: Script
    ignores_bad_topics: bool = False
    ignored_topics: frozenset[str] = frozenset()

    def check(self, read: Callable[[], Any]) -> int:
        """Fetch `/discards/json` and return the exit code."""
        try:
            page = read()
        except URLError:
            return CRITICAL
        _expect(page, now=int, pid=int, version=str, interval=int, unfinished_report=dict)
        reports = [page[name] for name in ("unfinished_report", "finished_report") if name in page]
        return max(self._check_report(report) for report in reports)

    def _check_report(self, report: Mapping[str, Any]) -> int:
        self._parse(report)
        has_bad_topic = bool(report["bad_topic_msg_count"]) and not self.ignores_bad_topics
        topics = {item["topic"] for item in report["discard_topic"]} - self.ignored_topics
        return CRITICAL if report["malformed_msg_count"] or has_bad_topic or topics else OK

    def _parse(self, report: Mapping[str, Any]) -> None:
        _expect(report, id=int, start_time=int, **dict.fromkeys(self.script.counts, int))
        for name in self.script.samples:
            assert {type(sample) for sample in report[name]} <= {str}, name
        for name, types in _LISTS.items():
            for item in report[name]:
                _expect(item, **types)


_TOPIC: Final = {"topic": str, "min_timestamp": int, "max_timestamp": int, "count": int}
_LISTS: Final[Mapping[str, Mapping[str, type]]] = {
    "unsupported_msg_version": {"version": int, "count": int},
    "rate_limit_discard": {"topic": str, "count": int},
    "discard_topic": _TOPIC,
    "possible_duplicate_topic": _TOPIC,
}
