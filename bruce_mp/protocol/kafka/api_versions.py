"""The choice of API versions: the highest one that both the broker and this release support.

A broker may advertise versions that it refuses.  Kafka 4 still lists Produce 0 to 2, which an old librdkafka requires,
and closes the connection on them.  They serve only brokers without later ones: Produce 0 and 1 carry message sets of
format 0, Produce 2 those of format 1, and later versions record batches.

A broker before 0.10 has no ApiVersions; `BEFORE_API_VERSIONS` holds the versions that all of them accept.

`DOWNGRADE` is the order of the ApiVersions requests: a broker without version 3 responds with error 35.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.protocol.kafka import produce_request
from bruce_mp.protocol.kafka.compression import Codec
from bruce_mp.protocol.kafka.kafka_types import ApiRange
from bruce_mp.protocol.kafka.message_set import MessageFormat

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
"""The first produce request for each codec; all requests accept a codec that is not listed.  Earlier brokers expect a
wrong checksum in LZ4 frame headers.  An earlier request with zstd gets error 76 (KIP-110)."""

FIRST_PRODUCE_THROTTLED_BY_US: Final = 6

SUBSTITUTE: Final = Codec.SNAPPY
"""Every broker accepts Snappy, and it costs the least CPU."""


class NoCommonVersionError(RemoteProtocolError):
    """Broker and daemon share no version of a required API."""


class BrokerAbilities(Struct, frozen=True):
    """The agreed API versions of a broker.

    `init_producer_id_version` is None if the broker has no producer ids, `create_topics_version` before 0.10.1.
     `sasl_handshake_version` is None before 0.10, `sasl_authenticate_version` before 1.0.
    """

    produce_version: int
    metadata_version: int
    init_producer_id_version: int | None
    create_topics_version: int | None = None
    sasl_handshake_version: int | None = None
    sasl_authenticate_version: int | None = None

    @property
    def idempotence(self) -> bool:
        """True if the broker recognises repeated batches."""
        return self.init_producer_id_version is not None

    @property
    def leaves_throttling_to_us(self) -> bool:
        """True if the broker responds at once and the client waits; older brokers delay the response (KIP-219)."""
        return self.produce_version >= FIRST_PRODUCE_THROTTLED_BY_US

    @property
    def message_format(self) -> MessageFormat:
        """The message format that the broker accepts."""
        if self.produce_version >= produce_request.FIRST_VERSION_WITH_BATCHES:
            return MessageFormat.BATCHES
        has_timestamps = self.produce_version >= produce_request.FIRST_VERSION_WITH_TIMESTAMPS
        return MessageFormat.V1 if has_timestamps else MessageFormat.V0

    def takes(self, codec: Codec) -> bool:
        """Return True if the broker accepts `codec`."""
        return self.produce_version >= FIRST_PRODUCE.get(codec, 0)

    def substitute(self, codec: Codec) -> Codec:
        """Return `codec`, or `SUBSTITUTE` if the broker does not accept `codec`."""
        return codec if self.takes(codec) else SUBSTITUTE


BEFORE_API_VERSIONS: Final = BrokerAbilities(produce_version=0, metadata_version=0, init_producer_id_version=None)
"""The versions of Kafka 0.8 and 0.9."""


def choose_versions(apis: Mapping[int, ApiRange]) -> BrokerAbilities:
    """Choose the highest common version of each API; raise NoCommonVersionError if a required one has none."""
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
