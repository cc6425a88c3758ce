"""Choose the version of each API (kind of request): the highest version supported by both the broker and the daemon.

The broker lists its versions in the response to the request ApiVersions.  A broker of Kafka 4 also lists the Produce
versions 0 to 2, because old releases of librdkafka require this, but closes the connection if such a request comes.  So
the daemon uses these versions only if the broker lists no later ones.  Produce requests of version 0 or 1 contain
message sets of format 0, version 2 contains message sets of format 1, and later versions contain record batches.

A broker before 0.10 does not know the request ApiVersions; `BEFORE_API_VERSIONS` has the versions of the other APIs
that all such brokers accept.

`API_VERSIONS_TO_TRY` lists the versions of the request ApiVersions itself, in the order in which the daemon tries them.
A broker that does not support version 3 responds with error 35 (UNSUPPORTED_VERSION).
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
    "API_VERSIONS_TO_TRY",
    "BEFORE_API_VERSIONS",
    "METADATA",
    "PRODUCE",
    "BrokerCapabilities",
    "NoCommonVersionError",
    "choose_versions",
]

# Kafka's keys of the APIs.
PRODUCE: Final = 0
METADATA: Final = 3
SASL_HANDSHAKE: Final = 17
CREATE_TOPICS: Final = 19
INIT_PRODUCER_ID: Final = 22
SASL_AUTHENTICATE: Final = 36
API_VERSIONS_TO_TRY: Final = (3, 0)

SUPPORTED_VERSIONS: Final = {
    PRODUCE: ApiRange(produce_request.FIRST_VERSION, produce_request.LAST_VERSION),
    METADATA: ApiRange(0, 12),
    CREATE_TOPICS: ApiRange(0, 7),
    INIT_PRODUCER_ID: ApiRange(0, 5),
    SASL_HANDSHAKE: ApiRange(0, 1),
    SASL_AUTHENTICATE: ApiRange(0, 2),
}
API_NAMES: Final = {PRODUCE: "Produce", METADATA: "Metadata", INIT_PRODUCER_ID: "InitProducerId"}
FIRST_PRODUCE_VERSIONS: Final = {Codec.LZ4: 2, Codec.ZSTD: 7}
"""The first version of Produce that accepts a codec; all versions accept the codecs that are not listed.

Brokers that do not support version 2 expect a wrong checksum in LZ4 frame headers.  Brokers answer zstd in a version
before 7 with error 76 (KIP-110)."""

# The first versions of Produce and Metadata with the properties that their names describe.
FIRST_PRODUCE_WITH_CLIENT_THROTTLING: Final = 6
FIRST_METADATA_WITHOUT_CREATION: Final = 4
FIRST_METADATA_WITH_CLUSTER_ID: Final = 2

FALLBACK_CODEC: Final = Codec.SNAPPY
"""The codec for a broker that does not accept the configured codec.  All brokers accept Snappy and gzip, and Snappy
costs less CPU."""


class NoCommonVersionError(RemoteProtocolError):
    """Broker and daemon support no common version of a required API."""


class BrokerCapabilities(Struct, frozen=True):
    """The versions of the APIs that the daemon uses with a broker.

    A version is None if the broker does not have the API: InitProducerId before Kafka 0.11, CreateTopics before 0.10.1,
    SaslHandshake before 0.10, SaslAuthenticate before 1.0.
    """

    produce_version: int
    metadata_version: int
    init_producer_id_version: int | None
    create_topics_version: int | None = None
    sasl_handshake_version: int | None = None
    sasl_authenticate_version: int | None = None

    @property
    def has_producer_ids(self) -> bool:
        """True if the broker assigns producer ids, with which it recognizes repeated batches."""
        return self.init_producer_id_version is not None

    @property
    def can_name_topics(self) -> bool:
        """True if a Metadata request can name a topic without creating it on the broker."""
        return self.metadata_version >= FIRST_METADATA_WITHOUT_CREATION

    @property
    def expects_client_throttling(self) -> bool:
        """True if a throttling broker responds at once, and expects the client to wait before the next request.

        Older brokers delay the response instead (KIP-219).
        """
        return self.produce_version >= FIRST_PRODUCE_WITH_CLIENT_THROTTLING

    @property
    def message_format(self) -> MessageFormat:
        if self.produce_version >= produce_request.FIRST_VERSION_WITH_BATCHES:
            return MessageFormat.BATCHES
        has_timestamps = self.produce_version >= produce_request.FIRST_VERSION_WITH_TIMESTAMPS
        return MessageFormat.V1 if has_timestamps else MessageFormat.V0

    def accepts(self, codec: Codec) -> bool:
        return self.produce_version >= FIRST_PRODUCE_VERSIONS.get(codec, 0)

    def accepted_codec(self, codec: Codec) -> Codec:
        """Return `codec`, or `FALLBACK_CODEC` if the broker does not accept `codec`."""
        return codec if self.accepts(codec) else FALLBACK_CODEC


BEFORE_API_VERSIONS: Final = BrokerCapabilities(produce_version=0, metadata_version=0, init_producer_id_version=None)
"""The versions of Kafka 0.8 and 0.9."""


def choose_versions(broker_apis: Mapping[int, ApiRange]) -> BrokerCapabilities:
    """Choose the highest common version of each API that the daemon uses.

    `broker_apis` has the versions that the broker lists, by API key.  Raises NoCommonVersionError if there is no common
    version of Produce or Metadata, which are required.
    """
    # The order is that of the fields of BrokerCapabilities.
    optional = (INIT_PRODUCER_ID, CREATE_TOPICS, SASL_HANDSHAKE, SASL_AUTHENTICATE)
    return BrokerCapabilities(
        _required_version(PRODUCE, broker_apis),
        _required_version(METADATA, broker_apis),
        *(_highest_common(SUPPORTED_VERSIONS[api], broker_apis.get(api)) for api in optional),
    )


def _required_version(api: int, broker_apis: Mapping[int, ApiRange]) -> int:
    ours, theirs = SUPPORTED_VERSIONS[api], broker_apis.get(api)
    version = _highest_common(ours, theirs)
    if version is None:
        offer = "does not offer it" if theirs is None else f"offers v{theirs.lowest} to v{theirs.highest}"
        raise NoCommonVersionError(
            f"The daemon supports {API_NAMES[api]} v{ours.lowest} to v{ours.highest}, the broker {offer}. "
            "If it is a controller, name a broker instead; if it is newer than this release, update the daemon."
        )
    return version


def _highest_common(ours: ApiRange, theirs: ApiRange | None) -> int | None:
    if theirs is None:
        return None
    highest = min(ours.highest, theirs.highest)
    return highest if highest >= max(ours.lowest, theirs.lowest) else None
