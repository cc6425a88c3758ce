"""Topic creation: the request goes to the controller first, then to the others, each once, until one responds.

Brokers since 0.10.1 have CreateTopics; before 2.4 it needs the numbers of partitions and replicas.  Without configured
numbers, and for brokers before 0.10.1, the request is Metadata.  That creates the topics if the broker's
`auto.create.topics.enable` is set.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.protocol.kafka.connection_events import Closed, ConnectionReady, Failed, MetadataReceived, TopicsCreated
from bruce_mp.router.broker_rotation import BrokerRotation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from bruce_mp.config.sections import Delivery
    from bruce_mp.protocol.kafka.api_versions import BrokerCapabilities
    from bruce_mp.protocol.kafka.connection_events import Event
    from bruce_mp.router.broker_rotation import Connect
    from bruce_mp.router.cluster import Address

__all__ = ["TopicCreator", "TopicSize"]

_LOG = logging.getLogger(__name__)
TIME_TO_MAKE_MS: Final = 5_000
BROKERS_CHOICE: Final = -1
FIRST_WITH_BROKERS_CHOICE: Final = 4
_NOT_CONTROLLER: Final = 41


class TopicSize(NamedTuple):
    """Partitions and replicas of a new topic; None stands for the broker's default."""

    partitions: int | None = None
    replication: int | None = None

    @classmethod
    def of(cls, delivery: Delivery) -> TopicSize:
        """Return the configured sizes."""
        return cls(delivery.topic_autocreate_partitions, delivery.topic_autocreate_replication)

    def may_be_asked_for(self, capabilities: BrokerCapabilities) -> bool:
        """Return True if the broker's CreateTopics can express these sizes."""
        version = capabilities.create_topics_version
        return version is not None and (version >= FIRST_WITH_BROKERS_CHOICE or None not in self)


class TopicCreator:
    """One request at a time.  `on_done` gets each topic's error code, and no topics if no broker responded."""

    def __init__(
        self,
        connect: Connect,
        *,
        sizes: TopicSize,
        on_done: Callable[[Mapping[bytes, int]], None],
    ) -> None:
        self._brokers = BrokerRotation(connect, self._on_event)
        self._sizes = sizes
        self._on_done = on_done
        self._names: Sequence[bytes] = ()
        self._answers: Mapping[bytes, int] = {}

    @property
    def is_busy(self) -> bool:
        """True while a request is under way."""
        return self._brokers.is_busy

    def apply_config(self, connect: Connect, sizes: TopicSize) -> None:
        """Replace the connection factory and the sizes; a request under way keeps its own connection."""
        self._brokers.connect = connect
        self._sizes = sizes

    def start(self, brokers: Iterable[Address], names: Sequence[bytes]) -> None:
        """Start a request; `brokers` are tried in this order."""
        self._brokers.start(brokers)
        self._names = names
        self._answers = {}
        self._try_next()

    def _try_next(self) -> None:
        if not self._brokers.ask_next():
            self._finish(self._answers)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, ConnectionReady):
            self._ask(event.capabilities)
        elif isinstance(event, TopicsCreated):
            self._on_answers(event.errors)
        elif isinstance(event, MetadataReceived):
            topics = event.metadata.topics
            self._on_answers({name: topics[name].error for name in self._names if name in topics})
        elif isinstance(event, Failed | Closed):
            why = event.error if isinstance(event, Failed) else "The connection was closed."
            _LOG.warning("Topics were not created: %s  The router tries the next broker.", why)
            self._try_next()

    def _ask(self, capabilities: BrokerCapabilities) -> None:
        connection, now = self._brokers.socket.connection, time.monotonic()
        if self._sizes.may_be_asked_for(capabilities):
            partitions, replication = (BROKERS_CHOICE if size is None else size for size in self._sizes)
            numbers = {"partitions": partitions, "replication": replication, "timeout_ms": TIME_TO_MAKE_MS}
            sent = connection.create_topics(self._names, now, **numbers)
        else:
            sent = connection.request_metadata(self._names, now, allow_auto_topic_creation=True)
        self._brokers.socket.send(sent.buffers)

    def _on_answers(self, errors: Mapping[bytes, int]) -> None:
        if _NOT_CONTROLLER in errors.values() and self._brokers.left:
            self._answers = errors
            self._try_next()
        else:
            self._finish(errors)

    def _finish(self, answers: Mapping[bytes, int]) -> None:
        self._brokers.close()
        self._on_done(answers)
