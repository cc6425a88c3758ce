"""The clients and their kernels in both variants, and a socket of the daemon."""

from __future__ import annotations

import socket
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from bruce_mp.client import datagram, stream
from bruce_mp.kernels import CHOICE  # of the daemon, so that missing kernels of the clients fail

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

VARIANTS = ("pure", "compiled") if CHOICE.compiled else ("pure",)


def kernel(variant: str, name: str) -> ModuleType:
    return import_module(f"bruce_mp.client.kernels.{variant}.{name}")


@pytest.fixture(params=VARIANTS, scope="module")
def send_buffer(request: pytest.FixtureRequest) -> ModuleType:
    return kernel(request.param, "send_buffer")


@pytest.fixture(params=VARIANTS, scope="module")
def datagram_sender(request: pytest.FixtureRequest) -> ModuleType:
    return kernel(request.param, "datagram_sender")


@pytest.fixture(params=VARIANTS)
def client_kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test of the clients with each variant of their kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "SendBuffer", kernel(request.param, "send_buffer").SendBuffer)
        patch.setattr(datagram, "DatagramSender", kernel(request.param, "datagram_sender").DatagramSender)
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the daemon's socket."""
    return tmp_path / "input"


@pytest.fixture
def daemon(path: Path) -> Iterator[socket.socket]:
    """Bind the daemon's datagram socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        receiver.settimeout(10)
        yield receiver
