"""The router's process: calls `core.Router`, fetches metadata, and tells the supervisor which dispatchers to run."""

from __future__ import annotations

import logging
import random
from functools import cache
from typing import TYPE_CHECKING, Final

from bruce_mp.discards.settlement import ProcessReporter
from bruce_mp.ipc.control_messages import AcceptCluster, Broker, DebugTopics, Dispatchers, PeerDied, RefreshMetadata
from bruce_mp.ipc.frames import ParcelKind
from bruce_mp.ipc.links import COPIES, REPORTS, ROUTER_FROM_DISPATCHERS, ROUTER_FROM_INPUTS, dispatcher_link
from bruce_mp.kernels import ProcessRow
from bruce_mp.network.connection_security import connection_settings, create_security
from bruce_mp.network.resolver import Resolver
from bruce_mp.pipeline.msg_debug import WireTap
from bruce_mp.pipeline.process_shell import ProcessShell
from bruce_mp.protocol.kafka.connection_events import FailureCause
from bruce_mp.protocol.kafka.error_actions import error_row
from bruce_mp.protocol.kafka.kafka_types import ACKS_ALL
from bruce_mp.protocol.kafka.version_negotiation import NegotiationCache
from bruce_mp.router.backoff import RouterBackoff
from bruce_mp.router.broker_sequence import socket_factory
from bruce_mp.router.cluster import Address, view_of
from bruce_mp.router.cluster_status import ClusterStatus
from bruce_mp.router.core import Router
from bruce_mp.router.metadata_fetch import MetadataFetcher
from bruce_mp.router.metadata_refresh import periodic_delay_ms, spread_delay_ms
from bruce_mp.router.topic_creation import TopicCreator
from bruce_mp.router.unknown_topics import SUCCESS
from bruce_mp.slab import layout as lay
from bruce_mp.slab import producer_id
from bruce_mp.slab.tables import TopicTable
from bruce_mp.telemetry.broker_status import PUBLISH_EVERY_S
from bruce_mp.telemetry.clock import steady_ms, wall_ms
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.logs import NOTICE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bruce_mp.config.model import Config
    from bruce_mp.ipc.control_messages import Control, ControlMessage, Drain
    from bruce_mp.ipc.frames import Parcel
    from bruce_mp.ipc.loop import Timer
    from bruce_mp.ipc.start import Start
    from bruce_mp.protocol.kafka.kafka_types import TopicMetadata
    from bruce_mp.router.broker_sequence import SocketFactory
    from bruce_mp.router.metadata_fetch import FetchResult
    from bruce_mp.slab.file import Slab

__all__ = ["main"]

log = logging.getLogger(__name__)
_BROKER_FAILURE_COUNTERS: Final = {
    FailureCause.BAD_DATA: Counter.BadMetadataResponse,
    FailureCause.TIMED_OUT: Counter.MetadataResponseReadTimeout,
    None: Counter.MetadataResponseReadLostTcpConnection,
}
"""The counters of brokers that fail in a fetch, by cause; None is for a connection that the broker closed."""
_HAND_BACK_POLL_MS: Final = 100
"""The delay of the next metadata fetch in a change of the cluster, while dispatchers still hold messages."""


def main(start: Start, slab: Slab, control: Control) -> None:
    _RouterProcess(start, slab, control).run()


