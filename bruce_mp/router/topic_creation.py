"""Topic creation: the router asks one broker after another, until the answer is not NOT_CONTROLLER.

Brokers before Kafka 0.10.1 lack the request CreateTopics.  Brokers before 2.4 require the numbers of partitions and
replicas in the request, but the configuration may not have these.  In both cases the router sends a Metadata request
instead: a broker with `auto.create.topics.enable` creates the topics that such a request names.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from bruce_mp.protocol.kafka.connection_events import Closed, ConnectionReady, Failed, MetadataReceived, TopicsCreated
from bruce_mp.router.broker_sequence import BrokerSequence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from bruce_mp.config.sections import Delivery
    from bruce_mp.protocol.kafka.api_versions import BrokerCapabilities
    from bruce_mp.protocol.kafka.connection_events import Event
    from bruce_mp.router.broker_sequence import SocketFactory
    from bruce_mp.router.cluster import Address

__all__ = ["TopicCreator"]

log = logging.getLogger(__name__)
CREATE_TIMEOUT_MS: Final = 5_000
BROKER_DEFAULT: Final = -1
"""Kafka's value for the broker's default number of partitions or replicas."""
FIRST_WITH_BROKER_DEFAULT: Final = 4
"""The first version of CreateTopics that accepts `BROKER_DEFAULT`."""
_NOT_CONTROLLER: Final = 41


class TopicCreator:
    """Creates topics, one request at a time.

    `on_done` gets the error code of each topic, by name; the mapping is empty if no broker responded.
    """

    def __init__(
        self, create_socket: SocketFactory, delivery: Delivery, on_done: Callable[[Mapping[bytes, int]], None]
    ) -> None:
        self._brokers = BrokerSequence(create_socket, self._on_event)
        self._delivery = delivery
        self._on_done = on_done
        self._names: Sequence[bytes] = ()
        self._errors: Mapping[bytes, int] = {}
        """The last response with NOT_CONTROLLER; it is the result if no further broker responds."""

    @property
    def is_busy(self) -> bool:
        return self._brokers.has_connection

    def apply_config(self, create_socket: SocketFactory, delivery: Delivery) -> None:
        """Replace the socket factory and the settings; the current request keeps its connection."""
        self._brokers.create_socket = create_socket
        self._delivery = delivery

    def start(self, brokers: Iterable[Address], names: Sequence[bytes]) -> None:
        """Request the creation of topics from the `brokers`, in this order, until a broker is the controller."""
        self._brokers.set_brokers(brokers)
        self._names = names
        self._errors = {}
        self._try_next()

    def _try_next(self) -> None:
        if not self._brokers.connect_next():
            self._finish(self._errors)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, ConnectionReady):
            self._request_creation(event.capabilities)
        elif isinstance(event, TopicsCreated):
            self._on_response(event.errors)
        elif isinstance(event, MetadataReceived):
            topics = event.metadata.topics
            self._on_response({name: topics[name].error for name in self._names if name in topics})
        elif isinstance(event, Failed | Closed):
            error = event.error if isinstance(event, Failed) else "The connection was closed."
            log.warning("A broker did not create topics: %s  The router tries the next broker.", error)
            self._try_next()

    def _request_creation(self, capabilities: BrokerCapabilities) -> None:
        connection, now = self._brokers.socket.connection, time.monotonic()
        configured = self._delivery.topic_autocreate_partitions, self._delivery.topic_autocreate_replication
        version = capabilities.create_topics_version
        if version is not None and (version >= FIRST_WITH_BROKER_DEFAULT or None not in configured):
            partitions, replication = (BROKER_DEFAULT if number is None else number for number in configured)
            request = connection.request_topic_creation(
                self._names, now, partitions=partitions, replication=replication, timeout_ms=CREATE_TIMEOUT_MS
            )
        else:
            request = connection.request_metadata(self._names, now, allow_auto_topic_creation=True)
        self._brokers.socket.send(request.buffers)

    def _on_response(self, errors: Mapping[bytes, int]) -> None:
        if _NOT_CONTROLLER in errors.values() and self._brokers.untried:
            self._errors = errors
            self._try_next()
        else:
            self._finish(errors)

    def _finish(self, errors: Mapping[bytes, int]) -> None:
        self._brokers.close()
        self._on_done(errors)
