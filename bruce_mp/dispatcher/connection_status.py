"""Reports of a dispatcher's connection and partition errors, for the status page and the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from bruce_mp.telemetry.broker_status import (
    CONNECTED,
    CONNECTING,
    FAILED,
    IDLE,
    MAX_LISTED_SCOPES,
    BrokerStatus,
    PartitionError,
)
from bruce_mp.telemetry.logs import NOTICE
from bruce_mp.telemetry.stalls import StallSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bruce_mp.ipc.control_messages import Broker
    from bruce_mp.telemetry.event_output import EventOutput
    from bruce_mp.telemetry.stalls import WaitingMessages

__all__ = ["ConnectionStatus", "PartitionErrors"]

log = logging.getLogger(__name__)


class ConnectionStatus:
    """The state of a dispatcher's connection to its broker; `now_ms` is the steady clock.

    `slot` is the dispatcher slot.  `delivered` is the number of messages that all dispatchers in the slot have
    delivered until now, and `output` has other sums that are sent together with each report.
    """

    def __init__(
        self, slot: int, broker: Broker, output: EventOutput, now_ms: Callable[[], int], delivered: int = 0
    ) -> None:
        self._output = output
        self._now_ms = now_ms
        self._failing_since_ms = 0
        """The time of the first failure since the last ready connection; 0 if there was no failure."""
        self._delivered = delivered
        self._stalls = StallSampler()
        self._report = BrokerStatus(
            slot, broker.node, broker.host, broker.port, IDLE, now_ms(),
            requests_in_flight=0, last_error="", last_error_ms=0, exactly_once=None,
        )  # fmt: skip

    def _set_state(self, connection: str, **fields: Any) -> None:
        self._report = replace(self._report, connection=connection, since_ms=self._now_ms(), **fields)

    def on_connecting(self) -> None:
        self._set_state(CONNECTING)

    def on_connected(self, *, exactly_once: bool, certificate_ends_s: float | None = None) -> None:
        """Record a ready connection; `exactly_once` is True if the broker detects repeated batches.

        `certificate_ends_s` is the time at which the broker's certificate expires, in seconds since the epoch; None
        without TLS.
        """
        self._set_state(
            CONNECTED, exactly_once=exactly_once, needs_operator=False, certificate_ends_s=certificate_ends_s
        )
        if self._failing_since_ms:
            report = self._report
            seconds = (report.since_ms - self._failing_since_ms) / 1000
            log.log(NOTICE, "Broker %d at %s:%d is back after %.1f s.", report.node, report.host, report.port, seconds)
            self._failing_since_ms = 0

    def on_closed(self) -> None:
        """Record that the broker or the dispatcher closed the connection without a failure."""
        self._set_state(IDLE)

    def on_failed(self, error: str, *, needs_operator: bool = False) -> None:
        """Record a failure; `needs_operator` is True if only a change of the configuration can end the failure."""
        self._set_state(FAILED, needs_operator=needs_operator, last_error=error, last_error_ms=self._now_ms())
        self._failing_since_ms = self._failing_since_ms or self._report.since_ms

    def on_new_settings(self) -> None:
        """Remove a failure from the report: the next connection has other settings."""
        if self._report.connection == FAILED:
            self._set_state(IDLE, needs_operator=False, last_error="", last_error_ms=0)

    def publish(
        self,
        requests_in_flight: int,
        partition_errors: tuple[PartitionError, ...],
        delivered: int,
        waiting: Iterable[tuple[bytes, int, WaitingMessages]],
    ) -> None:
        """Send a report and the sums of the constructor's `output` to the status process.

        A lost report does no harm, because each report has the whole state.  `delivered` is the number of messages that
        all dispatchers in the slot have delivered until now.  `waiting` has (topic, partition, messages) of each queue.
        """
        now_ms, node = self._now_ms(), self._report.node
        self._report = replace(
            self._report,
            requests_in_flight=requests_in_flight,
            partition_errors=partition_errors,
            acked_ms=self._report.acked_ms if delivered == self._delivered else now_ms,
            stalls=self._stalls.sample(
                ((topic, partition, node, queue) for topic, partition, queue in waiting), now_ms
            ),
        )
        self._delivered = delivered
        self._output.flush(self._report)


class PartitionErrors:
    """The error of each partition for which the last response was an error; `now_ms` is a steady clock.

    Further partitions are left out if there are `MAX_LISTED_SCOPES` (a partition is a scope).
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._errors: dict[tuple[bytes, int], PartitionError] = {}
        self._released: set[tuple[bytes, int]] = set()
        """Partitions that `drop_released` removes."""

    def __bool__(self) -> bool:
        return bool(self._errors)

    def record(self, topic: bytes, partition: int, error: str) -> None:
        """Record a partition's error; if it equals the previous error, keep the time of the previous error."""
        self._released.discard((topic, partition))
        known = self._errors.get((topic, partition))
        if known is not None and known.error == error:
            return
        if known is None and len(self._errors) >= MAX_LISTED_SCOPES:
            return
        self._errors[topic, partition] = PartitionError(topic, partition, error, self._now_ms())

    def clear(self, topic: bytes, partition: int) -> None:
        self._errors.pop((topic, partition), None)

    def release(self, topic: bytes, partition: int) -> None:
        """Mark a partition that goes back to the router; it stays until `drop_released`, for one more report."""
        if (topic, partition) in self._errors:
            self._released.add((topic, partition))

    def drop_released(self) -> None:
        """Remove the released partitions; call this after a report with their errors was sent."""
        for key in self._released:
            self._errors.pop(key, None)
        self._released.clear()

    def as_tuple(self) -> tuple[PartitionError, ...]:
        return tuple(self._errors.values())