class _RouterProcess(ProcessShell):
    def __init__(self, start: Start, slab: Slab, control: Control) -> None:
        super().__init__(start, control, ProcessRow.recover(slab, start.row))
        self._slab = slab
        self.serve_frames(ROUTER_FROM_INPUTS, self._on_input_frame)
        self.serve_frames(ROUTER_FROM_DISPATCHERS, lambda parcels: self._core.on_parcels(parcels, steady_ms()))
        self._sender_to = cache(lambda slot: self._links.sender(dispatcher_link(slot)))
        """Returns the link to the dispatcher in a slot; the links are created when they are first needed."""
        self._reporter = self.add_output(ProcessReporter(start.config, self._links, self._row))
        self._tap = self.add_output(WireTap(slab, self._links.sender(COPIES), self._row.add))
        rng = random.Random()  # noqa: S311 - spreads load and back-offs; no secret depends on it
        self._core = Router(
            slab,
            self._row,
            start.config,
            incarnation=self._incarnation,
            reporter=self._reporter,
            rng=rng,
            tap=self._tap,
        )
        self._fetch_backoff = RouterBackoff(*start.config.delivery.backoff, rng)
        self._rng = rng
        self._resolver = Resolver(self._loop)
        create_socket = self._build_socket_factory(start.config)
        self._fetcher = MetadataFetcher(
            create_socket,
            rng=rng,
            on_done=self._on_fetched,
            on_failure=self._on_broker_failure,
            find_required_cluster=lambda: self._accepted_cluster or producer_id.cluster_of(slab),
        )
        self._accepted_cluster = ""
        """The id of the cluster to which the daemon must change, as an operator has accepted; empty if no change."""
        self._cluster_of_fetch = ""
        """The value of `_accepted_cluster` when the current fetch started."""
        self._topic_creator = TopicCreator(create_socket, start.config.delivery, self._on_creation_answered)
        self._create_socket = create_socket
        self._brokers: list[Address] = []
        """The brokers of the last metadata, the controller first."""
        self._fetch_started_ms = 0
        self._announced_to_run: Mapping[int, tuple[int, Address]] | None = None
        """The last result of `dispatchers_to_run`, which is the same object until something changes."""
        self._announced_brokers: dict[int, Broker] | None = None
        """The broker of each dispatcher slot, as last sent to the supervisor; None if none were sent yet."""
        self._refresh_timer: Timer | None = None
        self._next_is_refresh = self._current_is_refresh = False
        """True if the next fetch, or the current fetch, is also a refresh (see `metadata_refresh.py`)."""
        self._cluster_status = ClusterStatus(self._links.sender(REPORTS), steady_ms, TopicTable(slab).name_of)

    # --- hooks of `ProcessShell` -------------------------------------------------------------------------------------

    def recover(self) -> None:
        self._core.recover(steady_ms())

    def start(self) -> None:
        self.repeat(PUBLISH_EVERY_S, lambda: self._cluster_status.publish(self._core, *self._fetcher.progress))
        if not self._had_metadata:  # the daemon has just started, perhaps on many hosts at once
            delay_ms = spread_delay_ms(self._config.delivery.start_spread_s, self._rng)
            self._core.postpone_first_fetch(steady_ms() + delay_ms)

    def apply_config(self, config: Config, before: Config) -> None:
        self._reporter.apply_config(config)
        self._core.apply_config(config, steady_ms())
        self._fetch_backoff.apply_config(*config.delivery.backoff)
        self._apply_broker_config(config, before)
        self._topic_creator.apply_config(self._create_socket, config.delivery)
        if config.delivery.metadata_refresh_interval_min != before.delivery.metadata_refresh_interval_min:
            self._schedule_refresh()

    def drain(self, _: Drain) -> None:
        self._core.drain(steady_ms())

    def on_control(self, message: ControlMessage) -> None:
        if isinstance(message, PeerDied):
            if message.name.startswith("input"):  # input, input-1, ...
                self._core.claim_filled(steady_ms())
        elif isinstance(message, RefreshMetadata):
            self._request_refresh()
        elif isinstance(message, AcceptCluster):
            self._accepted_cluster = message.cluster_id
            self._core.request_fetch_now(steady_ms())
        elif isinstance(message, DebugTopics):
            self._tap.choose(message)

    def after_round(self, now_ms: int) -> int | None:
        self._core.flush_due(now_ms)
        due_ms = self._core.fetch_due_ms
        if due_ms is not None and due_ms <= now_ms and not self._fetcher.is_busy:
            self._fetch()
        self._create_topics()
        for slot, parcels in self._core.drain_outbox().items():
            self._sender_to(slot).send(parcels)
        self._announce_dispatchers()
        fetch_ms = None if self._fetcher.is_busy else self._core.fetch_due_ms
        return min((due for due in (fetch_ms, self._core.due_ms) if due is not None), default=None)

    # --- frames ------------------------------------------------------------------------------------------------------

    def _on_input_frame(self, parcels: list[Parcel]) -> None:
        now_ms = steady_ms()
        for parcel in parcels:
            if parcel.kind is ParcelKind.FLUSH:
                self._core.flush_topic(parcel.topic, now_ms)
            else:
                self._core.on_runs(parcel.segments, now_ms)

    def _announce_dispatchers(self) -> None:
        """Tell the supervisor which dispatchers to run, if this has changed."""
        to_run = self._core.dispatchers_to_run()
        if to_run is None or to_run is self._announced_to_run:
            return
        self._announced_to_run = to_run
        brokers = {slot: Broker(node, address.host, address.port) for slot, (node, address) in to_run.items()}
        if brokers != self._announced_brokers:
            self._announced_brokers = brokers
            self.send(Dispatchers(brokers))

    # --- metadata ----------------------------------------------------------------------------------------------------

    def _build_socket_factory(self, config: Config) -> SocketFactory:
        security = create_security(config.kafka, self._loop)
        return socket_factory(
            self._loop,
            self._resolver,
            client_id=config.kafka.client_id,
            timeout_s=config.delivery.kafka_socket_timeout_s,
            negotiation_cache=NegotiationCache(config.kafka.broker_version, logs_in=security.logins is not None),
            security=security,
        )

    def _apply_broker_config(self, config: Config, before: Config) -> None:
        """Apply changed bootstrap servers or connection settings, and then fetch metadata at once."""
        has_new_servers = config.kafka.bootstrap_servers != before.kafka.bootstrap_servers
        if has_new_servers:
            self._brokers = []
        if has_new_servers or connection_settings(config) != connection_settings(before):
            self._create_socket = self._build_socket_factory(config)
            self._fetcher.apply_config(self._create_socket)
            self._core.request_fetch_now(steady_ms())

    def _fetch(self) -> None:
        self._row.add(Counter.StartRefreshMetadata)
        self._fetch_started_ms = steady_ms()
        self._core.on_fetch_started(self._fetch_started_ms)
        self._current_is_refresh, self._next_is_refresh = self._next_is_refresh, False
        self._cluster_of_fetch = self._accepted_cluster
        bootstrap = [Address(server.host, server.port) for server in self._config.kafka.servers]
        changes_cluster = bool(self._accepted_cluster)  # a producer id is valid in one cluster only
        has_producer_id = producer_id.is_idempotent(self._slab) and not changes_cluster
        needs_producer_id = self._config.kafka.required_acks == ACKS_ALL and not has_producer_id
        self._fetcher.start(
            self._brokers,
            bootstrap,
            needs_producer_id=needs_producer_id,
            names=self._core.names_to_request,
            ask_last=self._core.brokers_to_ask_last,
        )

    def _on_broker_failure(self, cause: FailureCause | None) -> None:
        self._row.add(_BROKER_FAILURE_COUNTERS.get(cause, Counter.ConnectFailOnTryGetMetadata))

    def _on_fetched(self, result: FetchResult | None) -> None:
        now_ms = steady_ms()
        if result is None:
            self._on_no_broker_responded(now_ms)
        elif self._accepted_cluster != self._cluster_of_fetch:
            # This fetch began for another cluster, perhaps without a request for the producer id that a change needs.
            self._next_is_refresh = self._next_is_refresh or self._current_is_refresh  # the next fetch repeats this one
            self._core.request_fetch_now(now_ms)
        elif not self._accepted_cluster or self._change_cluster(result, now_ms):
            self._apply_metadata(result, now_ms)

    def _on_no_broker_responded(self, now_ms: int) -> None:
        self._row.add(Counter.GetMetadataFail)
        if not self._had_metadata:
            self._row.add(Counter.InitialGetMetadataFail)
        self._cluster_status.on_fetch_failed(
            self._fetcher.last_error,
            needs_operator=self._fetcher.needs_operator,
            foreign_cluster=self._fetcher.foreign_cluster,
        )
        self._next_is_refresh = self._next_is_refresh or self._current_is_refresh  # the next fetch repeats this one
        self._core.on_fetch_failed(now_ms, self._fetch_backoff.next_delay_ms(now_ms))

    def _apply_metadata(self, result: FetchResult, now_ms: int) -> None:
        self._row.add(Counter.GetMetadataSuccess)
        self._row.add(Counter.MetadataPartitionHasUnknownBroker, result.metadata.unknown_leaders)
        self._row.add(Counter.MetadataHasEmptyTopicList, int(not result.metadata.topics))
        self._store_identity(result)
        view = view_of(result.metadata, result.forbidden)
        controller = result.metadata.controller
        controller_first = sorted(view.brokers, key=lambda node: node != controller)
        self._brokers = [view.brokers[node] for node in controller_first]
        self._report_recreated(result.metadata.topics)
        has_changed = self._core.on_metadata(view, self._fetch_started_ms, now_ms)
        self._row.add(Counter.MetadataChangedOnRefresh if has_changed else Counter.MetadataUnchangedOnRefresh)
        self._cluster_status.on_fetched(view.brokers, view.forbidden)
        self._slab.store_signed(lay.SUPER_METADATA_UPDATED_MS, wall_ms())
        self._slab.store_signed(lay.SUPER_METADATA_STEADY_MS, now_ms)
        if has_changed:
            self._slab.store_signed(lay.SUPER_METADATA_MODIFIED_MS, wall_ms())
        # If the config disables the comparison, each refresh with unchanged metadata reroutes all messages.
        if self._current_is_refresh and not (has_changed or self._config.delivery.compare_metadata_on_refresh):
            self._core.hand_back_all(now_ms)
        self._schedule_refresh()

    @property
    def _had_metadata(self) -> bool:
        """True if a router has received metadata since the daemon started."""
        return bool(self._slab.read_signed(lay.SUPER_METADATA_UPDATED_MS))

    def _change_cluster(self, result: FetchResult, now_ms: int) -> bool:
        """If the router holds all messages, change to the accepted cluster and return True.

        Else request the messages back from the dispatchers and return False.
        """
        if not self._core.holds_everything:
            self._core.hand_back_all(now_ms)
            # The next fetch repeats this check.  It does not wait for the host's own moment, as after an error.
            self._core.request_fetch_now(now_ms + _HAND_BACK_POLL_MS)
            return False
        producer_id.change_cluster(self._slab, self._accepted_cluster, result.producer_id)
        self._core.clear_topic_ids()
        log.log(NOTICE, "The messages are for the cluster %s from now on.", self._accepted_cluster)
        self._accepted_cluster = ""
        return True

    def _create_topics(self) -> None:
        names = self._core.names_to_create
        if names and not self._topic_creator.is_busy:
            self._core.on_creation_started(names)
            self._topic_creator.start(self._brokers, names)

    def _on_creation_answered(self, errors: Mapping[bytes, int]) -> None:
        """Count, log and apply the error code of each topic name; `errors` is empty if no broker responded."""
        if not errors:
            self._row.add(Counter.ConnectFailOnTopicAutocreate)
        for name, error in errors.items():
            text = name.decode("utf-8", "backslashreplace")
            if error in SUCCESS:
                self._row.add(Counter.TopicAutocreateSuccess)
                log.log(NOTICE, "Topic %s was created.", text, extra={"about": name})  # "about": see telemetry/logs.py
            else:
                self._row.add(Counter.TopicAutocreateGotErrorResponse)
                log.error(
                    "Topic %s cannot be created: the broker answered %s (%d).", text, error_row(error).name, error,
                    extra={"about": (name, error)},
                )  # fmt: skip
        self._core.on_creation_answered(errors, steady_ms())

    def _report_recreated(self, topics: Mapping[bytes, TopicMetadata]) -> None:
        """Store Kafka's ids of topics; count and report the topics that had another id before."""
        recreated = self._core.store_topic_ids({name: topic.topic_id for name, topic in topics.items()})
        self._row.add(Counter.TopicRecreated, len(recreated))
        self._cluster_status.on_recreated(recreated)

    def _store_identity(self, result: FetchResult) -> None:
        """Store the cluster's id, and the producer id if none is stored yet.

        If the result also has no producer id, batches get no sequence numbers.
        """
        producer_id.store_cluster(self._slab, result.metadata.cluster_id)
        self._cluster_status.on_producer_refused(result.producer_error)
        if producer_id.is_idempotent(self._slab):
            return
        if result.producer_id is None:
            producer_id.disable_idempotence(self._slab)
        else:
            producer_id.store_producer(self._slab, result.producer_id)

    def _schedule_refresh(self) -> None:
        if self._refresh_timer is not None:
            self._refresh_timer.cancel()
        minutes = self._config.delivery.metadata_refresh_interval_min
        if minutes:
            delay_s = periodic_delay_ms(minutes, self._rng) / 1000
            self._refresh_timer = self._loop.call_later(delay_s, self._request_refresh)

    def _request_refresh(self) -> None:
        self._next_is_refresh = True
        self._core.request_refresh(steady_ms())
