"""The part of `bruce check-config --connect` that checks the brokers, with the same code as the daemon's connections.

For each broker, the check resolves the name and connects, with TLS and a login if they are configured. Then it requests
metadata, and a producer id if the daemon would need one. For each topic that the configuration names, it verifies that
the topic exists and that the daemon may write to the topic. The check creates no topics and sends no messages; the
producer ids that brokers assign stay unused.
"""

from __future__ import annotations

import time
from enum import StrEnum, unique
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.config.addresses import HostPort
from bruce_mp.errors import RemoteProtocolError
from bruce_mp.ipc.loop import Loop
from bruce_mp.network.connection_security import Security, create_security
from bruce_mp.network.resolver import Resolver
from bruce_mp.protocol.kafka.connection_events import (
    Closed,
    ConnectionReady,
    Failed,
    FailureCause,
    MetadataReceived,
    ProducerIdReceived,
)
from bruce_mp.protocol.kafka.error_actions import error_row
from bruce_mp.protocol.kafka.kafka_types import (
    ACKS_ALL,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSIENT_PRODUCER_ID_ERRORS,
    WRITE_OPERATION,
)
from bruce_mp.protocol.kafka.version_negotiation import NegotiationCache
from bruce_mp.router.broker_sequence import socket_factory
from bruce_mp.router.cluster import Address
from bruce_mp.telemetry.clock import utc_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bruce_mp.config.model import Config
    from bruce_mp.network.broker_socket import BrokerSocket
    from bruce_mp.protocol.kafka.connection_events import Event
    from bruce_mp.protocol.kafka.kafka_types import ClusterMetadata, TopicMetadata

__all__ = ["CheckLevel", "Finding", "broker_findings", "configured_topics"]

_CLOSED_ERROR: Final = RemoteProtocolError("The broker closed the connection.")
_UNKNOWN_TOPIC_OR_PARTITION: Final = 3  # Kafka's error code
_DAY_S: Final = 86_400
_EXPIRES_SOON_S: Final = 14 * _DAY_S
_CHECK_ADDRESS: Final = (
    "Check the address, that the broker runs, and the firewalls between this host and the broker. A broker's address "
    "is in kafka.bootstrap_servers, or in advertised.listeners on the broker"
)
_CHECK_PORT: Final = "Another service, or a listener for TLS or for other clients, may have this port: check the port"
_REMEDIES: Final = {
    FailureCause.CLOSED_BY_BROKER: _CHECK_ADDRESS,
    FailureCause.TIMED_OUT: _CHECK_ADDRESS,
    FailureCause.NO_API_VERSIONS: _CHECK_PORT,
    FailureCause.BAD_DATA: _CHECK_PORT,
    FailureCause.NO_COMMON_VERSION: "Upgrade the broker, or set kafka.broker_version if it is older than 0.10",
}
"""The remedy for each cause of a failure. It is omitted if the error's text names a setting, as in
"(kafka.tls.ca_file)", because such a text has a remedy itself."""
_CAUSES_AFTER_TLS: Final = frozenset({FailureCause.LOGIN_REFUSED, FailureCause.NO_CREDENTIALS})
"""Causes of failures that occur only after TLS has succeeded."""


