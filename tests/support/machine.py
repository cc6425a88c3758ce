"""Router and dispatchers as plain objects around one slab, wired by queues that lose the frames of a killed process.

A process can be killed at any store of a word into the slab: the test drops its object and its unsent frames, and
starts a new object on the slab.  Only the test advances the clock.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.dispatcher.core import Dispatcher
from bruce_mp.ipc.frames import pack_parcels
from bruce_mp.pipeline.msg_debug import WireTap
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.protocol.kafka.kafka_types import ACKS_ALL
from bruce_mp.router.core import Router
from bruce_mp.slab import layout as lay
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.states import Role
from bruce_mp.telemetry.books import counter_total, read_books, row_integers
from bruce_mp.telemetry.counters import Counter
from support.fake_broker import FakeCluster, RequestBatch
from support.flow_parts import CrashingWords, FakeReporter, SimulatedCrashError, quick_config
from support.links import Nowhere
from support.slabs import Input

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from bruce_mp.config.model import Config
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import BuiltBatch
    from bruce_mp.slab.runs import Segment

__all__ = ["BROKERS", "ROUTER", "Machine", "Peer", "Request"]

BROKERS: Final = (1, 2, 3)
ROUTER: Final = -1


class Request(NamedTuple):
    """A produce request in transit: the dispatcher's batches, and their records in place of bytes."""

    batches: list[BuiltBatch]
    content: list[RequestBatch]


class Peer:
    """One dispatcher process."""

    def __init__(self, world: Machine, slot: int) -> None:
        row = ProcessRow.recover(world.slab, lay.ROW_FIRST_DISPATCHER + slot)
        incarnation = row.begin(1, 0)
        self.core = Dispatcher(world.slab, row, world.config, slot, world.reporter, incarnation=incarnation)  # type: ignore[arg-type]
        self.core.send_hello()
        self.connection: deque[Request] | None = None
        """The requests that have no answer, while there is a connection."""


