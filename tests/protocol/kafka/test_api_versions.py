"""The choice of API versions, with the advertised ranges of real brokers."""

from __future__ import annotations

import pytest

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.protocol.kafka.api_versions import (
    BEFORE_API_VERSIONS,
    BrokerCapabilities,
    choose_versions,
)
from bruce_mp.protocol.kafka.compression import Codec
from bruce_mp.protocol.kafka.kafka_types import ApiRange
from bruce_mp.protocol.kafka.message_set import MessageFormat


def advertised(
    produce: tuple[int, int],
    metadata: tuple[int, int],
    producer_id: tuple[int, int] | None,
    create_topics: tuple[int, int] | None = None,
) -> dict[int, ApiRange]:
    apis = {0: ApiRange(*produce), 1: ApiRange(0, 4), 3: ApiRange(*metadata), 18: ApiRange(0, 3)}
    for api, versions in ((22, producer_id), (19, create_topics)):
        apis |= {api: ApiRange(*versions)} if versions is not None else {}
    return apis


@pytest.mark.parametrize(
    ("release", "apis", "chosen"),
    [
        ("0.10.0.1", advertised((0, 2), (0, 1), None), BrokerCapabilities(2, 1, None)),
        ("0.10.2.2", advertised((0, 2), (0, 2), None, (0, 1)), BrokerCapabilities(2, 2, None, 1)),
        ("0.11.0.3", advertised((0, 3), (0, 4), (0, 0)), BrokerCapabilities(3, 4, 0)),
        ("1.1.1", advertised((0, 5), (0, 5), (0, 0)), BrokerCapabilities(5, 5, 0)),
        ("2.8.2", advertised((0, 9), (0, 11), (0, 4), (0, 7)), BrokerCapabilities(9, 11, 4, 7)),
        ("3.9.2", advertised((0, 11), (0, 12), (0, 5)), BrokerCapabilities(11, 12, 5)),
        (
            "4.3.1, which closes on Produce 0 to 2",
            advertised((0, 13), (0, 13), (0, 6), (2, 7)),
            BrokerCapabilities(12, 12, 5, 7),
        ),
        ("without producer ids", advertised((0, 9), (0, 9), None), BrokerCapabilities(9, 9, None)),
    ],
)
def test_choose_versions_takes_the_highest_common_version(
    release: str, apis: dict[int, ApiRange], chosen: BrokerCapabilities
) -> None:
    assert choose_versions(apis) == chosen, release


def test_idempotence_requires_init_producer_id() -> None:
    assert BrokerCapabilities(7, 9, 0).has_producer_ids
    assert not BrokerCapabilities(7, 9, None).has_producer_ids
    assert not BEFORE_API_VERSIONS.has_producer_ids


@pytest.mark.parametrize(
    ("produce", "message_format", "codecs"),
    [
        (0, MessageFormat.V0, "NONE GZIP SNAPPY"),
        (1, MessageFormat.V0, "NONE GZIP SNAPPY"),
        (2, MessageFormat.V1, "NONE GZIP SNAPPY LZ4"),
        (3, MessageFormat.BATCHES, "NONE GZIP SNAPPY LZ4"),
        (6, MessageFormat.BATCHES, "NONE GZIP SNAPPY LZ4"),
        (7, MessageFormat.BATCHES, "NONE GZIP SNAPPY LZ4 ZSTD"),
        (12, MessageFormat.BATCHES, "NONE GZIP SNAPPY LZ4 ZSTD"),
    ],
)
def test_the_produce_version_determines_message_format_and_codecs(
    produce: int, message_format: MessageFormat, codecs: str
) -> None:
    capabilities = BrokerCapabilities(produce, 0, None)
    assert capabilities.message_format is message_format
    assert [codec.name for codec in Codec if capabilities.accepts(codec)] == codecs.split()


@pytest.mark.parametrize("highest", range(3, 20))
def test_a_broker_that_accepts_batches_gets_no_message_sets(highest: int) -> None:
    assert choose_versions(advertised((0, highest), (0, 2), None)).message_format is MessageFormat.BATCHES


@pytest.mark.parametrize(
    ("apis", "complaint"),
    [
        (advertised((14, 20), (0, 13), (0, 6)), "Produce v0 to v12, the broker offers v14 to v20"),
        (advertised((0, 13), (13, 15), (0, 6)), "Metadata v0 to v12, the broker offers v13 to v15"),
        ({18: ApiRange(0, 4)}, "Produce v0 to v12, the broker does not offer it"),
        ({0: ApiRange(0, 9)}, "Metadata v0 to v12, the broker does not offer it"),
        ({0: ApiRange(9, 4), 3: ApiRange(0, 1)}, "offers v9 to v4"),
        ({0: ApiRange(0, 9), 3: ApiRange(-2, -1)}, "offers v-2 to v-1"),
    ],
)
def test_an_api_without_a_common_version_is_named(apis: dict[int, ApiRange], complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        choose_versions(apis)


def test_a_missing_common_producer_id_version_disables_idempotence() -> None:
    assert not choose_versions(advertised((0, 9), (0, 9), (8, 9))).has_producer_ids
