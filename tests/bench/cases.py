"""The measured cases: one row a case, in groups that the command line can name.

A case is a load and the site that has to carry it.  Cases of a group with the same site share a daemon.  The plain
receiver gets the same messages from the same sender just before, as datagrams: one floor for all, but for the cases of
an ordinary host, with a plain receiver as floor of their own transport.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import product
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = [
    "BRUCE",
    "GROUPS",
    "GROWTH",
    "IDLE",
    "Case",
    "Growth",
    "Site",
    "Transport",
    "case_names",
    "choose_cases",
]

Transport = Literal["datagram", "unix", "tcp"]

IDLE: Final = "idle"
"""The name under which the idle daemon can be chosen like a case."""
BRUCE: Final = "bruce"
PACED_S: Final = 3
MIN_RATE: Final = 100
"""A lower rate gives too few messages for a 99th percentile."""
GROWTH_BYTES: Final = 30_000_000
LONG_GROWTH: Final = 4
"""Factor for the length of a load with many topics or partitions, so that each gets enough messages."""
A_WRITE: Final = 32
"""Messages in one write of a client on a stream, as of a client with a buffer."""


def batched(time_ms: int, size: str = "64k", **more: object) -> Mapping[str, object]:
    """Return settings for combined topics, with this age and size limit of batches."""
    limits = {"batching.configs.bench.time_ms": time_ms, "batching.configs.bench.bytes": size}
    return {**limits, "batching.combined.config": "bench", **more}


def compressed(codec: str) -> Mapping[str, object]:
    """Return the common batching settings, with all topics compressed."""
    return {**COMBINED, "compression.configs.bench.type": codec, "compression.default": "bench"}


COMBINED: Final = batched(500)
PER_TOPIC: Final[Mapping[str, object]] = {
    "batching.configs.bench.time_ms": 500,
    "batching.configs.bench.bytes": "64k",
    "batching.default.action": "per_topic",
    "batching.default.config": "bench",
}
LARGE: Final = 102_400
LARGE_DATAGRAMS: Final[Mapping[str, object]] = {
    **COMBINED,
    "input.max_datagram_size": 128 << 10,
    "input.allow_large_datagrams": "true",
}
"""Settings for datagrams above the default limit, which a sender reaches with the kernel's largest default buffer."""
UNBATCHED: Final[Mapping[str, object]] = {"batching.default.action": "none"}
AS_INSTALLED: Final[Mapping[str, object]] = {}


