"""Names for numbers of the Kafka protocol: API keys and error codes.

Source: https://kafka.apache.org/protocol, sections "Api Keys" and "Error Codes".
"""

from __future__ import annotations

from enum import IntEnum, unique

from bruce_mp.errors import BruceError

__all__ = ["ApiKey", "Code", "RefusedError"]


@unique
class ApiKey(IntEnum):
    """APIs that the embedded broker serves."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    INIT_PRODUCER_ID = 22
    CREATE_PARTITIONS = 37


@unique
class Code(IntEnum):
    """Error codes that the embedded broker returns by itself. A scripted fault may return any other number."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    MESSAGE_TOO_LARGE = 10
    COORDINATOR_NOT_AVAILABLE = 15
    INVALID_TOPIC_EXCEPTION = 17
    INVALID_REQUIRED_ACKS = 21
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REQUEST = 42
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    FETCH_SESSION_ID_NOT_FOUND = 70
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87
    UNKNOWN_TOPIC_ID = 100


class RefusedError(BruceError):
    """The broker refuses a request or a part of it.

    The client gets the error code `code`, which is a member of `Code` or the number that a scripted fault sets. It also
    gets `text` if the response has a field for an error message.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
