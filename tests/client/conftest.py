"""The clients with both variants of their kernels."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from bruce_mp.client import datagram, stream
from bruce_mp.kernels import CHOICE  # of the daemon, so that missing kernels of the clients fail

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIANTS = ("pure", "compiled") if CHOICE.compiled else ("pure",)


@pytest.fixture(params=VARIANTS)
def client_kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test of the clients with each variant of their kernels."""
    package = f"bruce_mp.client.kernels.{request.param}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "SendBuffer", import_module(f"{package}.send_buffer").SendBuffer)
        patch.setattr(datagram, "DatagramSender", import_module(f"{package}.datagram_sender").DatagramSender)
        yield
