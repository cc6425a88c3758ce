"""The cache of negotiations for brokers that do not report their API versions."""

from __future__ import annotations

from bruce_mp.network.version_probe import CACHE_S, VersionProbes
from bruce_mp.protocol.kafka.api_versions import BEFORE_API_VERSIONS
from bruce_mp.protocol.kafka.version_negotiation import METADATA_THEN_VERSIONS, VERSIONS_FIRST, assume

PLACE = ("b1", 9092)
OTHER = ("b1", 9093)
OLD = assume(BEFORE_API_VERSIONS)


def test_an_unknown_broker_is_probed() -> None:
    assert VersionProbes().choose(PLACE, 0.0) is VERSIONS_FIRST


def test_a_successful_assumption_is_reused_for_the_same_broker() -> None:
    probes = VersionProbes()
    probes.on_ready(PLACE, OLD, 1.0)
    assert probes.choose(PLACE, 2.0) is OLD
    assert probes.choose(OTHER, 2.0) is VERSIONS_FIRST


def test_negotiated_versions_are_not_remembered() -> None:
    probes = VersionProbes()
    probes.on_ready(PLACE, METADATA_THEN_VERSIONS, 1.0)
    assert probes.choose(PLACE, 2.0) is VERSIONS_FIRST


def test_a_failure_ends_the_assumption() -> None:
    probes = VersionProbes()
    probes.on_ready(PLACE, OLD, 1.0)
    probes.on_failed(PLACE)
    probes.on_failed(OTHER)
    assert probes.choose(PLACE, 2.0) is VERSIONS_FIRST


def test_a_success_does_not_prolong_an_assumption() -> None:
    probes = VersionProbes()
    probes.on_ready(PLACE, OLD, 1.0)
    probes.on_ready(PLACE, OLD, CACHE_S)
    assert probes.choose(PLACE, CACHE_S) is OLD
    assert probes.choose(PLACE, CACHE_S + 1.0) is VERSIONS_FIRST
    probes.on_ready(PLACE, OLD, CACHE_S + 2.0)
    assert probes.choose(PLACE, CACHE_S + 3.0) is OLD


def test_a_configured_release_survives_failures() -> None:
    probes = VersionProbes("0.9.0.1")
    assert probes.choose(PLACE, 0.0) == OLD
    probes.on_failed(PLACE)
    assert probes.choose(PLACE, 1.0) == OLD
