"""A simulation around router and dispatchers: it moves messages, acts as the brokers and advances time.

`World` adds to the machine what surrounds it: it fetches metadata for the router and carries requests to a fake
cluster.  Each step is one action of one process, which `kill_at` kills at a store within the action.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason, SlabError
from bruce_mp.ipc.frames import unpack_parcels
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.protocol.kafka.kafka_types import PartitionAck
from bruce_mp.router.cluster import Address, ClusterView, TopicView
from bruce_mp.slab.chunks import is_settled, used_chunk_headers
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.states import Role
from support.fake_broker import BY_RECORD, RequestBatch
from support.flow_parts import records_of
from support.machine import BROKERS, ROUTER, Machine, Peer, Request
from support.slabs import contents, datagram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.config.model import Config
    from bruce_mp.ipc.frames import Parcel
    from bruce_mp.slab.recovery import BuiltBatch

__all__ = ["ROUTER", "World"]

FINAL: Final = frozenset({-1, 10, 17, 42})
"""Errors that lead to discards."""


class World(Machine):
    """Router, dispatchers and a fake cluster, driven step by step."""

    # --- steps -------------------------------------------------------------------------------------------------------

    def send(self, datagrams: Sequence[tuple[bytes, bytes, int | None]]) -> None:
        """Receive messages (topic, datagram, partition key) and hand them over."""
        self.receive(datagrams)
        self.hand_over()

    def receive(self, datagrams: Sequence[tuple[bytes, bytes, int | None]], *, is_numbered: bool = True) -> None:
        """Receive messages (topic, datagram, partition key), perhaps as before their topics had numbers."""
        base = self.input.base
        receive = self.input.receive if is_numbered else self.input.receive_unnumbered
        with self.words.acting(Role.INPUT):
            ingested = receive([data for _, data, _ in datagrams])
        assert not ingested.no_room, "the slab of the test is too small"
        for number, (topic, _, key) in enumerate(datagrams):
            self.received[base + number] = (topic, key)

    def hand_over(self) -> None:
        """Close the input's runs, and queue a doorbell for all closed ones."""
        with self.words.acting(Role.INPUT):
            self.doorbells.append(self.input.close_all())

    def grow(self, topic: bytes, leaders: Sequence[int | None]) -> None:
        """Add partitions to a topic, led by these brokers; None stands for no leader."""
        for leader in leaders:
            self.cluster.add((topic, self.topics[topic]), leader)
            self.topics[topic] += 1

    def send_one(self, topic: bytes, value: bytes = b"v", key: int | None = None) -> int:
        """Receive one message and return its arrival number."""
        self.send([(topic, datagram(topic, value, partition_key=key), key)])
        return self.input.base - 1

    def ring(self, *, kill_at: int | None = None) -> None:
        """Deliver the doorbells of new runs to the router."""
        if self.doorbells:
            segments = self.doorbells.popleft()
            self._as_router(lambda: self.router.on_runs(segments, self.now_ms), kill_at=kill_at)

    def answer_fetch(self, *, kill_at: int | None = None) -> None:
        """Give the router the requested metadata."""
        started, self.fetch_started = self.fetch_started, None
        if started is not None:
            self._as_router(lambda: self.router.on_metadata(self.view(), started, self.now_ms), kill_at=kill_at)

    def refresh(self, *, kill_at: int | None = None) -> None:
        """Run a metadata refresh that hands everything back."""
        self._as_router(lambda: self.router.hand_back_all(self.now_ms), kill_at=kill_at)

    def reload(self, config: Config) -> None:
        """Accept a new config: new processes start with it, and running ones apply it with `apply_config`."""
        self.config = config
        self.outdated.update({ROUTER, *self.peers})

    def apply_config(self, process: int, *, kill_at: int | None = None) -> None:
        """Apply the accepted config in one process."""
        if process not in self.outdated:
            return
        self.outdated.discard(process)
        if process == ROUTER:
            self._as_router(lambda: self.router.apply_config(self.config, self.now_ms), kill_at=kill_at)
        elif process in self.peers:
            core = self.peers[process].core
            self._as_peer(process, lambda: core.apply_config(self.config), kill_at=kill_at)

    def view(self) -> ClusterView:
        """Return the present metadata."""
        leaders = {place: node for place, node in self.cluster.leaders.items() if node is not None}
        topics = {
            topic: TopicView(tuple(range(count)), {p: leaders[topic, p] for p in range(count) if (topic, p) in leaders})
            for topic, count in self.topics.items()
        }
        return ClusterView({node: Address("broker", node) for node in sorted(self.brokers)}, topics)

    def deliver_to_router(self, *, kill_at: int | None = None) -> None:
        """Deliver one frame of a dispatcher to the router."""
        queues = [queue for queue in self.to_router if queue]
        if queues:
            parcels = unpack_parcels(self.rng.choice(queues).popleft())
            self._as_router(lambda: self.router.on_parcels(parcels, self.now_ms), kill_at=kill_at)

    def deliver_to_dispatcher(self, slot: int, *, kill_at: int | None = None) -> None:
        """Deliver one frame of a router, alive or dead, to a dispatcher."""
        queues = [queue for queue in self.to_peer[slot] if queue]
        if queues and slot in self.peers:
            parcels: list[Parcel] = unpack_parcels(self.rng.choice(queues).popleft())
            core = self.peers[slot].core
            self._as_peer(slot, lambda: core.on_parcels(parcels, self.now_ms), kill_at=kill_at)

    def send_request(self, slot: int, *, kill_at: int | None = None) -> None:
        """Connect a dispatcher if needed, and let it send one request."""
        if slot in self.peers:
            self._as_peer(slot, lambda: self._request(slot), kill_at=kill_at)

    def _request(self, slot: int) -> None:
        peer = self.peers[slot]
        if peer.connection is None:
            if not peer.core.wants_connection:
                return
            if self.node_of(slot) in self.down:
                peer.core.on_connection_lost()
                return
            peer.connection = deque()
        batches = peer.core.next_request(len(peer.connection), self.now_ms / 1000)
        readable = self._readable(peer, batches)
        if readable:
            self.requests.append([self._read_batch(batch) for batch in readable])
            peer.connection.append(Request(readable, self.requests[-1]))

    def _readable(self, peer: Peer, batches: Sequence[BuiltBatch]) -> list[BuiltBatch]:
        """Return the batches that can be read, and report the others to the dispatcher."""
        readable = []
        for batch in batches:
            try:
                self._read_batch(batch)
                readable.append(batch)
            except SlabError as error:
                peer.core.on_unreadable(batch, error, self.now_ms / 1000)
        return readable

    def _read_batch(self, batch: BuiltBatch) -> RequestBatch:
        """Read a batch's records from the slab; raise SlabError for damaged ones."""
        topic = self.router._tables.topics.name_of(batch.topic)
        return RequestBatch(
            topic, batch.partition, batch.epoch, batch.base_sequence, records_of(self.slab, batch.segments)
        )

    def answer(self, slot: int, *, kill_at: int | None = None) -> None:
        """Let the broker execute the oldest request and respond."""
        peer = self.peers.get(slot)
        if peer is None or not peer.connection:
            return
        request = peer.connection.popleft()
        codes = [self._execute(self.node_of(slot), batch) for batch in request.content]
        self._as_peer(slot, lambda: self._deliver(peer, request, codes), kill_at=kill_at)

    def _deliver(self, peer: Peer, request: Request, codes: list[int]) -> None:
        acks = [
            PartitionAck(batch.topic, batch.partition, code, record_errors=self._refused_records(batch, code))
            for batch, code in zip(request.content, codes, strict=True)
        ]
        peer.core.on_acks(request.batches, acks, self.now_ms / 1000)

    def _refused_records(self, batch: RequestBatch, code: int) -> tuple[tuple[int, str | None], ...]:
        if code not in BY_RECORD or not self.names_refused:
            return ()
        return tuple((at, None) for at in self.cluster.refused_records(batch))

    def _execute(self, node: int, batch: RequestBatch) -> int:
        """Let a broker answer a batch, with the next planned error if it can be the answer; return the error code."""
        if not self.errors or self.cluster.refused_records(batch) or self._excludes(batch, self.errors[0][0]):
            return self.cluster.produce(node, batch)
        code, is_written = self.errors.popleft()
        return (self.cluster.produce(node, batch) or code) if is_written else code

    def _excludes(self, batch: RequestBatch, code: int) -> bool:
        """Return True if `code` cannot be the answer.

        No broker refuses for good a batch that it has written, or may still write, because a stray request has it.
        """
        return self.cluster.has(batch) or (bool(self.stray) and code in FINAL)

    def break_connection(self, slot: int, *, executed: int = 0, kill_at: int | None = None) -> None:
        """Break a connection after `executed` of its requests; the broker may execute the others later."""
        peer = self.peers.get(slot)
        if peer is None or peer.connection is None:
            return
        for _ in range(min(executed, len(peer.connection))):
            for batch in peer.connection.popleft().content:
                self.cluster.produce(self.node_of(slot), batch)
        self._give_up_connection(slot, peer)
        self._as_peer(slot, peer.core.on_connection_lost, kill_at=kill_at)

    def execute_stray(self) -> None:
        """Let a broker execute a request of a closed connection."""
        if self.stray:
            node, requests = self.rng.choice(self.stray)
            for batch in requests.popleft().content:
                self.cluster.produce(node, batch)
            self.stray = [(node, requests) for node, requests in self.stray if requests]

    def advance_clock(self, ms: int) -> None:
        """Advance the clock of all processes."""
        self.now_ms += ms
        self.input.now_ms += ms
        self._as_router(lambda: None)
        for slot in list(self.peers):
            self._after_peer(slot)

    # --- the end -----------------------------------------------------------------------------------------------------

    def end_faults(self) -> None:
        """End all faults: every broker is up, every partition has a leader."""
        self.errors.clear()
        self.down.clear()
        for place, node in self.cluster.leaders.items():
            self.cluster.leaders[place] = node or BROKERS[0]

    def step_until_settled(self, rounds: int = 3000) -> None:
        """Step until all messages are settled."""
        for _ in range(rounds):
            if self.is_settled():
                return
            self.step_all()
        raise AssertionError(f"not settled after {rounds} rounds: {self.held()}")

    def step_until_synced(self) -> None:
        """Step until router and dispatchers are synced."""
        for _ in range(100):
            self.step_all()
            peers = self.router._assignments._dispatcher_scopes.values()
            if 0 < len(self.peers) == sum(peer.is_flowing for peer in peers):
                return
        raise AssertionError("router and dispatchers do not become synced")

    def step_all(self) -> None:
        """Let each process do one step."""
        self.ring()
        self.answer_fetch()
        self.deliver_to_router()
        for slot in list(self.peers):
            self.deliver_to_dispatcher(slot)
            self.send_request(slot)
            self.answer(slot)
        self.check_counts()
        self.advance_clock(10)

    def held(self) -> dict[str, int]:
        """Count the unsettled messages by state."""
        counts: dict[str, int] = defaultdict(int)
        for content in contents(self.slab):
            if content.state not in {RunState.DELIVERED, RunState.DISCARDED}:
                counts[content.state.name] += 1
        return dict(counts)

    def is_settled(self) -> bool:
        """Return True if all received messages are delivered or discarded."""
        return not self.doorbells and all(is_settled(self.slab, chunk) for chunk, *_ in used_chunk_headers(self.slab))

    def check(self, *, duplicates: bool = False, stands_in: bool = True) -> None:
        """Check that the logs have every received, undiscarded message once and in order.

        With `stands_in`, partitions may have replaced others: the order then holds for each partition that keys name.
        """
        seen: list[int] = []
        for (topic, partition), state in self.cluster.partitions.items():
            last: dict[object, int] = {}
            for arrival, key, _ in state.log:
                stream = None if key is None else key % self.topics[topic] if stands_in else 0
                if not duplicates:
                    assert last.get(stream, -1) < arrival, f"{topic!r}-{partition}: {arrival} after {last[stream]}"
                last[stream] = arrival
                assert self.received[arrival] == (topic, key)
                seen.append(arrival)
        if not duplicates:
            assert len(seen) == len(set(seen))
        discarded = count_books(self.slab).discarded
        certain = sum(discarded.values()) - discarded.get(DiscardReason.POSSIBLY_DELIVERED.name, 0)
        assert certain <= len(self.received) - len(set(seen)) <= sum(discarded.values())

    def close(self) -> None:
        """Give the slab its own words back."""
        self.slab.words = self.words._words
