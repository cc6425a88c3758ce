"""The evaluation of `/counters` by the old daemons' monitoring script, after their documents and its source.

The names, the sums and the order of the checks are its own; how it keeps its reports is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["CRITICAL", "OK", "UNKNOWN", "WARNING", "Limits", "check_counters", "counter_names"]

OK, WARNING, CRITICAL, UNKNOWN = range(4)

MUST_STAY_CRITICAL: Final = """
    MsgUnprocessedDestroy NoDiscardQuery MetadataHasEmptyTopicList MetadataHasEmptyBrokerList
    BugDispatchBatchOutOfRangeIndex BugDispatchMsgOutOfRangeIndex TopicHasNoAvailablePartitions MetadataSanityCheckFail
    GetMetadataFail StreamClientWorkerStdException StreamClientWorkerUnknownException
""".split()
MUST_STAY_WARNING: Final = """
    MetadataResponseNegativeBrokerCount MetadataResponseNegativeBrokerNodeId MetadataResponseBadBrokerHostLen
    MetadataResponseBadBrokerPort MetadataResponseNegativeTopicCount MetadataResponseBadTopicNameLen
    MetadataResponseNegativePartitionCount MetadataResponseNegativePartitionId MetadataResponseInvalidLeaderNodeId
    MetadataResponseNegativePartitionReplicaCount MetadataResponseNegativeReplicaNodeId
    MetadataResponseNegativePartitionCaughtUpReplicaCount MetadataResponseNegativeCaughtUpReplicaNodeId
    ShortMetadataResponse BadMetadataResponse BadMetadataResponseSize BadKafkaResponseSize
    ProduceResponseBadPartitionCount ProduceResponseBadTopicNameLength ProduceResponseBadTopicCount
    ProduceResponseUnexpectedTopic ProduceResponseUnexpectedPartition ProduceResponseShortPartitionList
    ProduceResponseShortTopicList CorrelationIdMismatch BadProduceResponse BadProduceResponseSize
    BugGetAckWaitQueueOutOfRangeIndex BugAllTopicsEmpty BugMsgListMultipleTopics BugMsgSetEmpty
    BugMultiPartitionGroupEmpty BugProduceRequestEmpty MsgSetCompressionError ConnectorTruncateLongTimeout
    UnixStreamInputUncleanDisconnect UnixStreamInputInvalidSizeField UnixStreamInputMsgBodyTooLarge
    TcpInputUncleanDisconnect TcpInputInvalidSizeField TcpInputMsgBodyTooLarge
""".split()
SOCKET_ERRORS: Final = """
    ConnectFailOnTryGetMetadata ConnectorConnectFail ConnectorSocketBrokerClose ConnectorSocketError
    ConnectorSocketTimeout MetadataResponseReadLostTcpConnection MetadataResponseReadTimeout SendMetadataRequestFail
    SendMetadataRequestLostTcpConnection UnixStreamInputSocketError TcpInputSocketError
""".split()
MAY_HAPPEN_ONCE: Final = "MongooseUrlDecodeError MongooseStdException MongooseUnknownException".split()
OTHERS: Final = ("MsgCreate", "MsgDestroy", "GetMetadataSuccess")


class Limits(NamedTuple):
    """The options -w, -c, -W and -C."""

    socket_warning: int = 10
    socket_critical: int = 100
    held_warning: int = 10
    held_critical: int = 100


_SHORT: Final = Limits()


def counter_names() -> set[str]:
    """Every counter that the script reads."""
    return {*MUST_STAY_CRITICAL, *MUST_STAY_WARNING, *SOCKET_ERRORS, *MAY_HAPPEN_ONCE, *OTHERS}


def check_counters(before: Mapping[str, int], now: Mapping[str, int], limits: Limits = _SHORT) -> int:
    """The exit code of the script for two reports of one process, the second a while after the first."""
    if before.keys() != now.keys() or any(now[name] < before[name] for name in now):
        return UNKNOWN
    rise = {name: now[name] - before[name] for name in now}
    return max(_findings(rise, now, limits), default=OK)


def _findings(rise: Mapping[str, int], now: Mapping[str, int], limits: Limits) -> Iterator[int]:
    yield from (CRITICAL for name in MUST_STAY_CRITICAL if rise[name])
    yield from (WARNING for name in MUST_STAY_WARNING if rise[name])
    yield _judge(sum(rise[name] for name in SOCKET_ERRORS), limits.socket_warning, limits.socket_critical)
    yield from (UNKNOWN for name in MAY_HAPPEN_ONCE if rise[name] > 1)
    held = now["MsgCreate"] - now["MsgDestroy"]
    yield CRITICAL if held < 0 else _judge(held, limits.held_warning, limits.held_critical)
    if not rise["GetMetadataSuccess"]:
        yield CRITICAL


def _judge(value: int, warning: int, critical: int) -> int:
    return CRITICAL if value > critical else WARNING if value > warning else OK