@dataclass(frozen=True, slots=True)
class Site:
    """The processes of a case: the daemon with its settings, the brokers and their topics.

    `ack_delay_ms`: delay of a broker's answer.  `filled`: percent of the slab that hold messages of a topic that
    has no leader.  `streams`: the daemon accepts connections too.  `keeps_records`: the brokers keep the records.
    """

    settings: Mapping[str, object] = field(default_factory=lambda: COMBINED)
    topics: int = 10
    partitions: int = 4
    brokers: int = 1
    ack_delay_ms: int = 0
    filled: int = 0
    streams: bool = False
    keeps_records: bool = False

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The topics of the messages."""
        return tuple(f"bench-{number}" for number in range(self.topics))

    @property
    def leading_brokers(self) -> int:
        """The number of brokers that lead a partition of the sink, where each topic begins at the next broker."""
        return min(self.brokers, self.topics + self.partitions - 1)


@dataclass(frozen=True, slots=True)
class Case:
    """`messages` of `size` bytes, header included, by `senders` processes; `rate` a second in all, 0 = flat out.

    `per_write`: messages that a sender on a stream writes at once.  `percent`: the rate is this share of the
    throughput of the group's first case, and the time from send to ack is measured.  `keyed`: PartitionKey messages.
    `by`: the program that carries the messages; `peers` lists the others beside the daemon.  `largest`: the sizes are
    spread evenly from `size` to this one.  `timed`: the time from send to ack is measured.  `floor`: the transport of
    the plain receiver.  `in_full`: left out of a quick run.
    """

    name: str
    size: int
    messages: int
    senders: int = 1
    rate: int = 0
    transport: Transport = "datagram"
    per_write: int = 1
    percent: int = 0
    keyed: bool = False
    by: str = BRUCE
    site: Site = Site()
    largest: int = 0
    timed: bool = False
    floor: Transport = "datagram"
    in_full: bool = False

    def shortened(self, share: int) -> Case:
        """Return the case with one `share`th of the messages."""
        return replace(self, messages=self.messages // share)

    @property
    def stamped(self) -> bool:
        """True if each message carries its send time."""
        return self.percent > 0 or self.timed

    def paced(self, highest: float) -> Case:
        """Return the case at its share of the highest rate, for some seconds."""
        rate = max(MIN_RATE, int(highest * self.percent / 100))
        return replace(self, rate=rate, messages=min(self.messages, rate * PACED_S))


class Growth(NamedTuple):
    """Two cases that differ in one property, which should not change the cost."""

    what: str
    small: Case
    large: Case


def grows(what: str, small: Site, large: Site, *, size: int = 100, keyed: bool = False) -> Growth:
    """The same load at two sites."""
    share = LONG_GROWTH if large.topics > small.topics or keyed else 1
    few = Case(f"{what} <", size, share * GROWTH_BYTES // (size + 100), keyed=keyed, site=small)
    return Growth(what, few, replace(few, name=f"{what} >", site=large))


SHORT: Final = batched(100)
"""Batching settings for messages that must fit into a tenth of the slab while they wait for their batch."""

LARGE_SLAB: Final = {**COMBINED, "slab.size": "512m"}
"""Settings for so many topics that the chunks of their lanes would fill a quarter of the usual slab."""
ONE_PARTITION: Final = Site(topics=1, partitions=1)
GROWTH: Final = (
    grows("1-1000 topics", Site(topics=1), Site(topics=1000)),
    grows("1-1000 topics 1KB", Site(topics=1), Site(topics=1000), size=1024),
    grows("1-1000 own batches", Site(PER_TOPIC, topics=1), Site(PER_TOPIC, topics=1000)),
    grows("1-5000 topics", Site(LARGE_SLAB, topics=1), Site(LARGE_SLAB, topics=5000)),
    grows("1-10000 partitions", ONE_PARTITION, Site(topics=1, partitions=10_000)),
    grows("1-10000 keyed", ONE_PARTITION, Site(topics=1, partitions=10_000), keyed=True),
    Growth("1-256 senders", Case("1-256 senders <", 100, 150_000), Case("1-256 senders >", 100, 150_000, senders=256)),
    grows("0-90 % of the slab", Site(SHORT, filled=0), Site(SHORT, filled=90)),
    grows("64m-16g slab", Site({**COMBINED, "slab.size": "64m"}), Site({**COMBINED, "slab.size": "16g"})),
    grows("1-100 brokers", Site(partitions=100, brokers=1), Site(partitions=100, brokers=100)),
)

LOADS: Final = (
    Case("100B", 100, 200_000),
    Case("1KB", 1024, 120_000),
    Case("10KB", 10_240, 24_000),
    Case("100B-20k/s", 100, 80_000, rate=20_000),
    Case("100B-2k/s", 100, 8_000, rate=2_000),
    Case("100B-64-senders", 100, 192_000, senders=64),
    Case("100B-per-topic", 100, 200_000, site=Site(PER_TOPIC)),
)
CONNECTED: Final = Site(streams=True)

STREAMS: Final = (
    Case("100B-unix", 100, 400_000, transport="unix", per_write=A_WRITE, site=CONNECTED),
    Case("1KB-unix", 1024, 150_000, transport="unix", per_write=A_WRITE, site=CONNECTED),
    Case("10KB-unix", 10_240, 24_000, transport="unix", per_write=A_WRITE, site=CONNECTED),
    Case("100B-unix-single", 100, 200_000, transport="unix", site=CONNECTED),
    Case("100B-tcp", 100, 400_000, transport="tcp", per_write=A_WRITE, site=CONNECTED),
    Case("1KB-tcp", 1024, 150_000, transport="tcp", per_write=A_WRITE, site=CONNECTED),
    Case("10KB-tcp", 10_240, 24_000, transport="tcp", per_write=A_WRITE, site=CONNECTED),
)
CODECS: Final = tuple(
    Case(f"1KB-{codec}", 1024, 120_000, site=Site(compressed(codec))) for codec in ("none", "snappy", "lz4", "zstd")
)
BROKERS: Final = (
    Case("100B-3-brokers", 100, 200_000, site=Site(brokers=3)),
    Case("1KB-3-brokers", 1024, 120_000, site=Site(brokers=3)),
    Case("100B-ack-50ms", 100, 200_000, site=Site(UNBATCHED, ack_delay_ms=50)),
    Case("1KB-ack-50ms", 1024, 120_000, site=Site(UNBATCHED, ack_delay_ms=50)),
)
LATENCY: Final = (
    Case("100B-flat-out", 100, 200_000, site=Site(AS_INSTALLED, keeps_records=True)),
    *(
        Case(f"batched-{share}%", 100, 200_000, percent=share, site=Site(AS_INSTALLED, keeps_records=True))
        for share in (1, 10, 50)
    ),
    *(
        Case(f"unbatched-{share}%", 100, 200_000, percent=share, site=Site(UNBATCHED, keeps_records=True))
        for share in (1, 10, 50)
    ),
)
PEERS: Final = tuple(
    Case(f"{name}-{by}", size, messages, by=by)
    for name, size, messages in (("100B", 100, 200_000), ("1KB", 1024, 100_000))
    for by in (BRUCE, "rsyslog", "kcat", "confluent-kafka", "kafka-python")
)

PACE: Final = 3_000
"""Messages a second of an ordinary host, from two senders."""
PACED_HOST_S: Final = 6
GRID_S: Final = 4


def host(topics: int, brokers: int, *, keeps_records: bool = False, unbatched: bool = False) -> Site:
    """Return a site with batches of 200 ms that combine all topics, but for the first topic if `unbatched`."""
    exception = {"batching.topics.bench-0.action": "none"} if unbatched else {}
    return Site(
        batched(200, "1m", **exception), topics=topics, brokers=brokers, streams=True, keeps_records=keeps_records
    )


def paced(name: str, site: Site, transport: Transport, *, largest: int = 0, timed: bool = False) -> Case:
    """Return the load of an ordinary host: messages of 50 to 3,000 bytes, or of 100 bytes without `largest`."""
    case = Case(name, 50 if largest else 100, PACE * PACED_HOST_S, 2, PACE, transport, site=site)
    return replace(case, largest=largest, timed=timed, floor=transport)


def cell(transport: Transport, senders: int, size: int, place: tuple[int, int, int]) -> Case:
    """Return a cell of the grid around the ordinary host; `place` is pace, topics and brokers."""
    rate, topics, brokers = place
    kind = "datagrams" if transport == "datagram" else f"stream-{senders}"
    name = f"{kind} {size}B {rate}/s {topics}t {brokers}b"
    case = Case(name, size, rate * GRID_S, senders, rate, transport, site=host(topics, brokers))
    return replace(case, floor=transport, in_full=True)


def cells(places: Iterable[tuple[int, int, int]]) -> Iterator[Case]:
    """Yield the cells of these places, for each transport and size."""
    return (cell(*way, size, place) for way in WAYS for size in (100, 1536) for place in places)


PACES: Final = (200, 1_000, PACE, 10_000, 30_000)
TOPICS: Final = (1, 10, 50, 200, 1_000)
BROKER_COUNTS: Final = (1, 3, 10)
GRID: Final = tuple(product(PACES, TOPICS, BROKER_COUNTS))
"""The places of the grid: pace, topics and brokers."""
AXES: Final = tuple(place for place in GRID if sum(map(int.__ne__, place, (PACE, 50, 3))) <= 1)
"""The places of which one property differs from the ordinary host's."""
WAYS: Final[tuple[tuple[Transport, int], ...]] = (("datagram", 2), ("unix", 2), ("unix", 10))
"""Transports of the grid, and how many senders each has."""
MIXED: Final = 3_000
ORDINARY: Final = (
    paced("datagrams-50t-3b", host(50, 3), "datagram", largest=MIXED),
    paced("datagrams-50t-1b", host(50, 1), "datagram", largest=MIXED),
    paced("datagrams-4t-1b", host(4, 1), "datagram", largest=MIXED),
    paced("stream-50t-3b", host(50, 3), "unix", largest=MIXED),
    paced("stream-4t-1b", host(4, 1), "unix", largest=MIXED),
    paced("datagrams-4t-1b-100B", host(4, 1), "datagram"),
    paced("stream-4t-1b-100B", host(4, 1), "unix"),
    paced("datagrams-50t-3b-1-unbatched", host(50, 3, unbatched=True), "datagram", largest=MIXED),
    paced("stream-50t-3b-1-unbatched", host(50, 3, unbatched=True), "unix", largest=MIXED),
    paced("datagrams-timed", host(50, 3, keeps_records=True), "datagram", largest=MIXED, timed=True),
    paced("stream-timed", host(50, 3, keeps_records=True), "unix", largest=MIXED, timed=True),
    *cells(AXES),
)

GROUPS: Final[Mapping[str, Sequence[Case]]] = {
    "loads": LOADS,
    "streams": STREAMS,
    "codecs": CODECS,
    "brokers": BROKERS,
    "latency": LATENCY,
    "ordinary": ORDINARY,
    "growth": [case for growth in GROWTH for case in (growth.small, growth.large)],
    "peers": PEERS,
}


ONLY_BY_NAME: Final[Mapping[str, Sequence[Case]]] = {
    "loads": (Case("100KB", LARGE, 3_000, site=Site(LARGE_DATAGRAMS)),),
    "ordinary": tuple(cells(place for place in GRID if place not in AXES)),
}
"""Cases that belong to a group but run only if the command line names them."""


def choose_cases(group: str, patterns: Sequence[str]) -> list[Case]:
    """Return the cases of a group whose names match a pattern; without patterns, those of the whole group."""
    if not patterns:
        return list(GROUPS[group])
    known = [*GROUPS[group], *ONLY_BY_NAME.get(group, ())]
    return [case for case in known if any(fnmatchcase(case.name, pattern) for pattern in patterns)]


def case_names() -> list[str]:
    """Return the names of all cases."""
    return [*(case.name for cases in GROUPS.values() for case in cases), IDLE]
