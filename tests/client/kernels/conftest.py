"""The kernels of the clients in both variants."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from bruce_mp.kernels import CHOICE  # of the daemon, so that missing kernels of the clients fail

if TYPE_CHECKING:
    from types import ModuleType

VARIANTS = ("pure", "compiled") if CHOICE.compiled else ("pure",)


@pytest.fixture(params=VARIANTS, scope="module")
def send_buffer(request: pytest.FixtureRequest) -> ModuleType:
    return import_module(f"bruce_mp.client.kernels.{request.param}.send_buffer")


@pytest.fixture(params=VARIANTS, scope="module")
def datagram_sender(request: pytest.FixtureRequest) -> ModuleType:
    return import_module(f"bruce_mp.client.kernels.{request.param}.datagram_sender")
