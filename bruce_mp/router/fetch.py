"""Asking for metadata: one attempt goes through the known brokers and the bootstrap list until one answers.

As long as batches are not numbered it also asks for a producer id: the brokers may have been upgraded, or one that was
slow may have been taken for an old one.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.pipes.broker_socket import BrokerSocket
from bruce_mp.protocol.connection_events import Closed, Failed, MetadataReceived, ProducerIdReceived, Ready

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable

    from bruce_mp.pipes.loop import Loop
    from bruce_mp.pipes.openings import Openings
    from bruce_mp.pipes.resolver import Resolver
    from bruce_mp.protocol.connection_events import Cause, Event
    from bruce_mp.protocol.kafka_types import ClusterMetadata
    from bruce_mp.router.cluster import Address

__all__ = ["FetchResult", "Fetcher"]

_LOG = logging.getLogger(__name__)
PATIENCE_S: Final = 10.0
"""A broker that is silent for so long is not worth waiting for: there are others to ask, and partitions that wait."""
_UNKNOWN_SERVER_ERROR: Final = -1  # from brokers that have lost their coordination service: it goes away


class FetchResult(NamedTuple):
    """What a broker answered.

    `producer_id` is None if none was asked for or given.
    """

    metadata: ClusterMetadata
    producer_id: int | None


class Fetcher:
    """One fetch at a time.  `on_done` gets the result, or None when no broker answered.

    `on_failure` hears of each broker that did not; of the cause, too, unless it just closed the connection.
    """

    def __init__(
        self,
        loop: Loop,
        resolver: Resolver,
        *,
        client_id: str,
        timeout_s: float,
        openings: Openings,
        rng: random.Random,
        on_done: Callable[[FetchResult | None], None],
        on_failure: Callable[[Cause | None], None] = lambda _: None,
    ) -> None:
        self._loop = loop
        self._resolver = resolver
        self._client_id = client_id
        self._timeout_s = min(timeout_s, PATIENCE_S)
        self._openings = openings
        self._rng = rng
        self._on_done = on_done
        self.last_error = ""
        """Why the last broker that was asked in vain gave no metadata."""
        self._on_failure = on_failure
        self._left: list[Address] = []
        self._asked: Address | None = None
        self._failed: set[Address] = set()
        self._socket: BrokerSocket | None = None
        self._wants_producer = False
        self._knows_producers = False
        self._is_refused = False
        """We were refused a producer id: that does not change while we live."""
        self._metadata: ClusterMetadata | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a fetch is under way."""
        return self._socket is not None

    def start(self, known: Iterable[Address], bootstrap: Iterable[Address], *, wants_producer: bool) -> None:
        """Begin: known brokers in random order, the bootstrap list, and last those that failed last time; each once."""
        first = list(known)
        self._rng.shuffle(first)
        self._left = sorted(dict.fromkeys([*first, *bootstrap]), key=lambda address: address in self._failed)
        self._failed.intersection_update(self._left)
        self._wants_producer = wants_producer and not self._is_refused
        self._try_next()

    def _try_next(self) -> None:
        self._metadata = None
        if not self._left:
            self._finish(None)
            return
        address = self._asked = self._left.pop(0)
        self._socket = BrokerSocket(
            self._loop,
            self._resolver,
            host=address.host,
            port=address.port,
            client_id=self._client_id,
            timeout_s=self._timeout_s,
            on_event=self._on_event,
            openings=self._openings,
        )
        self._socket.open()

    def _on_event(self, event: Event) -> None:
        assert self._socket is not None
        if isinstance(event, Ready):
            self._knows_producers = event.abilities.idempotence
            self._socket.send(self._socket.connection.request_metadata(None, time.monotonic()).buffers)
        elif isinstance(event, MetadataReceived):
            self._on_metadata(event.metadata)
        elif isinstance(event, ProducerIdReceived):
            self._on_producer(event)
        elif isinstance(event, Failed | Closed):
            self.last_error = str(event.error) if isinstance(event, Failed) else "The connection was closed."
            _LOG.warning("No metadata: %s", self.last_error)
            self._on_failure(event.cause if isinstance(event, Failed) else None)
            self._next_after_failure()

    def _next_after_failure(self) -> None:
        assert self._asked is not None
        self._failed.add(self._asked)
        self._try_next()

    def _on_metadata(self, metadata: ClusterMetadata) -> None:
        assert self._socket is not None
        self._metadata = metadata
        if self._wants_producer and self._knows_producers:
            self._socket.send(self._socket.connection.init_producer_id(time.monotonic()).buffers)
        else:
            self._finish(FetchResult(metadata, None))

    def _on_producer(self, event: ProducerIdReceived) -> None:
        assert self._metadata is not None
        answer = event.response
        if answer.ask_again or answer.error == _UNKNOWN_SERVER_ERROR:
            _LOG.warning("A broker gave no producer id (error %d); the next one is asked.", answer.error)
            self._drop_socket()
            self._next_after_failure()
        elif answer.error:
            _LOG.error(
                "The brokers refuse us a producer id (error %d): we may not write idempotently. Messages are delivered "
                "at least once until the daemon is restarted.", answer.error,
            )  # fmt: skip
            self._is_refused = True
            self._finish(FetchResult(self._metadata, None))
        else:
            self._finish(FetchResult(self._metadata, answer.producer_id))

    def _drop_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _finish(self, result: FetchResult | None) -> None:
        self._drop_socket()
        if result is not None and self._asked is not None:
            self._failed.discard(self._asked)
        self._on_done(result)
