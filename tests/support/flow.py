"""Router and dispatchers as plain objects around one slab, wired by queues that lose what a killed process had.

`World` is the machine: it moves messages, asks for metadata when the router wishes, carries requests to a fake cluster,
and kills.  A process can be killed at any store of a word into the slab (`kill_at`): its object is thrown away, what
it had not sent is gone, and a new one begins on the slab.  Time stands still unless `pass_time` is called.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.dispatcher.core import Dispatcher
from bruce_mp.pipes.frames import pack_parcels, unpack_parcels
from bruce_mp.protocol.kafka_types import PartitionAck
from bruce_mp.router.cluster import Address, ClusterView, TopicView
from bruce_mp.router.core import Router
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import State
from bruce_mp.slab.rows import Row
from bruce_mp.telemetry.books import read_books
from support.fake_broker import INVALID_RECORD, FakeCluster, Written
from support.flow_parts import DiedError, FakeReporter, MortalWords, a_config, records_of
from support.slabs import Input, contents, datagram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from bruce_mp.config.model import Config
    from bruce_mp.pipes.frames import Parcel
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import SentBatch
    from bruce_mp.slab.runs import Segment

__all__ = ["ROUTER", "World"]

BROKERS: Final = (1, 2, 3)
ROUTER: Final = -1
FINAL: Final = frozenset({-1, 10, 29})
"""Errors by which something is given up."""


class Request(NamedTuple):
    """A produce request on its way: what the dispatcher holds, and the bytes, so to speak."""

    batches: list[SentBatch]
    written: list[Written]


class Connection:
    """The dispatcher's end of a connection: requests without an answer, and answers that are under way."""

    def __init__(self) -> None:
        self.requests: deque[Request] = deque()


class Peer:
    """One dispatcher process."""

    def __init__(self, world: World, slot: int) -> None:
        row = Row(world.slab, lay.ROW_FIRST_DISPATCHER + slot)
        incarnation = row.begin(1, 0)
        self.core = Dispatcher(world.slab, row, world.config, slot, world.reporter, incarnation=incarnation)  # type: ignore[arg-type]
        self.core.say_hello()
        self.connection: Connection | None = None


