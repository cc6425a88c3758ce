"""The numbers of the counters in a process row.

New counters get new numbers, and a number never changes its meaning, because the counters in the slab outlive a
release.  The first BOOK_COUNTER_COUNT counters hold the books (`telemetry/books.py`), which only transactions change.
A counter that Dory also has keeps Dory's name.
"""

from __future__ import annotations

from enum import IntEnum, unique
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bruce_mp.errors import DiscardReason

__all__ = ["BOOK_COUNTER_COUNT", "FIRST_DISCARD", "UNKNOWN_RESPONSES", "Counter", "discarded", "response_counter"]

BOOK_COUNTER_COUNT: Final = 64
"""How many counters hold the books: the counters 0 to 63. 8 to 15 count moves between stages (`slab/layout.py`)."""
FIRST_DISCARD: Final = 16
"""Counter FIRST_DISCARD + r counts the messages discarded for reason r."""


def discarded(reason: DiscardReason) -> int:
    """Return the number of the counter of a discard reason."""
    return FIRST_DISCARD + reason


@unique
class Counter(IntEnum):
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
    """The number of open connections (a gauge, not a counter)."""
    StreamBarriers = 89
    InputAgentDiscardMsgNotAllowed = 90
    InputAgentDiscardMsgOverQuota = 91
    UnixStreamInputNotAllowed = 92
    """Connections refused because the allow list does not admit their user."""
    StreamInputOverQuota = 93
    """Number of times that the quota suspended reading from a connection."""
    InputAgentReplaceTimestamp = 94
    """Messages that got their arrival time as the timestamp, because the client's timestamp was too far from it."""
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
    """Number of times that damage in the slab was found; the messages there stay held."""
    MetadataResponseReadTimeout = 122
    MetadataResponseReadLostTcpConnection = 123

    # more of the input
    StreamInputTopicOverShare = 124
    """Number of times that reading from a connection was suspended, because a topic filled its share of the slab."""
    StreamInputSpillFull = 125
    """Number of times that a fenced attempt had to wait for room in spill files."""
    AcceptExhausted = 126
    """Failures to accept a stream or HTTP connection, because descriptors or memory were lacking."""
    StreamConnectionOverLimit = 127
    """Connections closed at once, because their user already had `input.streams.max_connections_per_user` of them."""
    InputRunsPublished = 140
    """Runs that inputs handed over to the router."""
    StreamUnfinishedMsgClosed = 128
    """Connections closed inside a message, because memory was lacking for it or because no byte came for too long."""
    NewUnixClient = 129
    """Accepted connections, without the refused connections."""
    NewTcpClient = 130

    # more of the router
    InitialGetMetadataFail = 131
    """Failed metadata fetches before the first successful one; GetMetadataFail counts them as well."""
    TopicRecreated = 132
    """Topics that were deleted and created again."""

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
    """Messages that got their arrival time as the timestamp, because a broker refused the old timestamp."""
    AckErrorFirst = 192
    """The counter of responses with error code -1; the counters of other codes follow (see `response_counter`)."""

    # supervisor and status
    GotShutdownRequest = 352
    GotLogfileReopenRequest = 353
    ProcessRestarted = 354
    MongooseHttpRequest = 355
    MongooseStdException = 357
    NoDiscardQuery = 356
    """Periods in which no client read `/discards`."""

    # copies of messages, which the status process writes to files or sends as dead letters (`message_copies.py`)
    MsgCopyLost = 360
    DiscardLogLine = 361
    DiscardCopyQueued = 362
    """Copies of discarded messages, counted by the transaction that discards the messages."""
    DiscardCopySettled = 363
    """Copies of discarded messages that were written to the discard file, need no line in it, or were lost."""
    DeadLetterSent = 364
    DeadLetterLost = 365

    # dispatcher: latencies of messages from receipt to acknowledgment, see telemetry/latency_histogram.py
    AckDelayFirst = 368
    """AckDelayFirst + i counts the messages of bucket i."""
    AckDelayMs = 384
    """Sum of the latencies of all messages, in ms."""


_ERROR_CODES: Final = range(-1, 134)
"""The error codes of Kafka for which a counter is reserved."""
UNKNOWN_RESPONSES: Final = Counter.AckErrorFirst + 136
"""The counter of responses with any other code; the number before it is unused."""


def response_counter(code: int) -> int:
    """Return the number of the counter of responses with this error code."""
    return Counter.AckErrorFirst + (code - _ERROR_CODES[0]) if code in _ERROR_CODES else UNKNOWN_RESPONSES
