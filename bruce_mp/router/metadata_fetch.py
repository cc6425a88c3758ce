"""Metadata fetches: a fetch tries the known brokers and the bootstrap servers until one responds.

While the daemon lacks the producer id that it needs for sequence numbers, each fetch also requests a producer id.
Brokers before Kafka 0.10 have no producer ids, and a slow broker can look like such an old broker (see
`protocol.kafka.version_negotiation`).  So if a broker looks old, the fetch asks other brokers.  It ends without a
producer id only if `_ENOUGH_OLD_BROKERS` look old, or if some look old and the others do not respond.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.protocol.kafka.api_versions import BEFORE_API_VERSIONS
from bruce_mp.protocol.kafka.connection_events import (
    Closed,
    ConnectionReady,
    Failed,
    MetadataReceived,
    ProducerIdReceived,
)
from bruce_mp.protocol.kafka.error_actions import error_row
from bruce_mp.protocol.kafka.kafka_types import TOPIC_AUTHORIZATION_FAILED
from bruce_mp.router.broker_sequence import BrokerSequence
from bruce_mp.router.cluster import Address
from bruce_mp.slab.producer_id import foreign_cluster_sentence, is_same_cluster

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Sequence

    from bruce_mp.protocol.kafka.connection_events import Event, FailureCause
    from bruce_mp.protocol.kafka.kafka_types import ClusterMetadata
    from bruce_mp.router.broker_sequence import SocketFactory

__all__ = ["FetchResult", "MetadataFetcher"]

log = logging.getLogger(__name__)
_ENOUGH_OLD_BROKERS: Final = 3
"""The number of brokers that look old after which a fetch asks no further broker.  It is small, because it takes four
seconds to recognize a broker of Kafka 0.9."""


class FetchResult(NamedTuple):
    """The result of a fetch.

    `producer_id` is None if the fetch did not request a producer id, or if the broker has none or refused it.
    `producer_error` is the error code of a refusal, else 0.  `forbidden` has the topics that were requested by name and
    that the daemon's Kafka user may not see.
    """

    metadata: ClusterMetadata
    producer_id: int | None
    producer_error: int = 0
    forbidden: frozenset[bytes] = frozenset()


class MetadataFetcher:
    """Fetches metadata, one fetch at a time.  `on_done` gets the result, or None if no broker responded.

    `on_failure` gets the cause of each failed connection, or None if the broker closed the connection.
    `find_required_cluster` returns the id of the only accepted cluster, or "" if any cluster is accepted; a broker of
    another cluster counts as failed.
    """

    def __init__(
        self,
        create_socket: SocketFactory,
        *,
        rng: random.Random,
        on_done: Callable[[FetchResult | None], None],
        on_failure: Callable[[FailureCause | None], None] = lambda _: None,
        find_required_cluster: Callable[[], str] = lambda: "",
    ) -> None:
        self._brokers = BrokerSequence(create_socket, self._on_event)
        self._rng = rng
        self._on_done = on_done
        self.last_error = ""
        """The error of the broker that failed last in the current or last fetch.  If an error needs an operator, only
        another such error replaces it."""
        self.needs_operator = False
        """True if `last_error` lasts until an operator changes the configuration."""
        self._on_failure = on_failure
        self._find_required_cluster = find_required_cluster
        self.foreign_cluster = ""
        """The id of the wrong cluster if this fetch asked a broker outside the required cluster; else empty."""
        self._failed_brokers: set[Address] = set()
        """Brokers that have not responded since they failed; a fetch tries them last."""
        self._needs_producer_id = False
        self._capabilities = BEFORE_API_VERSIONS
        """The capabilities of the current broker."""
        self._old_broker_results: list[FetchResult] = []
        """The results of brokers that look older than Kafka 0.10.  The first of them is the result of the fetch if no
        broker gives a producer id."""
        self._metadata: ClusterMetadata | None = None
        """The current broker's response for all topics; None until it arrives."""
        self._requested_names: Sequence[bytes] = ()
        self._forbidden: frozenset[bytes] = frozenset()

    @property
    def is_busy(self) -> bool:
        return self._brokers.has_connection

    @property
    def progress(self) -> tuple[str, str]:
        """(host:port of the broker that the fetch asks now, `last_error`); two empty strings between fetches."""
        broker = self._brokers.current
        return (f"{broker.host}:{broker.port}", self.last_error) if broker is not None and self.is_busy else ("", "")

    def apply_config(self, create_socket: SocketFactory) -> None:
        """Replace the socket factory, and cancel the current fetch without a callback."""
        self._brokers.close()
        self._brokers.create_socket = create_socket
        self._failed_brokers.clear()

    def start(
        self,
        known: Iterable[Address],
        bootstrap: Iterable[Address],
        *,
        needs_producer_id: bool,
        names: Sequence[bytes] = (),
        ask_last: Iterable[Address] = (),
    ) -> None:
        """Begin a fetch, which tries the `known` brokers in random order, then the bootstrap servers, each once.

        Brokers in `_failed_brokers` or `ask_last` come after all others.  If the response for all topics lacks topics
        in `names`, the fetcher requests these topics by name.
        """
        self._requested_names = names
        shuffled = list(known)
        self._rng.shuffle(shuffled)
        to_try_last = {*self._failed_brokers, *ask_last}
        # The sort keeps the order, except that brokers in `to_try_last` (True) come after the others (False).
        self._brokers.set_brokers(sorted([*shuffled, *bootstrap], key=to_try_last.__contains__))
        self._failed_brokers.intersection_update(self._brokers.untried)  # removes brokers that left the cluster
        self._needs_producer_id = needs_producer_id
        self._old_broker_results = []
        self.last_error, self.needs_operator, self.foreign_cluster = "", False, ""
        self._try_next()

    def _try_next(self) -> None:
        self._metadata = None
        self._forbidden = frozenset()
        if not self._brokers.connect_next():
            self._finish(self._old_broker_results[0] if self._old_broker_results else None)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, ConnectionReady):
            self._capabilities = event.capabilities
            self._request_metadata(topics=None)
        elif isinstance(event, MetadataReceived):
            self._on_metadata(event.metadata)
        elif isinstance(event, ProducerIdReceived):
            self._on_producer_id(event)
        elif isinstance(event, Failed | Closed):
            self._record_failure(event)
            self._on_failure(event.cause if isinstance(event, Failed) else None)
            self._try_next_after_failure()

    def _record_failure(self, event: Failed | Closed) -> None:
        error = str(event.error) if isinstance(event, Failed) else "The connection was closed."
        cause = event.cause if isinstance(event, Failed) else None
        needs_operator = cause is not None and cause.needs_operator
        level = logging.ERROR if needs_operator else logging.WARNING
        about = (self._brokers.current, cause)  # the log shows one such line in 30 s for each `about`
        log.log(level, "No metadata: %s", error, extra={"about": about})
        if needs_operator or not self.needs_operator:
            self.last_error, self.needs_operator = error, needs_operator

    def _try_next_after_failure(self) -> None:
        assert self._brokers.current is not None
        self._failed_brokers.add(self._brokers.current)
        self._try_next()

    def _request_metadata(self, topics: Sequence[bytes] | None) -> None:
        """Request metadata of `topics`, or of all topics if `topics` is None."""
        connection = self._brokers.socket.connection
        self._brokers.socket.send(connection.request_metadata(topics, time.monotonic()).buffers)

    def _on_metadata(self, metadata: ClusterMetadata) -> None:
        if not is_same_cluster(self._find_required_cluster(), metadata.cluster_id):
            self._on_foreign_cluster(metadata.cluster_id)
            return
        assert self._brokers.current is not None
        self._failed_brokers.discard(self._brokers.current)
        if self._metadata is None:  # the response for all topics
            self._metadata = metadata
            missing = [name for name in self._requested_names if name not in metadata.topics]
            if missing and self._capabilities.can_name_topics:
                self._request_metadata(missing)
                return
        else:  # the response for the missing topics
            refused = (name for name, topic in metadata.topics.items() if topic.error == TOPIC_AUTHORIZATION_FAILED)
            self._forbidden = frozenset(refused)
        self._request_producer_id(self._metadata)

    def _on_foreign_cluster(self, cluster_id: str) -> None:
        broker = self._brokers.current
        assert broker is not None
        required_id = self._find_required_cluster()
        self.last_error = foreign_cluster_sentence(f"{broker.host}:{broker.port}", required_id, cluster_id)
        self.needs_operator, self.foreign_cluster = True, cluster_id
        log.error("No metadata: %s", self.last_error, extra={"about": (broker, cluster_id)})
        self._try_next_after_failure()

    def _request_producer_id(self, metadata: ClusterMetadata) -> None:
        """Request a producer id if needed, else end the fetch."""
        if self._needs_producer_id and self._capabilities.has_producer_ids:
            connection = self._brokers.socket.connection
            self._brokers.socket.send(connection.request_producer_id(time.monotonic()).buffers)
        elif self._needs_producer_id and self._capabilities == BEFORE_API_VERSIONS:
            self._on_old_broker(metadata)
        else:
            self._finish(self._result(metadata))

    def _on_old_broker(self, metadata: ClusterMetadata) -> None:
        """Ask another broker for a producer id, or end the fetch if enough brokers look old."""
        self._old_broker_results.append(self._result(metadata))
        if len(self._old_broker_results) >= _ENOUGH_OLD_BROKERS:
            self._brokers.untried = []
        elif len(self._old_broker_results) == 1:
            # If the fetch began with bootstrap servers only, the metadata lists further brokers to ask.
            self._brokers.append_unlisted(Address(broker.host, broker.port) for broker in metadata.brokers.values())
        self._try_next()

    def _result(
        self, metadata: ClusterMetadata, producer_id: int | None = None, producer_error: int = 0
    ) -> FetchResult:
        return FetchResult(metadata, producer_id, producer_error, self._forbidden)

    def _on_producer_id(self, event: ProducerIdReceived) -> None:
        assert self._metadata is not None
        response = event.response
        if response.is_retriable:
            log.warning(
                "A broker gave no producer id: %s (%d). The router asks the other brokers; if none gives one, the next "
                "metadata fetch asks all of them again.",
                error_row(response.error).name, response.error,
            )  # fmt: skip
            self._try_next_after_failure()
        elif response.error:
            log.error(
                "The brokers refuse the daemon a producer id, %s (%d): until they give one, messages may be "
                "delivered more than once. Allow the daemon's user IDEMPOTENT_WRITE on the cluster, or with Kafka 2.8 "
                "and later WRITE on a topic; each metadata fetch repeats the request.",
                error_row(response.error).name, response.error,
            )  # fmt: skip
            self._finish(self._result(self._metadata, producer_error=response.error))
        else:
            self._finish(self._result(self._metadata, response.producer_id))

    def _finish(self, result: FetchResult | None) -> None:
        self._brokers.close()
        self._on_done(result)
