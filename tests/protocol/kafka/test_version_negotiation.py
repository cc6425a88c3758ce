"""Which negotiation a release gets, and that the negotiations lead to one another."""

from __future__ import annotations

import pytest

from bruce_mp.protocol.kafka.api_versions import BEFORE_API_VERSIONS
from bruce_mp.protocol.kafka.version_negotiation import (
    METADATA_THEN_VERSIONS,
    VERSIONS_FIRST,
    Negotiation,
    NegotiationRequest,
    assume,
    negotiation_for,
)


def chain(negotiation: Negotiation | None) -> list[Negotiation]:
    found = []
    while negotiation is not None:
        found.append(negotiation)
        negotiation = negotiation.fallback
    return found


def test_an_assumption_is_the_last_resort() -> None:
    assert chain(VERSIONS_FIRST) == [VERSIONS_FIRST, METADATA_THEN_VERSIONS, assume(BEFORE_API_VERSIONS)]


def test_each_negotiation_ends_with_versions_or_with_an_assumption() -> None:
    for negotiation in chain(VERSIONS_FIRST):
        assert (negotiation.requests[-1] is NegotiationRequest.VERSIONS) == (negotiation.assumed is None)


@pytest.mark.parametrize("release", ["0.7", "0.8", "0.8.2.2", "0.9", "0.9.0.1"])
def test_a_release_without_api_versions_is_assumed(release: str) -> None:
    assert negotiation_for(release) == assume(BEFORE_API_VERSIONS)


@pytest.mark.parametrize("release", [None, "0.10", "0.10.2.2", "0.11.0.3", "1.1.1", "4.3.1", "10.0"])
def test_every_other_release_is_probed(release: str | None) -> None:
    assert negotiation_for(release) is VERSIONS_FIRST
