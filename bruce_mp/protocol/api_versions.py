"""Which version of each API to use with a broker: the highest that it advertises and that we speak.

What a broker advertises is not quite what it takes.  Kafka 4 still lists Produce 0 to 2 (an old librdkafka would give
up without them) and closes the connection on them.  They are used only with a broker that has nothing later: with
Produce 0 and 1 it gets message sets of format 0, with 2 of format 1, and from 3 on record batches.

A broker before 0.10 cannot be asked; `BEFORE_API_VERSIONS` is what all of those take.

`DOWNGRADE` is the order in which ApiVersions itself is asked: a broker that does not know version 3 answers error 35.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.protocol import produce_request
from bruce_mp.protocol.compression import Codec
from bruce_mp.protocol.kafka_types import ApiRange
from bruce_mp.protocol.message_set import MessageFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BEFORE_API_VERSIONS",
    "DOWNGRADE",
    "METADATA",
    "PRODUCE",
    "BrokerAbilities",
    "NoCommonVersionError",
    "choose_versions",
]

PRODUCE: Final = 0
METADATA: Final = 3
SASL_HANDSHAKE: Final = 17
CREATE_TOPICS: Final = 19
INIT_PRODUCER_ID: Final = 22
SASL_AUTHENTICATE: Final = 36
DOWNGRADE: Final = (3, 0)

SPOKEN: Final = {
    PRODUCE: ApiRange(produce_request.FIRST_VERSION, produce_request.LAST_VERSION),
    METADATA: ApiRange(0, 12),
    CREATE_TOPICS: ApiRange(0, 7),
    INIT_PRODUCER_ID: ApiRange(0, 5),
    SASL_HANDSHAKE: ApiRange(0, 1),
    SASL_AUTHENTICATE: ApiRange(0, 2),
}
API_NAMES: Final = {PRODUCE: "Produce", METADATA: "Metadata", INIT_PRODUCER_ID: "InitProducerId"}
FIRST_PRODUCE: Final = {Codec.LZ4: 2, Codec.ZSTD: 7}
"""The first produce request that a codec can be used with; codecs not listed go with all.  LZ4 is older, but with its
own idea of the checksum in a frame's header.  An earlier request with zstd is answered with error 76 (KIP-110)."""

FIRST_PRODUCE_THROTTLED_BY_US: Final = 6

SUBSTITUTE: Final = Codec.SNAPPY
"""Every broker takes it, and it costs the least."""


class NoCommonVersionError(RemoteProtocolError):
    """We and the broker share no version of an API that is needed."""


class BrokerAbilities(Struct, frozen=True):
    """What was agreed with a broker.

    `init_producer_id_version` is None if it knows no producer ids, `create_topics_version` if nobody can ask it to make
    topics: Kafka before 0.10.1.  `sasl_handshake_version` is None before 0.10, `sasl_authenticate_version` before 1.0.
    """

    produce_version: int
    metadata_version: int
    init_producer_id_version: int | None
    create_topics_version: int | None = None
    sasl_handshake_version: int | None = None
    sasl_authenticate_version: int | None = None

    @property
    def idempotence(self) -> bool:
        """Whether it recognises a batch that it already has."""
        return self.init_producer_id_version is not None

    @property
    def leaves_throttling_to_us(self) -> bool:
        """Whether it answers at once and says how long to wait; older ones have waited themselves by then (KIP-219)."""
        return self.produce_version >= FIRST_PRODUCE_THROTTLED_BY_US

    @property
    def message_format(self) -> MessageFormat:
        """How messages have to be written for it."""
        if self.produce_version >= produce_request.FIRST_VERSION_WITH_BATCHES:
            return MessageFormat.BATCHES
        has_timestamps = self.produce_version >= produce_request.FIRST_VERSION_WITH_TIMESTAMPS
        return MessageFormat.V1 if has_timestamps else MessageFormat.V0

    def takes(self, codec: Codec) -> bool:
        """Whether it takes what `codec` has compressed."""
        return self.produce_version >= FIRST_PRODUCE.get(codec, 0)

    def substitute(self, codec: Codec) -> Codec:
        """`codec`, or one that the broker takes in its place."""
        return codec if self.takes(codec) else SUBSTITUTE


BEFORE_API_VERSIONS: Final = BrokerAbilities(produce_version=0, metadata_version=0, init_producer_id_version=None)
"""Of Kafka 0.8 and 0.9."""


def choose_versions(apis: Mapping[int, ApiRange]) -> BrokerAbilities:
    """Raises NoCommonVersionError."""
    optional = (INIT_PRODUCER_ID, CREATE_TOPICS, SASL_HANDSHAKE, SASL_AUTHENTICATE)
    return BrokerAbilities(
        _required(PRODUCE, apis),
        _required(METADATA, apis),
        *(_highest_common(SPOKEN[api], apis.get(api)) for api in optional),
    )


def _required(api: int, apis: Mapping[int, ApiRange]) -> int:
    version = _highest_common(SPOKEN[api], apis.get(api))
    if version is None:
        ours, theirs = SPOKEN[api], apis.get(api)
        offer = "does not offer it" if theirs is None else f"offers v{theirs.lowest} to v{theirs.highest}"
        raise NoCommonVersionError(
            f"We speak {API_NAMES[api]} v{ours.lowest} to v{ours.highest}, the broker {offer}. "
            "If it is a controller, name a broker instead; if it is newer than this release, update this one."
        )
    return version


def _highest_common(ours: ApiRange, theirs: ApiRange | None) -> int | None:
    if theirs is None:
        return None
    highest = min(ours.highest, theirs.highest)
    return highest if highest >= max(ours.lowest, theirs.lowest) else None
