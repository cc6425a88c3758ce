"""The negotiation for a release, the fallbacks, and the cache for brokers that do not report their API versions."""

from __future__ import annotations

import pytest

from bruce_mp.protocol.kafka.api_versions import BEFORE_API_VERSIONS
from bruce_mp.protocol.kafka.version_negotiation import (
    CACHE_S,
    METADATA_THEN_VERSIONS,
    VERSIONS_FIRST,
    Negotiation,
    NegotiationCache,
    NegotiationRequest,
    assume,
    negotiation_for,
)

PLACE = ("b1", 9092)
OTHER = ("b1", 9093)
OLD = assume(BEFORE_API_VERSIONS)


def chain(negotiation: Negotiation | None) -> list[Negotiation]:
    found = []
    while negotiation is not None:
        found.append(negotiation)
        negotiation = negotiation.fallback
    return found


def test_an_assumption_is_the_last_resort() -> None:
    assert chain(VERSIONS_FIRST) == [VERSIONS_FIRST, METADATA_THEN_VERSIONS, OLD]


def test_each_negotiation_ends_with_versions_or_with_an_assumption() -> None:
    for negotiation in chain(VERSIONS_FIRST):
        assert (negotiation.requests[-1] is NegotiationRequest.VERSIONS) == (negotiation.assumed is None)


@pytest.mark.parametrize("release", ["0.7", "0.8", "0.8.2.2", "0.9", "0.9.0.1"])
def test_a_release_without_api_versions_is_assumed(release: str) -> None:
    assert negotiation_for(release) == OLD


@pytest.mark.parametrize("release", [None, "0.10", "0.10.2.2", "0.11.0.3", "1.1.1", "4.3.1", "10.0"])
def test_every_other_release_is_probed(release: str | None) -> None:
    assert negotiation_for(release) is VERSIONS_FIRST


def test_an_unknown_broker_is_probed() -> None:
    assert NegotiationCache().choose(PLACE, 0.0) is VERSIONS_FIRST


def test_a_successful_assumption_is_reused_for_the_same_broker() -> None:
    negotiation_cache = NegotiationCache()
    negotiation_cache.on_ready(PLACE, OLD, 1.0)
    assert negotiation_cache.choose(PLACE, 2.0) is OLD
    assert negotiation_cache.choose(OTHER, 2.0) is VERSIONS_FIRST


def test_negotiated_versions_are_not_remembered() -> None:
    negotiation_cache = NegotiationCache()
    negotiation_cache.on_ready(PLACE, METADATA_THEN_VERSIONS, 1.0)
    assert negotiation_cache.choose(PLACE, 2.0) is VERSIONS_FIRST


def test_a_failure_ends_the_assumption() -> None:
    negotiation_cache = NegotiationCache()
    negotiation_cache.on_ready(PLACE, OLD, 1.0)
    negotiation_cache.on_failed(PLACE)
    negotiation_cache.on_failed(OTHER)
    assert negotiation_cache.choose(PLACE, 2.0) is VERSIONS_FIRST


def test_a_success_does_not_prolong_an_assumption() -> None:
    negotiation_cache = NegotiationCache()
    negotiation_cache.on_ready(PLACE, OLD, 1.0)
    negotiation_cache.on_ready(PLACE, OLD, CACHE_S)
    assert negotiation_cache.choose(PLACE, CACHE_S) is OLD
    assert negotiation_cache.choose(PLACE, CACHE_S + 1.0) is VERSIONS_FIRST
    negotiation_cache.on_ready(PLACE, OLD, CACHE_S + 2.0)
    assert negotiation_cache.choose(PLACE, CACHE_S + 3.0) is OLD


def test_a_configured_release_survives_failures() -> None:
    negotiation_cache = NegotiationCache("0.9.0.1")
    assert negotiation_cache.choose(PLACE, 0.0) == OLD
    negotiation_cache.on_failed(PLACE)
    assert negotiation_cache.choose(PLACE, 1.0) == OLD
