"""Metadata fetches: an attempt tries the known brokers and the bootstrap list until a broker responds.

While batches have no sequence numbers, a fetch also requests a producer id: the brokers may have been upgraded, or a
slow broker may have been mistaken for an old one.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.protocol.kafka.connection_events import (
    Closed,
    ConnectionReady,
    Failed,
    MetadataReceived,
    ProducerIdReceived,
)
from bruce_mp.protocol.kafka.error_actions import action_for
from bruce_mp.router.broker_rotation import BrokerRotation

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Sequence

    from bruce_mp.protocol.kafka.connection_events import Event, FailureCause
    from bruce_mp.protocol.kafka.kafka_types import ClusterMetadata
    from bruce_mp.router.broker_rotation import Connect
    from bruce_mp.router.cluster import Address

__all__ = ["FetchAttempt", "FetchResult", "MetadataFetcher"]

_LOG = logging.getLogger(__name__)
FIRST_THAT_MAKES_NONE: Final = 4
"""Metadata request version; older ones create a named topic if `auto.create.topics.enable` is set."""
_TOPIC_AUTHORIZATION_FAILED: Final = 29
_UNKNOWN_SERVER_ERROR: Final = -1  # temporary: from brokers that lost their coordination service


class FetchResult(NamedTuple):
    """The result of a fetch.

    `producer_id` is None if none was requested or given; `producer_error` is the error code of a refusal.
    `forbidden` are topics that were requested by name and that the daemon's user may not see.
    """

    metadata: ClusterMetadata
    producer_id: int | None
    producer_error: int = 0
    forbidden: frozenset[bytes] = frozenset()


class FetchAttempt(NamedTuple):
    """The broker in use and the error of the previous one; both empty without a fetch under way."""

    asking: str = ""
    asked_in_vain: str = ""


class MetadataFetcher:
    """One metadata fetch at a time.  `on_done` gets the result, or None if no broker responded.

    `on_failure` is called for each broker that failed, with the cause or None for a closed connection.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        rng: random.Random,
        on_done: Callable[[FetchResult | None], None],
        on_failure: Callable[[FailureCause | None], None] = lambda _: None,
    ) -> None:
        self._brokers = BrokerRotation(connect, self._on_event)
        self._rng = rng
        self._on_done = on_done
        self.last_error = ""
        """The error of the last broker that failed, or of one whose error needs an operator."""
        self.needs_operator = False
        """True if that error lasts until an operator changes the set-up."""
        self._on_failure = on_failure
        self._failed: set[Address] = set()
        self._wants_producer = False
        self._knows_producers = False
        self._metadata: ClusterMetadata | None = None
        self._missed: Sequence[bytes] = ()
        self._forbidden: frozenset[bytes] = frozenset()
        self._may_name = False

    @property
    def is_busy(self) -> bool:
        """True while a fetch is under way."""
        return self._brokers.is_busy

    @property
    def attempt(self) -> FetchAttempt:
        """The state of the fetch under way."""
        asked = self._brokers.asked
        return FetchAttempt(f"{asked.host}:{asked.port}", self.last_error) if self.is_busy and asked else FetchAttempt()

    def apply_config(self, connect: Connect) -> None:
        """Replace the connection factory, and cancel the fetch under way without a callback."""
        self._brokers.close()
        self._brokers.connect = connect
        self._failed.clear()

    def start(
        self,
        known: Iterable[Address],
        bootstrap: Iterable[Address],
        *,
        wants_producer: bool,
        missed: Sequence[bytes] = (),
    ) -> None:
        """Try known brokers in random order, then the bootstrap list, then brokers that failed before; each once.

        Topics of `missed` that are not in the response are requested by name.
        """
        self._missed = missed
        first = list(known)
        self._rng.shuffle(first)
        self._brokers.start(sorted([*first, *bootstrap], key=lambda address: address in self._failed))
        self._failed.intersection_update(self._brokers.left)
        self._wants_producer = wants_producer
        self.last_error, self.needs_operator = "", False
        self._try_next()

    def _try_next(self) -> None:
        self._metadata = None
        self._forbidden = frozenset()
        if not self._brokers.ask_next():
            self._finish(None)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, ConnectionReady):
            self._knows_producers = event.capabilities.idempotence
            self._may_name = event.capabilities.metadata_version >= FIRST_THAT_MAKES_NONE
            self._ask_for_metadata(None)
        elif isinstance(event, MetadataReceived):
            self._on_metadata(event.metadata)
        elif isinstance(event, ProducerIdReceived):
            self._on_producer(event)
        elif isinstance(event, Failed | Closed):
            self._note_failure(event)
            self._on_failure(event.cause if isinstance(event, Failed) else None)
            self._next_after_failure()

    def _note_failure(self, event: Failed | Closed) -> None:
        why = str(event.error) if isinstance(event, Failed) else "The connection was closed."
        cause = event.cause if isinstance(event, Failed) else None
        needs_operator = cause is not None and cause.needs_operator
        level = logging.ERROR if needs_operator else logging.WARNING
        _LOG.log(level, "No metadata: %s", why, extra={"about": (self._brokers.asked, cause)})
        if needs_operator or not self.needs_operator:
            self.last_error, self.needs_operator = why, needs_operator

    def _next_after_failure(self) -> None:
        assert self._brokers.asked is not None
        self._failed.add(self._brokers.asked)
        self._try_next()

    def _ask_for_metadata(self, topics: Sequence[bytes] | None) -> None:
        connection = self._brokers.socket.connection
        self._brokers.socket.send(connection.request_metadata(topics, time.monotonic()).buffers)

    def _on_metadata(self, metadata: ClusterMetadata) -> None:
        if self._metadata is None:
            self._metadata = metadata
            hidden = [name for name in self._missed if name not in metadata.topics] if self._may_name else []
            if hidden:
                self._ask_for_metadata(hidden)
                return
        else:
            refused = (name for name, topic in metadata.topics.items() if topic.error == _TOPIC_AUTHORIZATION_FAILED)
            self._forbidden = frozenset(refused)
        self._ask_for_producer(self._metadata)

    def _ask_for_producer(self, metadata: ClusterMetadata) -> None:
        if self._wants_producer and self._knows_producers:
            connection = self._brokers.socket.connection
            self._brokers.socket.send(connection.init_producer_id(time.monotonic()).buffers)
        else:
            self._finish(self._result(metadata, None))

    def _result(self, metadata: ClusterMetadata, producer_id: int | None, producer_error: int = 0) -> FetchResult:
        return FetchResult(metadata, producer_id, producer_error, self._forbidden)

    def _on_producer(self, event: ProducerIdReceived) -> None:
        assert self._metadata is not None
        answer = event.response
        if answer.is_retriable or answer.error == _UNKNOWN_SERVER_ERROR:
            _LOG.warning(
                "A broker gave no producer id, %s (%d); the router tries the others and repeats.",
                action_for(answer.error).name, answer.error,
            )  # fmt: skip
            self._next_after_failure()
        elif answer.error:
            _LOG.error(
                "The brokers refuse us a producer id, %s (%d): messages are delivered at least once. Allow our user "
                "IDEMPOTENT_WRITE on the cluster, or with Kafka 2.8 and later WRITE on a topic; we ask again with each "
                "refresh of the metadata.", action_for(answer.error).name, answer.error,
            )  # fmt: skip
            self._finish(self._result(self._metadata, None, answer.error))
        else:
            self._finish(self._result(self._metadata, answer.producer_id))

    def _finish(self, result: FetchResult | None) -> None:
        self._brokers.close()
        if result is not None and self._brokers.asked is not None:
            self._failed.discard(self._brokers.asked)
        self._on_done(result)
