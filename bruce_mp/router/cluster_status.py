"""Reports of metadata fetches and of paused scopes, for the status page and the log."""

from __future__ import annotations

import logging
from collections import Counter as Tally
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from bruce_mp.telemetry.broker_status import (
    ALL_PARTITIONS,
    MAX_LISTED_SCOPES,
    NO_LEADER,
    PausedScope,
    RecreatedTopic,
    RouterStatus,
)
from bruce_mp.telemetry.event_output import encode_events
from bruce_mp.telemetry.logs import NOTICE
from bruce_mp.telemetry.stalls import StallSampler, WaitingSegments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from bruce_mp.router.cluster import Address
    from bruce_mp.router.core import Router
    from bruce_mp.telemetry.message_copies import ByteSender
    from bruce_mp.telemetry.stalls import WaitingMessages

__all__ = ["ClusterStatus"]

log = logging.getLogger(__name__)
_RECREATED_LISTED_MS: Final = 3_600_000
"""How long reports list a topic that was deleted and created again."""


class ClusterStatus:
    """Collects the results of metadata fetches, and publishes them with the router's paused scopes.

    `clock_ms` is the steady clock; `name_of` returns the name of a topic number.
    """

    def __init__(self, sender: ByteSender, clock_ms: Callable[[], int], name_of: Callable[[int], bytes]) -> None:
        self._sender = sender
        self._clock_ms = clock_ms
        self._name_of = name_of
        self._report = RouterStatus(brokers=(), failing_since_ms=None, error="", paused=(), paused_count=0)
        self._stalls = StallSampler()
        self._leaderless: dict[tuple[int, int], int] = {}
        """By (topic number, partition): the time at which the wait of its messages for a leader began."""

    def _update(self, **fields: Any) -> None:
        self._report = replace(self._report, **fields)

    def on_fetched(self, brokers: Mapping[int, Address], forbidden: Iterable[bytes] = ()) -> None:
        """Record a successful fetch.  `brokers` is by broker id; messages for the topics in `forbidden` wait."""
        listed_forbidden = tuple(sorted(forbidden)[:MAX_LISTED_SCOPES])
        for name in listed_forbidden:
            log.error(
                "Topic %s: the brokers hide it from the daemon's user, TOPIC_AUTHORIZATION_FAILED (29), or lack it. "
                "Its messages wait. Allow the daemon's user to write it (ACL WRITE), or correct the sender.",
                name.decode("utf-8", "replace"), extra={"about": name},  # limits repetitions: see telemetry/logs.py
            )  # fmt: skip
        if self._report.failing_since_ms is not None:
            seconds = (self._clock_ms() - self._report.failing_since_ms) / 1000
            log.log(NOTICE, "A broker answers again, after %.1f s: messages flow again.", seconds)
        listed_brokers = tuple((node, address.host, address.port) for node, address in sorted(brokers.items()))
        self._update(brokers=listed_brokers, forbidden=listed_forbidden)
        self._update(failing_since_ms=None, error="", needs_operator=False, foreign_cluster="")

    def on_recreated(self, topics: Iterable[bytes]) -> None:
        recreated = list(self._report.recreated)
        for name in topics:
            log.warning(
                "Topic %s was deleted and created again. The messages that were delivered before are gone from Kafka; "
                "the held ones go to the new topic.",
                name.decode("utf-8", "backslashreplace"), extra={"about": name},
            )  # fmt: skip
            recreated.append(RecreatedTopic(name, self._clock_ms()))
        self._update(recreated=tuple(recreated[-MAX_LISTED_SCOPES:]))

    def on_producer_refused(self, error: int) -> None:
        """Record the error code with which the brokers refused a producer id, or 0 if they did not refuse."""
        self._update(producer_error=error)

    def on_fetch_failed(self, error: str, *, needs_operator: bool, foreign_cluster: str = "") -> None:
        """Record a failed fetch.

        `needs_operator` is True if the error lasts until an operator changes the configuration.  `foreign_cluster` is
        the id of the other cluster to which the brokers belong, or empty.
        """
        self._update(error=error, needs_operator=needs_operator, foreign_cluster=foreign_cluster)
        if self._report.failing_since_ms is None:
            self._update(failing_since_ms=self._clock_ms())

    def publish(self, router: Router, asking: str, previous_failure: str) -> None:
        """Send a report to the status process; a lost report does no harm, because each report has the whole state.

        `asking` and `previous_failure` are `MetadataFetcher.progress`.
        """
        scopes = [*self._leaderless_partitions(router), *self._paused_scopes(router)]
        now_ms = self._clock_ms()
        recreated = (topic for topic in self._report.recreated if now_ms - topic.seen_ms < _RECREATED_LISTED_MS)
        self._update(
            paused=tuple(scopes[:MAX_LISTED_SCOPES]),
            paused_count=len(scopes),
            asking=asking,
            previous_failure=previous_failure,
            stalls=self._stalls.sample(self._waiting_messages(router), now_ms),
            recreated=tuple(recreated),
            paused_by_topic=Tally(scope.topic for scope in scopes if scope.topic),  # a dispatcher's scope has no topic
        )
        self._sender.send_bytes(encode_events([self._report]))

    def _waiting_messages(self, router: Router) -> Iterator[tuple[bytes, int, int | None, WaitingMessages]]:
        """Yield (topic name, partition, leader or None, messages) for all messages that wait in the router."""
        for (topic, partition), leader, route in router.waiting_routes():
            yield self._name_of(topic), partition, leader, route
        for name, segments in router.waiting_without_partition():
            yield name, ALL_PARTITIONS, None, WaitingSegments(segments)

    def _leaderless_partitions(self, router: Router) -> Iterator[PausedScope]:
        """Update `_leaderless`, and yield a scope in state NO_LEADER for each of its partitions."""
        now_ms = self._clock_ms()
        self._leaderless = {key: self._leaderless.get(key, now_ms) for key in router.leaderless_partitions()}
        for (topic, partition), since_ms in self._leaderless.items():
            yield PausedScope(
                slot=None, topic=self._name_of(topic), partition=partition, state=NO_LEADER, since_ms=since_ms
            )

    def _paused_scopes(self, router: Router) -> Iterator[PausedScope]:
        for slot, key, scope in router.paused_scopes():
            name, partition = (b"", ALL_PARTITIONS) if key is None else (self._name_of(key[0]), key[1])
            yield PausedScope(slot, name, partition, scope.state.value, scope.pause_start_ms)
