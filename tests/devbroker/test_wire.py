"""Encoding and decoding of frames, and the effect of malformed ones."""

from __future__ import annotations

import random
import struct

import pytest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest

from bruce_mp.devbroker.codes import ApiKey
from bruce_mp.devbroker.wire import FRAME_MAX, decode, frame_length
from bruce_mp.errors import RemoteProtocolError
from devbroker.kit import frame_of, make_batch, produce


@pytest.mark.parametrize("length", [-1, 0, 7, FRAME_MAX + 1, 0x48545450])
def test_invalid_frame_lengths_are_refused(length: int) -> None:
    with pytest.raises(RemoteProtocolError):
        frame_length(struct.pack(">i", length))


@pytest.mark.parametrize("version", range(3, 13))
def test_produce_requests_of_all_versions_are_decoded(version: int) -> None:
    incoming = decode(frame_of(produce([("hits", 3, make_batch())], version=version), 99)[4:])
    assert (incoming.api.key, incoming.version, incoming.correlation_id) == (ApiKey.PRODUCE, version, 99)
    assert incoming.request.topic_data[0].partition_data[0].index == 3


@pytest.mark.parametrize(
    ("key", "version"), [(0, 0), (0, 2), (0, 13), (1, 3), (1, 13), (3, 14), (3, -1), (8, 2), (999, 0), (-1, 0)]
)
def test_unserved_apis_and_versions_are_refused(key: int, version: int) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(struct.pack(">hhih", key, version, 1, -1) + b"\0" * 20)


def test_an_unknown_version_of_api_versions_is_not_malformed() -> None:
    frame = bytearray(frame_of(ApiVersionsRequest(version=4), 5)[4:])
    frame[2:4] = b"\0\x7f"
    incoming = decode(bytes(frame))
    assert (incoming.api.key, incoming.version, incoming.correlation_id) == (ApiKey.API_VERSIONS, 0, 5)
    assert incoming.request is None


def test_damaged_requests_raise_only_remote_protocol_errors() -> None:
    requests = [produce([("hits", 0, make_batch())], version=v) for v in (3, 9)]
    requests += [MetadataRequest(version=v, topics=[]) for v in (1, 12)]
    chance = random.Random(20)
    refused = 0
    for frame in [frame_of(request)[4:] for request in requests] * 500:
        damaged = bytearray(frame[: chance.randrange(9, len(frame) + 1)])
        for _ in range(chance.randint(0, 4)):
            damaged[chance.randrange(8, len(damaged))] = chance.choice((0, 0x7F, 0x80, 0xFF))
        try:
            decode(bytes(damaged))
        except RemoteProtocolError:
            refused += 1
    assert refused > 1000
