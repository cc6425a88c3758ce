"""The daemon's action for each Kafka error code in an answer to a produce request.

Promises behind the table:

* If the cluster's state or a missing permission causes the error, the daemon retries without limit, and the slab keeps
  the messages, unless the setting `delivery.max_failed_attempts` limits these retries.
* A bad message never causes the discard of other messages in its batch.
* An error of sequence numbers never ends the daemon.
* An error of one topic stops no other topic.

Columns:

* `may_duplicate`: the broker may have stored the batch although it answered with an error, so a retry may store the
  batch twice.  An idempotent broker recognizes the repetition by the sequence numbers, except after BUMP_EPOCH, which
  starts new sequence numbers.
* `counts_as_retry`: the answer raises the number of retries of each message in the batch by one.
* `retry_limit`: the allowed number of retries, regardless of `delivery.max_failed_attempts`; None if that setting
  applies.

A lost connection and a timeout have no code; their row is `CONNECTION_LOST`.  The table also applies to the error codes
of topics and partitions in a metadata response; there, DISCARD means that the topic or partition is not usable until
the next metadata response.

`error_table_page` renders the page docs/error-table.md from this table.  Codes and names are those of Apache Kafka's
Errors.java.
"""

from __future__ import annotations

from enum import Enum, unique
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["CONNECTION_LOST", "ERROR_TABLE", "FOREIGN_CODES", "Action", "ErrorRow", "error_row"]


@unique
class Action(Enum):
    """The treatment of a batch; the value describes it for operators.

    To *drain* a partition is to wait for the answers to all its batches that have been sent.
    """

    OK = "delivered"
    RESEND = "send the same batch to the same partition again, after a growing back-off"
    PAUSE_AND_REROUTE = "pause the partition, refresh the metadata, send the same batch to the new leader"
    HALVE = (
        "nothing was written: discard the records that the answer names, or halve the batch and send the halves; "
        "a message that is refused alone is discarded"
    )
    RESTAMP = (
        "nothing was written: give the records that the answer names, or a message that is refused alone, their "
        "arrival times as timestamps, and send the batch once more; as HALVE if these records have arrival times "
        "already or the client insists on its own timestamps"
    )
    SEND_UNNUMBERED = (
        "nothing was written: drain the partition, then send without sequence numbers, at least once; a batch "
        "that had no sequence numbers is discarded"
    )
    SEND_UNCOMPRESSED = (
        "drain the partition, then send uncompressed to this broker; a batch that was not compressed is discarded"
    )
    BUMP_EPOCH = "drain the partition, take the next epoch of the producer id, send again with new sequence numbers"
    DISCARD = "discard the messages, reason KAFKA_ERROR_ACK"
    AWAIT_PERMISSION = (
        "as RESEND, with an error in the log and on the health page: an operator must grant the permission"
    )
    FATAL_FOR_TOPIC = "as DISCARD, with an error in the log and on the health page: the set-up or the request is wrong"


class ErrorRow(Struct, frozen=True):
    """One row of the table; the module's docstring describes the columns."""

    code: int
    name: str
    action: Action
    may_duplicate: bool
    counts_as_retry: bool
    retry_limit: int | None
    reason: str


MAX_RETRIES: Final = 5  # for errors that a retry rarely cures
# Short names of the actions for the table.
OK: Final = Action.OK
RESEND: Final = Action.RESEND
REROUTE: Final = Action.PAUSE_AND_REROUTE
HALVE: Final = Action.HALVE
RESTAMP: Final = Action.RESTAMP
EPOCH: Final = Action.BUMP_EPOCH
UNNUMBERED: Final = Action.SEND_UNNUMBERED
UNCOMPRESSED: Final = Action.SEND_UNCOMPRESSED
DISCARD: Final = Action.DISCARD
FATAL: Final = Action.FATAL_FOR_TOPIC
FORBIDDEN: Final = Action.AWAIT_PERMISSION

RETRY_ACTIONS: Final = frozenset({RESEND, REROUTE, EPOCH, FORBIDDEN})
"""The actions that send the same batch again.  Each other action changes the batch, or settles its messages."""
NO_CODE: Final = -32768
"""The code in the rows for errors without a code; Kafka has no such code."""