@unique
class CheckLevel(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Finding(NamedTuple):
    """A line of the output about `subject`; the `text` of a warning or failure includes a remedy."""

    level: CheckLevel
    subject: str
    text: str


class BrokerResult(NamedTuple):
    """The result of a trial of a broker: `failure` if a step failed, else the other fields.

    `metadata` is None if the trial requested none. `producer_id_error` is the error code in Kafka's response; 0 means
    success or no request. `certificate_ends_s` is the expiry of the broker's certificate, in seconds since the epoch;
    None means no TLS.
    """

    failure: Failed | None = None
    metadata: ClusterMetadata | None = None
    producer_id_error: int = 0
    certificate_ends_s: float | None = None


class _Trial:
    """A connection that requests metadata of `topics` from a broker, and passes the result to `on_done`.

    If `needs_producer_id` is True, the trial then requests a producer id. If `topics` is None, it requests nothing, and
    passes the result as soon as the connection is ready.
    """

    def __init__(
        self,
        create_socket: Callable[[Callable[[Event], None]], BrokerSocket],
        topics: Sequence[bytes] | None,
        on_done: Callable[[BrokerResult], None],
        *,
        needs_producer_id: bool,
    ) -> None:
        self._topics = topics
        self._on_done = on_done
        self._needs_producer_id = needs_producer_id
        self._metadata: ClusterMetadata | None = None
        self._socket = create_socket(self._on_event)
        self._socket.open()

    def _on_event(self, event: Event) -> None:
        match event:
            case ConnectionReady():
                self._on_ready(event)
            case MetadataReceived(metadata=metadata):
                self._metadata = metadata
                self._request_producer_id_or_finish()
            case ProducerIdReceived(response=response):
                self._finish(BrokerResult(metadata=self._metadata, producer_id_error=response.error))
            case Failed():
                self._on_done(BrokerResult(failure=event))
            case Closed():
                self._on_done(BrokerResult(failure=Failed(_CLOSED_ERROR, FailureCause.CLOSED_BY_BROKER, ())))

    def _on_ready(self, event: ConnectionReady) -> None:
        if self._topics is None:
            self._finish(BrokerResult())
            return
        self._needs_producer_id &= event.capabilities.has_producer_ids
        # A broker that lacks `can_name_topics` creates a missing topic if a request names it; None requests all topics.
        topics = self._topics if event.capabilities.can_name_topics else None
        request = self._socket.connection.request_metadata(topics, time.monotonic(), with_operations=True)
        self._socket.send(request.buffers)

    def _request_producer_id_or_finish(self) -> None:
        if self._needs_producer_id:
            self._socket.send(self._socket.connection.request_producer_id(time.monotonic()).buffers)
        else:
            self._finish(BrokerResult(metadata=self._metadata))

    def _finish(self, result: BrokerResult) -> None:
        expiry_s = self._socket.certificate_ends_s
        self._socket.close()
        self._on_done(result._replace(certificate_ends_s=expiry_s))


class BrokerCheck:
    """Trial connections to brokers, and the event loop that serves them."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._loop = Loop()
        self._resolver = Resolver(self._loop)
        self._security = create_security(config.kafka, self._loop)
        self.topics = configured_topics(config)

    def request_all(self, servers: Sequence[HostPort]) -> dict[HostPort, BrokerResult]:
        """Request metadata from all servers at the same time, and a producer id as well if `required_acks` is -1."""
        return self._try_all(servers, self.topics, self._security)

    def speaks_plain_text(self, server: HostPort) -> bool:
        """Return True if the server answers a Kafka client without TLS."""
        return self._try_all([server], topics=None, security=Security())[server].failure is None

    def _try_all(
        self, servers: Sequence[HostPort], topics: Sequence[bytes] | None, security: Security
    ) -> dict[HostPort, BrokerResult]:
        results: dict[HostPort, BrokerResult] = {}
        kafka = self._config.kafka
        create_socket = socket_factory(
            self._loop,
            self._resolver,
            client_id=kafka.client_id,
            timeout_s=self._config.delivery.kafka_socket_timeout_s,
            negotiation_cache=NegotiationCache(kafka.broker_version, logs_in=security.logins is not None),
            security=security,
        )

        def on_done(server: HostPort, result: BrokerResult) -> None:
            results[server] = result
            if len(results) == len(servers):
                self._loop.stop()

        for server in servers:
            _Trial(
                partial(create_socket, Address(server.host, server.port)),
                topics,
                partial(on_done, server),
                needs_producer_id=kafka.required_acks == ACKS_ALL,
            )
        if len(results) < len(servers):  # else all trials have failed already, and no event would end the loop
            self._loop.run()
        return results


def configured_topics(config: Config) -> list[bytes]:
    """Return the topics that the configuration names, sorted."""
    named: set[str] = set()
    for section in (
        config.partitioner, config.batching, config.compression, config.rate_limit, config.topic_share,
        config.timestamps,
    ):  # fmt: skip
        named.update(section.topics)
    return sorted(name.encode() for name in named | {config.discards.topic} if name)


def broker_findings(config: Config) -> Iterator[Finding]:
    """Yield a finding for each bootstrap server, each further broker of the cluster, and each configured topic."""
    check = BrokerCheck(config)
    results = check.request_all(list(dict.fromkeys(config.kafka.servers)))
    for server, result in results.items():
        yield _broker_finding(check, config, server, result, remark="")
    metadata_responses = [result.metadata for result in results.values() if result.metadata is not None]
    if not metadata_responses:
        return
    all_brokers = {HostPort(broker.host, broker.port) for broker in metadata_responses[0].brokers.values()}
    further_brokers = all_brokers - results.keys()
    further_results = check.request_all(sorted(further_brokers)) if further_brokers else {}
    for server, result in further_results.items():
        yield _broker_finding(check, config, server, result, remark=" (named by the cluster)")
    if len({metadata.cluster_id for metadata in metadata_responses}) > 1:
        text = "kafka.bootstrap_servers names brokers of different clusters. Name brokers of one cluster."
        yield Finding(CheckLevel.FAILED, "cluster", text)
    for name in check.topics:
        level, text = _assess_topic(config, metadata_responses[0].topics.get(name))
        yield Finding(level, f"topic {name.decode()}", text)


def _broker_finding(check: BrokerCheck, config: Config, server: HostPort, result: BrokerResult, remark: str) -> Finding:
    """Return the finding for the result of a broker; `remark` follows the broker's name."""
    subject = f"broker {server}{remark}"
    if result.failure is not None:
        return Finding(CheckLevel.FAILED, subject, _failure_text(check, config, server, result.failure))
    if result.producer_id_error:
        return Finding(CheckLevel.WARNING, subject, _producer_id_text(result.producer_id_error))
    expiry_s = result.certificate_ends_s
    if expiry_s is not None and expiry_s - time.time() < _EXPIRES_SOON_S:
        text = f"its certificate expires at {utc_text(expiry_s)}. Renew it on the broker."
        return Finding(CheckLevel.WARNING, subject, text)
    return Finding(CheckLevel.OK, subject, ", ".join(_completed_steps(config)))


def _producer_id_text(error: int) -> str:
    name = error_row(error).name
    if error in TRANSIENT_PRODUCER_ID_ERRORS:
        return (
            f"has no producer id at the moment ({name}): the cluster may be starting. Run this check again in a minute."
        )
    return (
        f"refuses a producer id ({name}): messages would be delivered at least once, not once. Allow the daemon's "
        "user IDEMPOTENT_WRITE on the cluster, or with Kafka 2.8 and later WRITE on a topic."
    )


def _completed_steps(config: Config) -> Iterator[str]:
    """Yield the steps that a trial without a failure has completed."""
    yield "connected"
    if config.kafka.tls.enable:
        yield "TLS"
    if config.kafka.sasl.mechanism is not None:
        yield f"login by {config.kafka.sasl.mechanism}"
    yield "metadata"


def _failure_text(check: BrokerCheck, config: Config, server: HostPort, failure: Failed) -> str:
    if config.kafka.tls.enable and failure.cause not in _CAUSES_AFTER_TLS and check.speaks_plain_text(server):
        return "speaks plain text on this port. Set kafka.tls.enable = false, or name the port of its TLS listener."
    if failure.cause is FailureCause.BAD_DATA:
        return f"answers, but not as a Kafka broker. {_CHECK_PORT}."
    remedy = _REMEDIES.get(failure.cause)
    text = str(failure.error).removeprefix(f"Broker {server} ").rstrip(".")  # the line begins with the broker's name
    return f"{text}." + (f" {remedy}." if remedy and "(kafka." not in text else "")


def _assess_topic(config: Config, topic: TopicMetadata | None) -> tuple[CheckLevel, str]:
    """Return the level and the text of the finding for a topic; `topic` is None if it has no metadata."""
    if topic is None or topic.error == _UNKNOWN_TOPIC_OR_PARTITION:
        if config.delivery.topic_autocreate:
            text = "does not exist; the daemon will ask the brokers to create it at the first message."
            return CheckLevel.WARNING, text
        text = "does not exist, or the daemon's user may not see it. Create it, or allow the user WRITE on it."
        return CheckLevel.FAILED, text
    if topic.error == TOPIC_AUTHORIZATION_FAILED:
        return CheckLevel.FAILED, "the daemon's user may not see it. Allow the user WRITE on it."
    return _assess_visible_topic(topic)


def _assess_visible_topic(topic: TopicMetadata) -> tuple[CheckLevel, str]:
    if topic.error:
        return (
            CheckLevel.WARNING,
            f"the brokers report {error_row(topic.error).name}. Run this check again in a minute.",
        )
    if topic.operations is not None and WRITE_OPERATION not in topic.operations:
        return CheckLevel.FAILED, "the daemon's user may not write to it. Allow the user WRITE on it."
    leaderless_count = sum(not partition.is_available for partition in topic.partitions.values())
    if leaderless_count:
        text = f"{leaderless_count} of {len(topic.partitions)} partitions have no leader. Check its brokers."
        return CheckLevel.WARNING, text
    rights = "may be written" if topic.operations is not None else "its brokers are too old to report rights"
    return CheckLevel.OK, f"{len(topic.partitions)} partitions, {rights}"
