"""Fixtures for the client libraries of all languages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.client_programs import LANGUAGES, ConformanceProgram, build, param

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=[param(name) for name in LANGUAGES])
def program(request: pytest.FixtureRequest) -> Iterator[ConformanceProgram]:
    """Yield a running conformance program of each language."""
    with ConformanceProgram(build(request.param), request.param) as running:
        yield running
