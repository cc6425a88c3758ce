"""Counter names that monitors of the old daemons read, derived here from other counters or always 0.

Those monitors compare two readings name by name and raise an alarm when a name is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason
from bruce_mp.telemetry.counters import Counter, discarded

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DERIVED", "NEVER"]

DERIVED: Final[Mapping[str, tuple[int, ...]]] = {
    "MsgCreate": (Counter.MsgReceived,),
    "MsgDestroy": (Counter.MsgDelivered, *map(discarded, DiscardReason)),
    "MsgUnprocessedDestroy": (discarded(DiscardReason.BUG),),
    "RouteSingleAnyPartitionMsg": (Counter.RouteAnyPartitionMsg,),
    "RouteSinglePartitionKeyMsg": (Counter.RoutePartitionKeyMsg,),
    "TopicHasNoAvailablePartitions": (Counter.DiscardNoAvailablePartition,),
    "RefreshMetadataSuccess": (Counter.MetadataChangedOnRefresh, Counter.MetadataUnchangedOnRefresh),
    "MetadataUpdated": (Counter.MetadataChangedOnRefresh,),
}
"""The counters that add up to the value of each name."""

_METADATA_FAULTS: Final = (
    *("NegativeBrokerCount", "NegativeBrokerNodeId", "BadBrokerHostLen", "BadBrokerPort", "NegativeTopicCount"),
    *("BadTopicNameLen", "NegativePartitionCount", "NegativePartitionId", "InvalidLeaderNodeId"),
    *("NegativePartitionReplicaCount", "NegativeReplicaNodeId", "NegativePartitionCaughtUpReplicaCount"),
    "NegativeCaughtUpReplicaNodeId",
)

NEVER: Final = (
    *(f"MetadataResponse{fault}" for fault in _METADATA_FAULTS),
    *("ShortMetadataResponse", "BadMetadataResponseSize", "BadKafkaResponseSize", "BadProduceResponseSize"),
    *("MetadataHasEmptyBrokerList", "MetadataSanityCheckFail", "CorrelationIdMismatch"),
    *("ProduceResponseBadPartitionCount", "ProduceResponseBadTopicNameLength", "ProduceResponseBadTopicCount"),
    *("ProduceResponseUnexpectedTopic", "ProduceResponseUnexpectedPartition"),
    *("ProduceResponseShortPartitionList", "ProduceResponseShortTopicList"),
    *("SendMetadataRequestFail", "SendMetadataRequestLostTcpConnection"),
    *("StreamClientWorkerStdException", "StreamClientWorkerUnknownException"),
    *("BugDispatchBatchOutOfRangeIndex", "BugDispatchMsgOutOfRangeIndex", "BugGetAckWaitQueueOutOfRangeIndex"),
    *("BugAllTopicsEmpty", "BugMsgListMultipleTopics", "BugMsgSetEmpty", "BugMultiPartitionGroupEmpty"),
    *("BugProduceRequestEmpty", "ConnectorTruncateLongTimeout"),
    *("MongooseUrlDecodeError", "MongooseUnknownException"),
)
"""Names that are always 0.

The fault cannot occur, or another counter (BadMetadataResponse, BadProduceResponse) counts it.
"""