def _row(
    code: int,
    name: str,
    action: Action,
    reason: str,
    *,
    may_duplicate: bool = False,
    retry_limit: int | None = None,
) -> ErrorRow:
    return ErrorRow(code, name, action, may_duplicate, action in RETRY_ACTIONS, retry_limit, reason)


CONNECTION_LOST: Final = _row(
    NO_CODE,
    "CONNECTION_LOST",
    REROUTE,
    "refused, closed, silent or garbled; the broker may have the batch",
    may_duplicate=True,
)
UNDOCUMENTED: Final = _row(NO_CODE, "UNDOCUMENTED", DISCARD, "newer than this table")
"""The row for codes that the table does not have."""

_ROWS: Final = (
    _row(
        -1,
        "UNKNOWN_SERVER_ERROR",
        RESEND,
        "a broker bug or unnamed fault; the broker may have the batch",
        may_duplicate=True,
        retry_limit=MAX_RETRIES,
    ),
    _row(0, "NONE", OK, "delivered"),
    _row(2, "CORRUPT_MESSAGE", RESEND, "damaged in transit; a retry may pass", retry_limit=MAX_RETRIES),
    _row(3, "UNKNOWN_TOPIC_OR_PARTITION", REROUTE, "leader moved or topic deleted; fresh metadata decides"),
    _row(5, "LEADER_NOT_AVAILABLE", REROUTE, "election under way"),
    _row(
        6,
        "NOT_LEADER_OR_FOLLOWER",
        REROUTE,
        "stale metadata; the leader may have lost its place after the append",
        may_duplicate=True,
    ),
    _row(7, "REQUEST_TIMED_OUT", REROUTE, "replicas too slow; written, but perhaps not by all", may_duplicate=True),
    _row(8, "BROKER_NOT_AVAILABLE", REROUTE, "transient"),
    _row(9, "REPLICA_NOT_AVAILABLE", REROUTE, "transient state of the metadata"),
    _row(10, "MESSAGE_TOO_LARGE", HALVE, "the batch cannot fit; a smaller one may"),
    _row(13, "NETWORK_EXCEPTION", REROUTE, "connection lost inside the cluster", may_duplicate=True),
    _row(17, "INVALID_TOPIC_EXCEPTION", DISCARD, "illegal topic name"),
    _row(18, "RECORD_LIST_TOO_LARGE", HALVE, "as 10"),
    _row(19, "NOT_ENOUGH_REPLICAS", RESEND, "in-sync replicas below the minimum; nothing written"),
    _row(20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", RESEND, "written, but by too few replicas", may_duplicate=True),
    _row(21, "INVALID_REQUIRED_ACKS", FATAL, "the request is wrong"),
    _row(29, "TOPIC_AUTHORIZATION_FAILED", FORBIDDEN, "the daemon's user may not write to that topic (ACL WRITE)"),
    _row(
        31,
        "CLUSTER_AUTHORIZATION_FAILED",
        FORBIDDEN,
        "the daemon's user may not write idempotently (ACL IDEMPOTENT_WRITE)",
    ),
    _row(32, "INVALID_TIMESTAMP", RESTAMP, "a timestamp outside the topic's range; the answer may name the record"),
    _row(33, "UNSUPPORTED_SASL_MECHANISM", FATAL, "connection set-up wrong"),
    _row(34, "ILLEGAL_SASL_STATE", FATAL, "connection set-up wrong"),
    _row(35, "UNSUPPORTED_VERSION", FATAL, "the broker refuses a version that it offered"),
    _row(36, "TOPIC_ALREADY_EXISTS", DISCARD, "admin call; when creating a topic this is success"),
    _row(38, "INVALID_REPLICATION_FACTOR", DISCARD, "admin call; creation failed"),
    _row(42, "INVALID_REQUEST", FATAL, "the request is wrong"),
    _row(43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", UNNUMBERED, "the topic's message format has no sequence numbers"),
    _row(44, "POLICY_VIOLATION", DISCARD, "cluster policy refuses"),
    _row(45, "OUT_OF_ORDER_SEQUENCE_NUMBER", EPOCH, "sequence numbers have a gap", may_duplicate=True),
    _row(46, "DUPLICATE_SEQUENCE_NUMBER", OK, "already stored: the answer to the first try was lost"),
    _row(47, "INVALID_PRODUCER_EPOCH", EPOCH, "the broker knows a newer epoch of the producer id", may_duplicate=True),
    _row(48, "INVALID_TXN_STATE", FATAL, "transactional only"),
    _row(49, "INVALID_PRODUCER_ID_MAPPING", EPOCH, "the broker does not know the producer id", may_duplicate=True),
    _row(50, "INVALID_TRANSACTION_TIMEOUT", FATAL, "transactional only"),
    _row(51, "CONCURRENT_TRANSACTIONS", RESEND, "transactional only, transient", retry_limit=MAX_RETRIES),
    _row(52, "TRANSACTION_COORDINATOR_FENCED", FATAL, "transactional only"),
    _row(53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", FATAL, "no permission"),
    _row(55, "OPERATION_NOT_ATTEMPTED", RESEND, "another part of the request failed first", retry_limit=MAX_RETRIES),
    _row(56, "KAFKA_STORAGE_ERROR", REROUTE, "a disk of the leader failed; another broker leads", may_duplicate=True),
    _row(58, "SASL_AUTHENTICATION_FAILED", FATAL, "bad credentials"),
    _row(59, "UNKNOWN_PRODUCER_ID", EPOCH, "the producer id has expired", may_duplicate=True),
    _row(72, "LISTENER_NOT_FOUND", REROUTE, "no matching listener on the leader; seen in metadata; refresh"),
    _row(74, "FENCED_LEADER_EPOCH", REROUTE, "stale leader epoch"),
    _row(75, "UNKNOWN_LEADER_EPOCH", REROUTE, "broker behind our metadata"),
    _row(76, "UNSUPPORTED_COMPRESSION_TYPE", UNCOMPRESSED, "codec not allowed for the request version or the topic"),
    _row(80, "PREFERRED_LEADER_NOT_AVAILABLE", REROUTE, "leader state in flux"),
    _row(83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", REROUTE, "no leader electable now"),
    _row(84, "ELECTION_NOT_NEEDED", REROUTE, "as stale metadata; not expected for produce"),
    _row(
        87,
        "INVALID_RECORD",
        HALVE,
        "a record is refused, e.g. without a key on a compacted topic; the answer may name it",
    ),
    _row(89, "THROTTLING_QUOTA_EXCEEDED", RESEND, "over quota: wait the throttle time first"),
    _row(90, "PRODUCER_FENCED", FATAL, "another producer took the transactional id"),
    _row(100, "UNKNOWN_TOPIC_ID", REROUTE, "topic deleted or re-created; refresh"),
    _row(103, "INCONSISTENT_TOPIC_ID", REROUTE, "topic re-created; refresh"),
    _row(108, "NEW_LEADER_ELECTED", REROUTE, "a new leader exists already"),
    _row(109, "OFFSET_MOVED_TO_TIERED_STORAGE", DISCARD, "consumer/replica error"),
    _row(114, "MISMATCHED_ENDPOINT_TYPE", FATAL, "connected to a controller where a broker is needed"),
    _row(115, "UNSUPPORTED_ENDPOINT_TYPE", FATAL, "as 114"),
    _row(120, "TRANSACTION_ABORTABLE", FATAL, "transactional only"),
    _row(124, "FENCED_STATE_EPOCH", DISCARD, "share-group state"),
    _row(129, "REBOOTSTRAP_REQUIRED", REROUTE, "discard the known brokers and start again from the initial ones"),
    _row(130, "STREAMS_INVALID_TOPOLOGY", DISCARD, "streams group"),
    _row(131, "STREAMS_INVALID_TOPOLOGY_EPOCH", DISCARD, "streams group"),
    _row(132, "STREAMS_TOPOLOGY_FENCED", DISCARD, "streams group"),
)

FOREIGN_CODES: Final = {
    "consumer error": (
        "1 OFFSET_OUT_OF_RANGE, 4 INVALID_FETCH_SIZE, 12 OFFSET_METADATA_TOO_LARGE, 22 ILLEGAL_GENERATION, "
        "23 INCONSISTENT_GROUP_PROTOCOL, 24 INVALID_GROUP_ID, 25 UNKNOWN_MEMBER_ID, 26 INVALID_SESSION_TIMEOUT, "
        "27 REBALANCE_IN_PROGRESS, 28 INVALID_COMMIT_OFFSET_SIZE, 30 GROUP_AUTHORIZATION_FAILED, "
        "70 FETCH_SESSION_ID_NOT_FOUND, 71 INVALID_FETCH_SESSION_EPOCH, 78 OFFSET_NOT_AVAILABLE, "
        "79 MEMBER_ID_REQUIRED, 81 GROUP_MAX_SIZE_REACHED, 82 FENCED_INSTANCE_ID, 88 UNSTABLE_OFFSET_COMMIT, "
        "106 FETCH_SESSION_TOPIC_ID_ERROR, 110 FENCED_MEMBER_EPOCH, 111 UNRELEASED_INSTANCE_ID, "
        "112 UNSUPPORTED_ASSIGNOR, 113 STALE_MEMBER_EPOCH, 128 INVALID_REGULAR_EXPRESSION"
    ),
    "transactional and group coordinators only": (
        "14 COORDINATOR_LOAD_IN_PROGRESS, 15 COORDINATOR_NOT_AVAILABLE, 16 NOT_COORDINATOR"
    ),
    "admin call": (
        "37 INVALID_PARTITIONS, 39 INVALID_REPLICA_ASSIGNMENT, 40 INVALID_CONFIG, 41 NOT_CONTROLLER, "
        "54 SECURITY_DISABLED, 57 LOG_DIR_NOT_FOUND, 60 REASSIGNMENT_IN_PROGRESS, 61 DELEGATION_TOKEN_AUTH_DISABLED, "
        "62 DELEGATION_TOKEN_NOT_FOUND, 63 DELEGATION_TOKEN_OWNER_MISMATCH, 64 DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "
        "65 DELEGATION_TOKEN_AUTHORIZATION_FAILED, 66 DELEGATION_TOKEN_EXPIRED, 67 INVALID_PRINCIPAL_TYPE, "
        "68 NON_EMPTY_GROUP, 69 GROUP_ID_NOT_FOUND, 73 TOPIC_DELETION_DISABLED, 85 NO_REASSIGNMENT_IN_PROGRESS, "
        "86 GROUP_SUBSCRIBED_TO_TOPIC, 91 RESOURCE_NOT_FOUND, 92 DUPLICATE_RESOURCE, 93 UNACCEPTABLE_CREDENTIAL, "
        "96 FEATURE_UPDATE_FAILED, 105 TRANSACTIONAL_ID_NOT_FOUND"
    ),
    "broker-internal": (
        "11 STALE_CONTROLLER_EPOCH, 77 STALE_BROKER_EPOCH, 94 INCONSISTENT_VOTER_SET, 95 INVALID_UPDATE_VERSION, "
        "97 PRINCIPAL_DESERIALIZATION_FAILURE, 98 SNAPSHOT_NOT_FOUND, 99 POSITION_OUT_OF_RANGE, "
        "101 DUPLICATE_BROKER_REGISTRATION, 102 BROKER_ID_NOT_REGISTERED, 104 INCONSISTENT_CLUSTER_ID, "
        "107 INELIGIBLE_REPLICA, 116 UNKNOWN_CONTROLLER_ID, 119 INVALID_REGISTRATION"
    ),
    "telemetry": "117 UNKNOWN_SUBSCRIPTION_ID, 118 TELEMETRY_TOO_LARGE",
    "share-group consumer": (
        "121 INVALID_RECORD_STATE, 122 SHARE_SESSION_NOT_FOUND, 123 INVALID_SHARE_SESSION_EPOCH, "
        "133 SHARE_SESSION_LIMIT_REACHED"
    ),
    "controller quorum": "125 INVALID_VOTER_KEY, 126 DUPLICATE_VOTER, 127 VOTER_NOT_FOUND",
}
"""The codes that only other requests than Produce have, by the kind of request; their action is DISCARD."""


def _rows_of_other_requests() -> Iterator[ErrorRow]:
    for reason, codes in FOREIGN_CODES.items():
        for code, name in map(str.split, codes.split(",")):
            yield _row(int(code), name, DISCARD, reason)


ERROR_TABLE: Final[Mapping[int, ErrorRow]] = MappingProxyType(
    {row.code: row for row in sorted((*_ROWS, *_rows_of_other_requests()), key=attrgetter("code"))}
)


def error_row(code: int) -> ErrorRow:
    """Return the row of a code; for a code that the table does not have, return UNDOCUMENTED with that code."""
    return ERROR_TABLE.get(code) or replace(UNDOCUMENTED, code=code)
