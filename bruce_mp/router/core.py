"""The router's core, which does no I/O: it gets runs of inputs, chooses partitions and returns parcels for dispatchers.

In the slab, each message that the router holds is in one of the `_ROUTED_STATES`, so a new router finds the messages by
a sweep.  The router *binds* each message to a partition before it sends the message to a dispatcher.  A bound message
never changes its partition, unless the partition is lost.  So messages of a partition keep their order even if another
dispatcher gets them.

`router/process.py` calls the methods of `Router` for each event.  Then the process does the work that the properties of
`Router` show: metadata to fetch, topics to create, frames to send, dispatchers to run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp import kernels
from bruce_mp.discards.settlement import Discards
from bruce_mp.errors import DiscardReason, SlabError
from bruce_mp.pipeline.corruption import quarantine
from bruce_mp.router.assignments import Assignments
from bruce_mp.router.broker_turns import BrokerTurns
from bruce_mp.router.cluster import MissingPartitions, MissingTopics
from bruce_mp.router.metadata_refresh import FetchSchedule
from bruce_mp.router.outbox import Outbox
from bruce_mp.router.routing import RunRouter
from bruce_mp.router.slab_tables import SlabTables
from bruce_mp.router.topics import TopicRegistry
from bruce_mp.router.unknown_topics import UnknownTopics
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.recovery import sweep, sweep_filled
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bruce_mp.config.model import Config
    from bruce_mp.discards.reporter import DiscardReporter
    from bruce_mp.ipc.frames import Parcel
    from bruce_mp.pipeline.msg_debug import WireTap
    from bruce_mp.router.cluster import Address, ClusterView, TopicView
    from bruce_mp.router.topics import Topic
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import FoundSegment
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Segment

__all__ = ["Router"]

_ROUTED_STATES: Final = (RunState.ROUTED, RunState.ROUTED_SENT)
"""The states of records that a router holds: ROUTED_SENT if a dispatcher built a batch from them, else ROUTED."""


class Router:
    """The router's state and its reactions to events.  Times are in ms on one steady clock."""

    def __init__(
        self,
        slab: Slab,
        row: ProcessRow,
        config: Config,
        *,
        incarnation: int,
        reporter: DiscardReporter,
        rng: random.Random,
        tap: WireTap,
    ) -> None:
        self._slab = slab
        self._row = row
        self._routed_word = state_word(RunState.ROUTED, incarnation)
        self._routed_sent_word = state_word(RunState.ROUTED_SENT, incarnation)
        self._discards = Discards(slab, row, reporter)
        self._tables = SlabTables(slab)
        self._turns = BrokerTurns(config.batching, rng)
        self._topics = TopicRegistry(slab, self._tables, config, rng, self._turns)
        self._missing = MissingTopics()
        self._missing_partitions = MissingPartitions()
        self._fetch_schedule = FetchSchedule(rng, config.delivery.failover_spread_s)
        self._unknown = UnknownTopics(
            self._discards,
            self._fetch_schedule,
            lambda: self._tables.topics.free_entry_count,
            autocreate=config.delivery.topic_autocreate,
        )
        self._outbox = Outbox(slab, row, incarnation)
        self._assignments = Assignments(
            slab,
            row,
            config.delivery,
            tables=self._tables,
            outbox=self._outbox,
            incarnation=incarnation,
            leaders_of=self._topics.leaders_of,
            fetch_schedule=self._fetch_schedule,
            rng=rng,
        )
        self._runs = RunRouter(
            slab,
            row,
            config,
            topics=self._topics,
            tables=self._tables,
            unknown=self._unknown,
            assignments=self._assignments,
            fetch_schedule=self._fetch_schedule,
            discards=self._discards,
            turns=self._turns,
            tap=tap,
        )
        # Methods of the router that one of its parts implements; the docstring is there.
        self.flush_due, self.flush_topic = self._runs.flush_due, self._runs.flush_topic
        self.request_refresh = self._fetch_schedule.request_refresh
        self.request_fetch_now = self.postpone_first_fetch = self._fetch_schedule.set_time
        self.on_fetch_started, self.on_fetch_failed = self._fetch_schedule.on_started, self._fetch_schedule.on_failed
        self.on_creation_started = self._unknown.on_creation_started
        self.on_creation_answered = self._unknown.on_creation_answered
        self.drain_outbox = self._outbox.drain
        self.dispatchers_to_run = self._assignments.dispatchers_to_run
        self.hand_back_all = self._assignments.hand_back_all
        self.paused_scopes, self.waiting_routes = self._assignments.paused_scopes, self._assignments.waiting_routes

    def apply_config(self, config: Config, now_ms: int) -> None:
        """Apply a reloaded config; send the pending batches of topics with changed batching settings."""
        self._topics.apply_config(config)
        self._unknown.apply_config(autocreate=config.delivery.topic_autocreate)
        self._fetch_schedule.apply_config(config.delivery.failover_spread_s)
        self._assignments.apply_config(config.delivery)
        self._runs.apply_config(config, now_ms)

    # --- received messages -------------------------------------------------------------------------------------------

    def on_runs(self, segments: Iterable[Segment], now_ms: int) -> None:
        """Claim and route runs that an input has announced; they are in state FILLED."""
        self._runs.route(kernels.claim(self._slab, segments, RunState.FILLED, self._routed_word), now_ms)

    def claim_filled(self, now_ms: int) -> None:
        """Claim and route all runs in state FILLED: an input may have died before it announced them."""
        self.on_runs([found.segment for found in sweep_filled(self._slab)], now_ms)

    # --- batches -----------------------------------------------------------------------------------------------------

    @property
    def due_ms(self) -> int | None:
        """The earliest time at which a batch may be due; None if there is no batch."""
        return self._runs.due_ms

    def drain(self, now_ms: int) -> None:
        """Disable batching and send all accumulated records, because the daemon stops."""
        self._runs.is_draining = True
        self.claim_filled(now_ms)
        self._runs.flush_all(now_ms)

    # --- metadata ----------------------------------------------------------------------------------------------------

    @property
    def fetch_due_ms(self) -> int | None:
        """The time of the next metadata fetch; None if no fetch is requested."""
        return self._fetch_schedule.due_ms

    @property
    def brokers_to_ask_last(self) -> list[Address]:
        """The brokers of paused dispatchers; a metadata fetch asks them last, because they may not respond."""
        return self._assignments.brokers_of_paused_dispatchers()

    @property
    def names_to_request(self) -> list[bytes]:
        """Topics that a metadata fetch requests by name, because only such a request shows if a topic is forbidden."""
        return list(dict.fromkeys([*self._unknown.names_to_request, *self._missing.names_to_request]))

    def on_metadata(self, view: ClusterView, started_ms: int, now_ms: int) -> bool:
        """Apply metadata of a fetch that began at `started_ms`; return True if it differs from the metadata before."""
        self._empty_lost_partitions(view, now_ms)
        known, in_use = self._tables.topics.partition_counts(), self._partition_counts_in_use()
        view = self._missing.keep_for_grace_period(view, known, in_use, now_ms)
        has_changed = view != self._topics.view
        self._topics.view = view
        self._turns.apply_view(view)
        for topic in list(self._topics.by_number.values()):
            self._update_topic(topic, view.topics.get(topic.name), now_ms)
        self._clear_refusals_of_deleted(view)
        for number in self._tables.reclaim_entries(view.topics, self._partition_counts, now_ms):
            self._topics.by_number.pop(number, None)
            self._runs.rate_limits.remove(number)
        self._assignments.on_metadata(view, started_ms, now_ms)
        found = self._unknown.on_metadata(
            lambda name: self._ensure_numbered(name, now_ms), started_ms, now_ms, forbidden=view.forbidden
        )
        self._runs.route(found, now_ms)
        self._runs.route_awaiting_metadata(now_ms)
        self._runs.unpark(now_ms)
        return has_changed

    def store_topic_ids(self, ids: Mapping[bytes, bytes]) -> list[bytes]:
        """Store Kafka's id of each topic name in the slab's topic table; return the names that had another id there."""
        self._topics.topic_ids = ids
        return [name for name, topic_id in ids.items() if self._tables.topics.store_topic_id(name, topic_id)]

    def clear_topic_ids(self) -> None:
        """Remove the stored ids of all topics: the daemon changes to another cluster, where topics have other ids."""
        self._tables.topics.clear_topic_ids()

    def _update_topic(self, topic: Topic, view: TopicView | None, now_ms: int) -> None:
        """Apply new metadata to a topic; if it was deleted, discard its messages that wait in the router."""
        topic.update_view(view)
        if view is not None:
            self._topics.assign_number(topic.name)  # keeps the topic's number, and stores the new number of partitions
            return
        waiting = [*self._runs.pop_waiting(topic), *self._assignments.remove_topic(topic.number, now_ms)]
        self._discards.settle(waiting, DiscardReason.BAD_TOPIC, topic.name, Counter.DiscardBadTopicOnReroute)

    def _empty_lost_partitions(self, response: ClusterView, now_ms: int) -> None:
        """Discard or park the messages of partitions that are missing in all metadata of a grace period.

        Batches that a dispatcher has built are discarded, like those of a deleted topic, because consumers may have
        read them.  The other messages were never sent: parked, they wait for another partition.
        """
        names = self._names_by_number()

        lost = self._missing_partitions.find_lost(self._find_missing_partitions(response, names), now_ms)
        unsent: dict[int, list[Segment]] = {}
        for number, route in self._assignments.remove_lost(lost, now_ms):
            built, rest = route.pop_all()
            self._discards.settle(built, DiscardReason.BAD_TOPIC, names[number], Counter.DiscardBadTopicOnReroute)
            unsent.setdefault(number, []).extend(rest)
        for number, segments in unsent.items():
            self._runs.park_lost(self._topics.by_number[number], segments, now_ms)

    def _find_missing_partitions(self, response: ClusterView, names: Mapping[int, bytes]) -> list[tuple[int, int]]:
        """Return (topic number, partition) of the partitions with routes that a response lacks.

        It does not return partitions of a topic that the response lacks, or has without any partition: such a topic has
        an error, and its number of partitions is unknown.
        """
        missing: set[tuple[int, int]] = set()
        for number, count in self._partition_counts().items():
            view = response.topics.get(names.get(number, b""))
            if view is not None and view.partitions and view.lacks_below(count):
                missing.update((number, partition) for partition in {*range(count)} - {*view.partitions})
        return sorted(missing & self._assignments.partitions) if missing else []

    def _partition_counts_in_use(self) -> dict[bytes, int]:
        """Return by name the result of `_partition_counts`."""
        names = self._names_by_number()
        return {names[number]: count for number, count in self._partition_counts().items() if number in names}

    def _partition_counts(self) -> dict[int, int]:
        """Return for each topic that has routes the number of partitions up to the last one with a route."""
        counts: dict[int, int] = {}
        for topic, partition in self._assignments.partitions:  # not sorted: that takes 5 ms with 10,000 routes
            if partition >= counts.get(topic, 0):
                counts[topic] = partition + 1
        return counts

    def _names_by_number(self) -> dict[int, bytes]:
        return {number: name for name, number in self._tables.topics.numbers().items()}

    def _clear_refusals_of_deleted(self, view: ClusterView) -> None:
        """Clear the refusal codes of deleted topics, because no broker will accept a message of such a topic.

        A dispatcher may store the code again until it has handed back its messages; this causes another metadata fetch.
        """
        table = self._tables.topics
        table.clear_refusals([table.number_of(name) for name in table.refusals() if name not in view.topics])

    def _ensure_numbered(self, name: bytes, now_ms: int) -> bool:
        """Give a topic a number in the slab's topic table, unless it has one.

        Return False if the topic has none, because metadata lacks the topic or the table has no room.
        """
        if not self._topics.is_in_cluster(name):
            return False
        number = self._topics.assign_number(name)
        if not number:
            self._tables.report_full("topics", "messages for further topics are discarded.", now_ms)
        return number > 0

    @property
    def names_to_create(self) -> list[bytes]:
        return self._unknown.names_to_create

    # --- dispatchers -------------------------------------------------------------------------------------------------

    def on_parcels(self, parcels: list[Parcel], now_ms: int) -> None:
        """Process the parcels of one frame of a dispatcher."""
        self._assignments.on_parcels(parcels, now_ms)
        self._runs.unpark(now_ms)

    @property
    def holds_everything(self) -> bool:
        return self._assignments.holds_everything

    def leaderless_partitions(self) -> list[tuple[int, int]]:
        """Return (topic number, partition) of the partitions with messages that wait for a leader.

        The partition is `ALL_PARTITIONS` if messages of the topic wait that are not bound to a partition.
        """
        return [*self._runs.leaderless_topics(), *self._assignments.leaderless_partitions()]

    def waiting_without_partition(self) -> Iterator[tuple[bytes, Sequence[Segment]]]:
        """Yield topic name and segments of waiting messages that are not bound to a partition.

        The name is b"" for messages that wait for the first metadata.
        """
        yield from self._runs.waiting_segments()
        yield from self._unknown.waiting_segments()

    # --- recovery ---------------------------------------------------------------------------------------------------

    def recover(self, now_ms: int) -> None:
        """Claim the previous router's records and the runs in state FILLED; route all of them in order of arrival."""
        own_words = {self._routed_word, self._routed_sent_word}
        inherited = [found for found in sweep(self._slab, _ROUTED_STATES) if found.word not in own_words]
        for found in sorted([*inherited, *sweep_filled(self._slab)], key=lambda part: part.arrival):
            try:
                self._adopt(found, now_ms)
            except SlabError as error:
                quarantine(self._row, error)
        self._assignments.recover()

    def _adopt(self, found: FoundSegment, now_ms: int) -> None:
        """Claim a segment; add it to the route of its partition, or route it if it has no partition."""
        is_built = found.state is RunState.ROUTED_SENT
        routed_word = self._routed_sent_word if is_built else self._routed_word
        claimed = kernels.claim(self._slab, [found.segment], found.word, routed_word)
        self._topics.check_number(found.topic)
        if found.topic and found.partition >= 0:
            self._assignments.adopt(found.topic, found.partition, claimed, is_built=is_built)
        else:
            self._runs.route(claimed, now_ms)