class World:
    """See the module's text.  `topics` has for each topic the brokers that lead its partitions, in order."""

    def __init__(
        self, slab: Slab, topics: Mapping[bytes, Sequence[int]], config: Config | None = None, *, seed: int = 0
    ) -> None:
        self.slab = slab
        self.config = config or a_config()
        self.rng = random.Random(seed)
        self.reporter = FakeReporter()
        self.topics = {topic: len(leaders) for topic, leaders in topics.items()}
        self.cluster = FakeCluster({(t, p): node for t, nodes in topics.items() for p, node in enumerate(nodes)})
        self.words = MortalWords(slab.words)
        slab.words = self.words  # type: ignore[assignment]
        slab.words[lay.SUPER_IDEMPOTENCE >> 2] = 1 if self.config.kafka.required_acks == -1 else 2
        self.input = Input(slab, linger_ms=0, topics=[])
        self.now_ms = 1000
        self.down: set[int] = set()
        self.brokers = set(BROKERS)
        """Those that the metadata names."""
        self.requests: list[list[Written]] = []
        """All that were ever sent."""
        self.names_culprits = False
        """Whether answers name the records that are refused."""
        self.doom: dict[int, int] = {}
        """After how many more stores a process is killed: ROUTER, or a dispatcher by its slot."""
        self.errors: deque[tuple[int, bool]] = deque()
        """Error codes that the next batches get, whatever they are, and whether they are written all the same."""
        self.stray: list[tuple[int, deque[Request]]] = []
        """Brokers, and requests of connections that were given up: they may carry them out yet."""
        self.to_router: list[deque[bytes]] = []
        self.from_peer: dict[int, deque[bytes]] = {}
        self.to_peer: dict[int, list[deque[bytes]]] = defaultdict(list)
        self.peers: dict[int, Peer] = {}
        self.fetch_started: int | None = None
        self.fetches = 0
        self.received: dict[int, tuple[bytes, int | None]] = {}
        self._start_router()

    # --- life and death ----------------------------------------------------------------------------------------------

    def _start_router(self) -> None:
        row = Row(self.slab, lay.ROW_ROUTER)
        incarnation = row.begin(1, 0)
        rng = random.Random(self.rng.random())
        self.router = Router(self.slab, row, self.config, incarnation=incarnation, reporter=self.reporter, rng=rng)  # type: ignore[arg-type]
        self.fetch_started = None
        self.from_router: dict[int, deque[bytes]] = {}
        self.doorbells: deque[list[Segment]] = deque()
        self._as_router(lambda: self.router.recover(self.now_ms))

    def kill_router(self) -> None:
        """What it had received and not looked at is gone, and a part of what is under way."""
        for line in [*self.to_router]:
            self._lose_head(line)
        for line in self.from_router.values():
            self._lose_tail(line)
        self._start_router()

    def kill_peer(self, slot: int) -> None:
        """Kill a dispatcher; its successor is there at once."""
        peer = self.peers.pop(slot, None)
        if peer is None:
            return
        self._give_up_connection(slot, peer)
        for line in self.to_peer[slot]:
            self._lose_head(line)
        self._lose_tail(self.from_peer.pop(slot))
        self._start_peer(slot)

    def kill_all(self) -> None:
        """Everything at once; nothing that was under way is left."""
        for slot, peer in list(self.peers.items()):
            self._give_up_connection(slot, peer)
        self.to_router, self.from_peer = [], {}
        self.to_peer.clear()
        slots = list(self.peers)
        self.peers.clear()
        self._start_router()
        for slot in slots:
            self._start_peer(slot)

    def _start_peer(self, slot: int) -> None:
        line: deque[bytes] = deque()
        self.to_router.append(line)
        self.from_peer[slot] = line
        self.peers[slot] = Peer(self, slot)
        self._after_peer(slot)

    def _lose_head(self, line: deque[bytes]) -> None:
        for _ in range(self.rng.randint(0, len(line))):
            line.popleft()

    def _lose_tail(self, line: deque[bytes]) -> None:
        for _ in range(self.rng.randint(0, len(line))):
            line.pop()

    def _as_router(self, action: Callable[[], object], *, kill_at: int | None = None) -> None:
        if not self._survives(ROUTER, [action, self._after_router], kill_at):
            self.kill_router()

    def _as_peer(self, slot: int, action: Callable[[], object], *, kill_at: int | None = None) -> None:
        if not self._survives(slot, [action, lambda: self._after_peer(slot)], kill_at):
            self.kill_peer(slot)

    def _survives(self, who: int, actions: Iterable[Callable[[], object]], kill_at: int | None) -> bool:
        doomed = kill_at is None and who in self.doom
        self.words.left = self.doom.pop(who) if doomed else kill_at
        try:
            for action in actions:
                action()
        except DiedError:
            return False
        finally:
            if doomed and self.words.left is not None:
                self.doom[who] = self.words.left
            self.words.left = None
        return True

    # --- what processes do after each round --------------------------------------------------------------------------

    def _after_router(self) -> None:
        self.router.flush_due(self.now_ms)
        for slot, parcels in self.router.dispatching.drain_outbox().items():
            if slot not in self.from_router:
                self.from_router[slot] = deque()
                self.to_peer[slot].append(self.from_router[slot])
            self.from_router[slot].append(pack_parcels(parcels))
        due = self.router.wish.due_ms
        if self.fetch_started is None and due is not None and due <= self.now_ms:
            self.fetch_started = self.now_ms
            self.fetches += 1
            self.router.wish.begun(self.now_ms)
        wanted = self.router.dispatching.wanted()
        if wanted is not None:
            self._arrange(set(wanted))

    def _arrange(self, wanted: set[int]) -> None:
        for slot in self.peers.keys() - wanted:
            self._give_up_connection(slot, self.peers.pop(slot))
            self.from_peer.pop(slot)
        for slot in sorted(wanted - self.peers.keys()):
            self._start_peer(slot)

    def _after_peer(self, slot: int) -> None:
        core = self.peers[slot].core
        core.flush_due(self.now_ms)
        if parcels := core.drain_outbox():
            self.from_peer[slot].append(pack_parcels(parcels))

    # --- steps -------------------------------------------------------------------------------------------------------

    def send(self, datagrams: Sequence[tuple[bytes, bytes, int | None]]) -> None:
        """Messages (topic, datagram, partition key) come in."""
        base = self.input.base
        ingested = self.input.receive([data for _, data, _ in datagrams])
        assert not ingested.no_room, "the slab of the test is too small"
        for number, (topic, _, key) in enumerate(datagrams):
            self.received[base + number] = (topic, key)
        self.doorbells.append(self.input.close_all())

    def send_one(self, topic: bytes, value: bytes = b"v", key: int | None = None) -> int:
        """One message comes in; its arrival number."""
        self.send([(topic, datagram(topic, value, partition_key=key), key)])
        return self.input.base - 1

    def ring(self, *, kill_at: int | None = None) -> None:
        """The router hears of new runs."""
        if self.doorbells:
            segments = self.doorbells.popleft()
            self._as_router(lambda: self.router.on_runs(segments, self.now_ms), kill_at=kill_at)

    def answer_fetch(self, *, kill_at: int | None = None) -> None:
        """The router gets the metadata that it asked for."""
        started, self.fetch_started = self.fetch_started, None
        if started is not None:
            self._as_router(lambda: self.router.on_metadata(self.view(), started, self.now_ms), kill_at=kill_at)

    def view(self) -> ClusterView:
        """The metadata of this moment."""
        leaders = {place: node for place, node in self.cluster.leaders.items() if node is not None}
        topics = {
            topic: TopicView(tuple(range(count)), {p: leaders[topic, p] for p in range(count) if (topic, p) in leaders})
            for topic, count in self.topics.items()
        }
        return ClusterView({node: Address("broker", node) for node in sorted(self.brokers)}, topics)

    def router_hears(self, *, kill_at: int | None = None) -> None:
        """The router takes one message of one dispatcher."""
        lines = [line for line in self.to_router if line]
        if lines:
            parcels = unpack_parcels(self.rng.choice(lines).popleft())
            self._as_router(lambda: self.router.on_parcels(parcels, self.now_ms), kill_at=kill_at)

    def peer_hears(self, slot: int, *, kill_at: int | None = None) -> None:
        """A dispatcher takes one message of a router, alive or dead."""
        lines = [line for line in self.to_peer[slot] if line]
        if lines and slot in self.peers:
            parcels: list[Parcel] = unpack_parcels(self.rng.choice(lines).popleft())
            core = self.peers[slot].core
            self._as_peer(slot, lambda: core.on_parcels(parcels, self.now_ms), kill_at=kill_at)

    def peer_sends(self, slot: int, *, kill_at: int | None = None) -> None:
        """A dispatcher connects if it wants to, and sends one request."""
        if slot in self.peers:
            self._as_peer(slot, lambda: self._request(slot), kill_at=kill_at)

    def _request(self, slot: int) -> None:
        peer = self.peers[slot]
        if peer.connection is None:
            if not peer.core.wants_connection:
                return
            if self.node_of(slot) in self.down:
                peer.core.on_lost()
                return
            peer.connection = Connection()
        batches = peer.core.next_request(len(peer.connection.requests), self.now_ms / 1000)
        if batches:
            self.requests.append([self._written(batch) for batch in batches])
            peer.connection.requests.append(Request(batches, self.requests[-1]))

    def _written(self, batch: SentBatch) -> Written:
        topic = self.router._table.name_of(batch.topic)
        return Written(topic, batch.partition, batch.epoch, batch.base_sequence, records_of(self.slab, batch.segments))

    def node_of(self, slot: int) -> int:
        """The broker of a slot."""
        return next((node for node, its in self.router.dispatching._slots.pairs() if its == slot), -1)

    def answer(self, slot: int, *, kill_at: int | None = None) -> None:
        """The broker carries out the oldest request and answers it."""
        peer = self.peers.get(slot)
        if peer is None or peer.connection is None or not peer.connection.requests:
            return
        request = peer.connection.requests.popleft()
        codes = [self._carry_out(self.node_of(slot), batch) for batch in request.written]
        self._as_peer(slot, lambda: self._deliver(peer, request, codes), kill_at=kill_at)

    def _deliver(self, peer: Peer, request: Request, codes: list[int]) -> None:
        for batch, written, code in zip(request.batches, request.written, codes, strict=True):
            ack = PartitionAck(written.topic, batch.partition, code, record_errors=self._culprits(written, code))
            peer.core.on_ack(batch, ack, self.now_ms / 1000)

    def _culprits(self, batch: Written, code: int) -> tuple[tuple[int, str | None], ...]:
        if code != INVALID_RECORD or not self.names_culprits:
            return ()
        return tuple((at, None) for at in self.cluster.culprits(batch))

    def _carry_out(self, node: int, batch: Written) -> int:
        if not self.errors or self.cluster.culprits(batch) or self._is_settled(batch, self.errors[0][0]):
            return self.cluster.produce(node, batch)
        code, is_written = self.errors.popleft()
        return (self.cluster.produce(node, batch) or code) if is_written else code

    def _is_settled(self, batch: Written, code: int) -> bool:
        """No broker refuses for good what it has written, or will write when it gets to a stray request."""
        return self.cluster.has(batch) or (bool(self.stray) and code in FINAL)

    def lose(self, slot: int, *, carried_out: int = 0, kill_at: int | None = None) -> None:
        """A connection breaks; the broker has carried out so many of its requests, and may carry out the others."""
        peer = self.peers.get(slot)
        if peer is None or peer.connection is None:
            return
        for _ in range(min(carried_out, len(peer.connection.requests))):
            for batch in peer.connection.requests.popleft().written:
                self.cluster.produce(self.node_of(slot), batch)
        self._give_up_connection(slot, peer)
        self._as_peer(slot, peer.core.on_lost, kill_at=kill_at)

    def _give_up_connection(self, slot: int, peer: Peer) -> None:
        if peer.connection is not None and peer.connection.requests:
            self.stray.append((self.node_of(slot), peer.connection.requests))
        peer.connection = None

    def carry_out_stray(self) -> None:
        """A broker gets to a request whose sender has long gone."""
        if self.stray:
            node, requests = self.rng.choice(self.stray)
            for batch in requests.popleft().written:
                self.cluster.produce(node, batch)
            self.stray = [(node, requests) for node, requests in self.stray if requests]

    def pass_time(self, ms: int) -> None:
        """Time passes for everybody."""
        self.now_ms += ms
        self.input.now_ms += ms
        self._as_router(lambda: None)
        for slot in list(self.peers):
            self._after_peer(slot)

    # --- the end -----------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """No more harm: every broker is up, every partition has a leader."""
        self.errors.clear()
        self.down.clear()
        for place, node in self.cluster.leaders.items():
            self.cluster.leaders[place] = node or BROKERS[0]

    def run_dry(self, rounds: int = 3000) -> None:
        """Until everything is settled."""
        for _ in range(rounds):
            if self.is_settled():
                return
            self.step_all()
        raise AssertionError(f"not settled after {rounds} rounds: {self.held()}")

    def boot(self) -> None:
        """Until router and dispatchers know each other."""
        for _ in range(100):
            self.step_all()
            peers = self.router.dispatching._peers.values()
            if 0 < len(self.peers) == sum(peer.flowing for peer in peers):
                return
        raise AssertionError("router and dispatchers do not come to terms")

    def step_all(self) -> None:
        """Everybody does something."""
        self.ring()
        self.answer_fetch()
        self.router_hears()
        for slot in list(self.peers):
            self.peer_hears(slot)
            self.peer_sends(slot)
            self.answer(slot)
        self.pass_time(10)

    def held(self) -> dict[str, int]:
        """Messages that are not settled, by state."""
        counts: dict[str, int] = defaultdict(int)
        for content in contents(self.slab):
            if content.state not in {State.DELIVERED, State.DISCARDED}:
                counts[content.state.name] += 1
        return dict(counts)

    def is_settled(self) -> bool:
        """Whether everything received is delivered or discarded."""
        return not self.doorbells and not self.held()

    def check(self, *, duplicates: bool = False) -> None:
        """Everything that was received and not discarded is in the logs once and in order."""
        seen: list[int] = []
        for (topic, partition), state in self.cluster.partitions.items():
            last: dict[object, int] = {}
            for arrival, key in state.log:
                stream = None if key is None else key % self.topics[topic]
                if not duplicates:
                    assert last.get(stream, -1) < arrival, f"{topic!r}-{partition}: {arrival} after {last[stream]}"
                last[stream] = arrival
                assert self.received[arrival] == (topic, key)
                seen.append(arrival)
        if not duplicates:
            assert len(seen) == len(set(seen))
        assert len(self.received) - len(set(seen)) == sum(read_books(self.slab).discarded.values())

    def close(self) -> None:
        """Give the memory back."""
        self.slab.words = self.words._words
