"""Which opening a release gets, and that the openings lead to one another."""

from __future__ import annotations

import pytest

from bruce_mp.protocol.kafka.api_versions import BEFORE_API_VERSIONS
from bruce_mp.protocol.kafka.opening import (
    METADATA_THEN_VERSIONS,
    VERSIONS_FIRST,
    Opening,
    OpeningRequest,
    assume,
    opening_for,
)


def chain(opening: Opening | None) -> list[Opening]:
    found = []
    while opening is not None:
        found.append(opening)
        opening = opening.fallback
    return found


def test_an_assumption_is_the_last_resort() -> None:
    assert chain(VERSIONS_FIRST) == [VERSIONS_FIRST, METADATA_THEN_VERSIONS, assume(BEFORE_API_VERSIONS)]


def test_each_opening_ends_with_versions_or_with_an_assumption() -> None:
    for opening in chain(VERSIONS_FIRST):
        assert (opening.requests[-1] is OpeningRequest.VERSIONS) == (opening.assumed is None)


@pytest.mark.parametrize("release", ["0.7", "0.8", "0.8.2.2", "0.9", "0.9.0.1"])
def test_a_release_without_api_versions_is_assumed(release: str) -> None:
    assert opening_for(release) == assume(BEFORE_API_VERSIONS)


@pytest.mark.parametrize("release", [None, "0.10", "0.10.2.2", "0.11.0.3", "1.1.1", "4.3.1", "10.0"])
def test_every_other_release_is_probed(release: str | None) -> None:
    assert opening_for(release) is VERSIONS_FIRST
