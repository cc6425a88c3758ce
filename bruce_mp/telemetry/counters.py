"""The counters of a process row, by number: append only, a number never changes its meaning.

The first block is the books (`telemetry/books.py`): they are raised only in transactions.  The names are those of the
reference daemons where the meaning is the same.
"""

from __future__ import annotations

from enum import IntEnum, unique
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bruce_mp.errors import DiscardReason

__all__ = ["DISCARDED", "Counter", "discarded"]

DISCARDED: Final = 16
"""Counter DISCARDED + r counts the messages discarded for reason r."""


def discarded(reason: DiscardReason) -> int:
    """The counter of a discard reason."""
    return DISCARDED + reason


@unique
class Counter(IntEnum):
    """What is counted.  0 to 63 are the books."""

    MsgReceived = 0
    MsgDelivered = 1
    PossibleDuplicateMsg = 2

    # input
    UnixDgInputAgentForwardMsg = 64
    InputAgentProcessAnyPartitionMsg = 65
    InputAgentProcessPartitionKeyMsg = 66
    InputAgentDiscardMsgMalformed = 67
    InputAgentDiscardMsgNoMem = 68
    InputAgentDiscardMsgUnsupportedApiKey = 69
    InputAgentDiscardAnyPartitionMsgUnsupportedApiVersion = 70
    InputAgentDiscardPartitionKeyMsgUnsupportedApiVersion = 71
    UnixStreamInputForwardMsg = 72
    UnixStreamInputCleanDisconnect = 73
    UnixStreamInputUncleanDisconnect = 74
    UnixStreamInputSocketError = 75
    UnixStreamInputInvalidSizeField = 76
    UnixStreamInputMsgBodyTooLarge = 77
    UnixStreamInputSocketRead = 78
    UnixStreamInputSocketGotData = 79
    TcpInputForwardMsg = 80
    TcpInputCleanDisconnect = 81
    TcpInputUncleanDisconnect = 82
    TcpInputSocketError = 83
    TcpInputInvalidSizeField = 84
    TcpInputMsgBodyTooLarge = 85
    TcpInputSocketRead = 86
    TcpInputSocketGotData = 87
    StreamConnections = 88
    """How many are open now; no sum over time."""
    StreamBarriers = 89
    InputAgentDiscardMsgNotAllowed = 90
    InputAgentDiscardMsgOverQuota = 91
    UnixStreamInputNotAllowed = 92
    """Connections that were refused."""
    StreamInputOverQuota = 93
    """How often a connection was not read because of the quota."""
    InputAgentReplaceTimestamp = 94
    """Messages whose timestamps lay too far from their arrival, and were replaced by it."""
    InputAgentDiscardMsgTopicOverShare = 95

    # router
    RouteAnyPartitionMsg = 96
    RoutePartitionKeyMsg = 97
    PerTopicBatchAnyPartition = 98
    DiscardBadTopicMsgOnRoute = 99
    DiscardBadTopicOnReroute = 100
    DiscardLongMsg = 101
    DiscardNoAvailablePartition = 102
    PauseStarted = 104
    PauseFinished = 105
    GetMetadataSuccess = 106
    GetMetadataFail = 107
    ConnectFailOnTryGetMetadata = 108
    StartRefreshMetadata = 109
    MetadataChangedOnRefresh = 110
    MetadataUnchangedOnRefresh = 111
    MetadataHasEmptyTopicList = 112
    MetadataPartitionHasUnknownBroker = 113
    BadMetadataResponse = 114
    StartKafkaDispatcher = 115
    DiscardDueToRateLimit = 116
    DiscardOnTopicAutocreateFail = 117
    TopicAutocreateSuccess = 118
    TopicAutocreateGotErrorResponse = 119
    ConnectFailOnTopicAutocreate = 120
    RefusedDamagedPlace = 121
    MetadataResponseReadTimeout = 122
    MetadataResponseReadLostTcpConnection = 123

    # more of the input
    StreamInputTopicOverShare = 124
    """How often a connection was not read because its topic held its share of the slab."""

    # dispatcher
    ConnectorStartConnect = 160
    ConnectorConnectSuccess = 161
    ConnectorConnectFail = 162
    ConnectorSocketBrokerClose = 163
    ConnectorSocketError = 164
    ConnectorSocketTimeout = 165
    SendProduceRequestOk = 166
    AckNotRequired = 167
    BadProduceResponse = 168
    SerializeProduceRequest = 169
    SerializeMsgSet = 170
    SerializeMsg = 171
    MsgSetCompressionYes = 172
    MsgSetCompressionNo = 173
    MsgSetNotCompressible = 174
    MsgSetCompressionError = 175
    ConnectorGotOkProduceResponse = 176
    ConnectorGotSuccessfulAck = 177
    ConnectorGotDiscardAck = 178
    ConnectorGotResendAck = 179
    ConnectorGotPauseAck = 180
    DiscardOnFailedDeliveryAttemptLimit = 181
    CombinedTopicsBatchAnyPartition = 182
    CombinedTopicsBatchPartitionKey = 183
    PerTopicBatchPartitionKey = 184
    NoBatchAnyPartition = 185
    NoBatchPartitionKey = 186
    ConnectorReplaceTimestamp = 187
    """The same, because a broker refused them."""
    AckErrorFirst = 192
    """AckErrorFirst + 1 + code counts the answers with an error code from -1 to 133; + 136 any other."""

    # supervisor and status
    GotShutdownRequest = 352
    GotLogfileReopenRequest = 353
    ProcessRestarted = 354
    MongooseHttpRequest = 355
    MongooseStdException = 357
    NoDiscardQuery = 356

    # files that status writes: the first by whoever has the message, too
    MsgCopyLost = 360
    DiscardLogLine = 361

    # dispatcher: the time from the receipt of messages to their ack, see telemetry/delays.py
    AckDelayFirst = 368
    """AckDelayFirst + i counts the messages of bucket i."""
    AckDelayMs = 384
    """The sum over all messages."""