class Machine:
    """Processes and their queues; `topics` has for each topic the leaders of its partitions, in order."""

    def __init__(
        self, slab: Slab, topics: Mapping[bytes, Sequence[int]], config: Config | None = None, *, seed: int = 0
    ) -> None:
        self.slab = slab
        self.config = config or quick_config()
        self.outdated: set[int] = set()
        """Processes without the latest accepted configuration: ROUTER, or slots."""
        self.rng = random.Random(seed)
        self.reporter = FakeReporter()
        self.topics = {topic: len(leaders) for topic, leaders in topics.items()}
        self.cluster = FakeCluster({(t, p): node for t, nodes in topics.items() for p, node in enumerate(nodes)})
        self.words = CrashingWords(slab)
        slab.words = self.words  # type: ignore[assignment]
        is_idempotent = self.config.kafka.required_acks == ACKS_ALL
        slab.words[lay.SUPER_IDEMPOTENCE >> 2] = 1 if is_idempotent else 2  # as `reset_producer_id` stores it
        self.input = Input(slab, linger_ms=0, topics=[])
        self.now_ms = self.input.now_ms = 1000
        self.down: set[int] = set()
        self.brokers = set(BROKERS)
        """The brokers in the metadata."""
        self.requests: list[list[RequestBatch]] = []
        """All requests sent so far."""
        self.names_refused = False
        """True if answers name the refused records."""
        self.stores_until_kill: dict[int, int] = {}
        """Number of stores until a process is killed: ROUTER, or a dispatcher by its slot."""
        self.errors: deque[tuple[int, bool]] = deque()
        """Error codes for the next batches, and a flag to write the batch nevertheless."""
        self.stray: list[tuple[int, deque[Request]]] = []
        """Requests of abandoned connections with their brokers, which may still execute them."""
        self.to_router: list[deque[bytes]] = []
        """Frames in transit from each dispatcher, alive or dead: the first one of a queue arrives next."""
        self.from_peer: dict[int, deque[bytes]] = {}
        """The queue of each running dispatcher."""
        self.to_peer: dict[int, list[deque[bytes]]] = defaultdict(list)
        """Frames in transit to each slot, a queue for each router, alive or dead."""
        self.peers: dict[int, Peer] = {}
        self.fetch_started: int | None = None
        """The start of the metadata fetch that has no answer yet, in ms."""
        self.fetches = 0
        self.received: dict[int, tuple[bytes, int | None]] = {}
        """Topic and partition key of each received message, by arrival number."""
        self._checked: tuple[int, list[int]] | None = None
        """The stores and the rows' versions of the last `check_counts`."""
        self._start_router()

    # --- starts and kills --------------------------------------------------------------------------------------------

    def _start_router(self) -> None:
        with self.words.acting(Role.ROUTER):
            row = ProcessRow.recover(self.slab, lay.ROW_ROUTER)
        incarnation = row.begin(1, 0)
        rng = random.Random(self.rng.random())
        self.router = Router(
            self.slab,
            row,
            self.config,
            incarnation=incarnation,
            reporter=self.reporter,  # type: ignore[arg-type]
            rng=rng,
            tap=WireTap(self.slab, Nowhere(), row.add),
        )
        self.fetch_started = None
        self.from_router: dict[int, deque[bytes]] = {}
        self.doorbells: deque[list[Segment]] = deque()
        self._as_router(lambda: self.router.recover(self.now_ms))

    def kill_router(self) -> None:
        """Kill the router; unprocessed frames and a part of those in transit are lost."""
        for queue in [*self.to_router]:
            self._drop_head(queue)
        for queue in self.from_router.values():
            self._drop_tail(queue)
        self._start_router()

    def kill_peer(self, slot: int) -> None:
        """Kill a dispatcher; its successor starts at once."""
        peer = self.peers.pop(slot, None)
        if peer is None:
            return
        self._give_up_connection(slot, peer)
        for queue in self.to_peer[slot]:
            self._drop_head(queue)
        self._drop_tail(self.from_peer.pop(slot))
        self._start_peer(slot)

    def kill_all(self) -> None:
        """Kill all processes together; all frames in transit are lost."""
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
        queue: deque[bytes] = deque()
        self.to_router.append(queue)
        self.from_peer[slot] = queue
        with self.words.acting(Role.DISPATCHER):
            self.peers[slot] = Peer(self, slot)
            self._after_peer(slot)

    def _drop_head(self, queue: deque[bytes]) -> None:
        for _ in range(self.rng.randint(0, len(queue))):
            queue.popleft()

    def _drop_tail(self, queue: deque[bytes]) -> None:
        for _ in range(self.rng.randint(0, len(queue))):
            queue.pop()

    def _as_router(self, action: Callable[[], object], *, kill_at: int | None = None) -> None:
        if not self._is_completed(ROUTER, [action, self._after_router], kill_at):
            self.kill_router()
            self.check_counts()

    def _as_peer(self, slot: int, action: Callable[[], object], *, kill_at: int | None = None) -> None:
        if not self._is_completed(slot, [action, lambda: self._after_peer(slot)], kill_at):
            self.kill_peer(slot)
            self.check_counts()

    def check_counts(self) -> None:
        """Check that the process rows and the state words have the same messages in each stage.

        Without a store since the last check the result is the same; such steps are most of a pause.  Of the stores of
        compiled kernels only transactions are noticed.  Words of damaged runs cannot be counted; they are quarantined.
        """
        stores = (self.words.stores, row_integers(self.slab, lay.ROW_VERSION))
        if stores == self._checked:
            return
        self._checked = stores
        if not counter_total(self.slab, Counter.RefusedDamagedPlace):
            assert read_books(self.slab).held == count_books(self.slab).held

    def _is_completed(self, process: int, actions: Iterable[Callable[[], object]], kill_at: int | None) -> bool:
        """Do the actions of a process, and return False if a kill at a store ends them."""
        has_plan = kill_at is None and process in self.stores_until_kill
        self.words.left = self.stores_until_kill.pop(process) if has_plan else kill_at
        try:
            with self.words.acting(Role.ROUTER if process == ROUTER else Role.DISPATCHER):
                for action in actions:
                    action()
        except SimulatedCrashError:
            return False
        finally:
            if has_plan and self.words.left is not None:  # the actions made fewer stores
                self.stores_until_kill[process] = self.words.left
            self.words.left = None
        return True

    # --- work of processes after each round --------------------------------------------------------------------------

    def _after_router(self) -> None:
        self.router.flush_due(self.now_ms)
        for slot, parcels in self.router.drain_outbox().items():
            if slot not in self.from_router:
                self.from_router[slot] = deque()
                self.to_peer[slot].append(self.from_router[slot])
            self.from_router[slot].append(pack_parcels(parcels))
        due = self.router.fetch_due_ms
        if self.fetch_started is None and due is not None and due <= self.now_ms:
            self.fetch_started = self.now_ms
            self.fetches += 1
            self.router.on_fetch_started(self.now_ms)
        wanted = self.router.dispatchers_to_run()
        if wanted is not None:
            self._run_dispatchers(set(wanted))

    def _run_dispatchers(self, wanted: set[int]) -> None:
        """Start and stop dispatchers, so that those of the wanted slots run."""
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

    def node_of(self, slot: int) -> int:
        """Return the broker of a slot."""
        return next((node for node, of_node in self.router._assignments._slots.items() if of_node == slot), -1)

    def _give_up_connection(self, slot: int, peer: Peer) -> None:
        if peer.connection:
            self.stray.append((self.node_of(slot), peer.connection))
        peer.connection = None
