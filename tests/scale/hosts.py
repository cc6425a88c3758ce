"""A host of the simulation: router and dispatchers of `support.flow`, and the timers and connections of the processes.

The network takes no time. A connection to a broker that is down fails at once, as with a process that has ended.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.config.sections import Delivery
from bruce_mp.router.backoff import RouterBackoff
from bruce_mp.router.metadata_refresh import periodic_delay_ms, spread_delay_ms
from support.flow import World
from support.flow_parts import quick_config
from support.machine import BROKERS
from support.slabs import datagram

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["Host", "Requests"]

LOGS: Final = b"logs"
TOPICS: Final = {b"clicks": BROKERS * 2, LOGS: BROKERS}
DELIVERY: Final = Delivery(start_spread_s=120)
MESSAGE_EVERY_MS: Final = 20_000
NEVER: Final = 1 << 60
MOST_ROUNDS: Final = 50


class Requests:
    """The requests by second, in total and of each broker; `refused` has those that a broker which is down refused."""

    def __init__(self) -> None:
        self.by_second: Counter[int] = Counter()
        self.by_kind: Counter[str] = Counter()
        self.refused = 0
        self.by_broker: defaultdict[int, Counter[int]] = defaultdict(Counter)

    def record(self, kind: str, node: int, now_ms: int, *, is_down: bool) -> None:
        if is_down:
            self.refused += 1
            return
        self.by_second[now_ms // 1000] += 1
        self.by_kind[kind] += 1
        self.by_broker[node][now_ms // 1000] += 1


class Host(World):
    """One host, which sends a message at an even pace from a random moment on; `requests` counts for all hosts."""

    def __init__(self, slab: Slab, requests: Requests, seed: int, failover_spread_s: int = 0) -> None:
        self.count = requests
        self.dice = random.Random(seed)
        self.refresh_at = NEVER
        self.failed: set[int] = set()
        """Brokers that failed at a fetch, which the next fetch tries last."""
        self.fetch_backoff = RouterBackoff(*DELIVERY.backoff, self.dice)
        delivery = msgspec.structs.replace(DELIVERY, failover_spread_s=failover_spread_s)
        super().__init__(slab, TOPICS, quick_config(delivery=delivery), seed=seed)
        self.message_at = self.now_ms + self.dice.randrange(MESSAGE_EVERY_MS)

    # --- the work of the processes around the cores ------------------------------------------------------------------

    def _request(self, slot: int) -> None:
        peer = self.peers[slot]
        if peer.connection is None and peer.core.wants_connection:
            node = self.node_of(slot)
            self.count.record("connection", node, self.now_ms, is_down=node in self.down)
        super()._request(slot)

    def answer_fetch(self, *, kill_at: int | None = None) -> None:
        if self.fetch_started is None:
            return
        # As MetadataFetcher.start() does. The port of a broker in the simulation is its number.
        shuffled = self.dice.sample(BROKERS, len(BROKERS))
        last = self.failed | {address.port for address in self.router.brokers_to_ask_last}
        for node in sorted(shuffled, key=last.__contains__):
            self.count.record("metadata", node, self.now_ms, is_down=node in self.down)
            if node in self.down:
                self.failed.add(node)
            else:
                self.failed.discard(node)
                super().answer_fetch(kill_at=kill_at)
                self.refresh_at = self.now_ms + periodic_delay_ms(DELIVERY.metadata_refresh_interval_min, self.dice)
                return
        self.fetch_started = None
        delay_ms = self.fetch_backoff.next_delay_ms(self.now_ms)
        self._as_router(lambda: self.router.on_fetch_failed(self.now_ms, delay_ms))

    # --- time --------------------------------------------------------------------------------------------------------

    def run(self, now_ms: int) -> int:
        """Do all work that is due, and return the time of the next."""
        self.now_ms = self.input.now_ms = now_ms
        if self.message_at <= now_ms:
            self.send_one(self.dice.choice(list(TOPICS)))
            self.message_at += MESSAGE_EVERY_MS
        if self.refresh_at <= now_ms:
            self.refresh_at = NEVER
            self.router.request_refresh(now_ms)
        self.advance_clock(0)
        for _ in range(MOST_ROUNDS):
            self._round()
            if not self._is_busy():
                break
        return max(now_ms + 1, min(self._due()))

    def _round(self) -> None:
        self.ring()
        self.answer_fetch()
        while any(self.to_router):
            self.deliver_to_router()
        for slot in list(self.peers):
            while any(self.to_peer[slot]):
                self.deliver_to_dispatcher(slot)
            self.send_request(slot)
            self.answer(slot)

    def _is_busy(self) -> bool:
        return bool(
            self.doorbells
            or any(self.to_router)
            or any(any(self.to_peer[slot]) for slot in self.peers)
            or any(peer.connection for peer in self.peers.values())
            or (self.fetch_started is not None)
        )

    def _due(self) -> list[int]:
        timers = [self.router.fetch_due_ms, self.router.due_ms]
        for peer in self.peers.values():
            timers.append(peer.core.batch_due_ms)
            if peer.core.retry_at is not None:
                timers.append(int(peer.core.retry_at * 1000) + 1)
        return [self.message_at, self.refresh_at, *(due for due in timers if due is not None)]

    def send_to_each_broker(self) -> None:
        """Send a message to each partition of a topic, as a host with much traffic does all the time."""
        self.send([(LOGS, datagram(LOGS, partition_key=key), key) for key in range(len(TOPICS[LOGS]))])

    # --- events ------------------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Restart all processes; the first fetch waits as `router/process.py` lets it."""
        self.kill_all()
        self.fetch_started = None
        spread_s = DELIVERY.start_spread_s
        self.router.postpone_first_fetch(self.now_ms + spread_delay_ms(spread_s, self.dice))

    def lose_broker(self, node: int, now_ms: int) -> None:
        """Break the connection to a broker that ends."""
        self.now_ms = self.input.now_ms = now_ms
        self.down.add(node)
        for slot, peer in list(self.peers.items()):
            if peer.connection is not None and self.node_of(slot) == node:
                self.break_connection(slot)
