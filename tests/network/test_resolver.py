from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from bruce_mp.ipc.loop import Loop
from bruce_mp.network.resolver import Address, Resolver

if TYPE_CHECKING:
    from collections.abc import Iterator

Answer = tuple[list[Address], str]


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def resolver(loop: Loop) -> Resolver:
    return Resolver(loop)


class SlowNames:
    """A substitute of `getaddrinfo()` that delays names with the prefix "slow" until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.released = threading.Event()
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._answer)

    def _answer(self, host: str, *arguments: Any, **named: Any) -> Any:
        self.asked.append(host)
        if host.startswith("slow"):
            assert self.released.wait(10)
            host = "127.0.0.1"
        return self._real(host, *arguments, **named)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowNames]:
    made = SlowNames(monkeypatch)
    yield made
    made.released.set()


def ask(loop: Loop, resolver: Resolver, host: str, port: int = 9092) -> Answer:
    """Resolve a name and run the loop until the answer arrives."""
    found: list[Answer] = []

    def on_answer(addresses: list[Address], error: str) -> None:
        found.append((addresses, error))
        loop.stop()

    resolver.resolve(host, port, on_answer)
    loop.call_later(10, loop.stop)
    loop.run()
    assert len(found) == 1
    return found[0]


def test_a_name_becomes_its_addresses(loop: Loop, resolver: Resolver) -> None:
    addresses, error = ask(loop, resolver, "localhost", 9093)
    assert error == ""
    assert (socket.AF_INET, "127.0.0.1", 9093) in addresses


def test_a_numeric_address_resolves_to_itself(loop: Loop, resolver: Resolver) -> None:
    assert ask(loop, resolver, "127.0.0.7") == ([(socket.AF_INET, "127.0.0.7", 9092)], "")


@pytest.mark.parametrize(
    "host", ["", "nowhere.invalid", "a\0b", "." * 10, "x" * 300, "under_score..dots", "\u2603" * 100]
)
def test_an_invalid_name_has_an_error_and_no_address(loop: Loop, resolver: Resolver, host: str) -> None:
    addresses, error = ask(loop, resolver, host)
    assert addresses == []
    assert error


def test_a_slow_name_holds_up_neither_the_loop_nor_other_names(
    loop: Loop, resolver: Resolver, names: SlowNames
) -> None:
    slow: list[Answer] = []
    for number in range(5):
        resolver.resolve(f"slow-{number}", 1, lambda addresses, error: slow.append((addresses, error)))
    start = time.monotonic()
    assert ask(loop, resolver, "127.0.0.1")[1] == ""
    assert time.monotonic() - start < 5
    assert slow == []
    names.released.set()
    wait_for(loop, slow, 5)
    assert slow == [([(socket.AF_INET, "127.0.0.1", 1)], "")] * 5


def test_concurrent_requests_for_a_name_share_one_lookup(loop: Loop, resolver: Resolver, names: SlowNames) -> None:
    found: list[Answer] = []
    for _ in range(100):
        resolver.resolve("slow", 9092, lambda addresses, error: found.append((addresses, error)))
    names.released.set()
    wait_for(loop, found, 100)
    assert names.asked == ["slow"]
    ask(loop, resolver, "slow")
    assert names.asked == ["slow"] * 2


def wait_for(loop: Loop, found: list[Any], count: int) -> None:
    """Run the loop until `count` answers have arrived."""
    deadline = loop.call_later(10, loop.stop)
    loop.run(lambda: loop.stop() if len(found) >= count else None)
    deadline.cancel()
    assert len(found) == count


@pytest.mark.process
def test_a_pending_lookup_does_not_delay_the_process_exit() -> None:
    program = (
        "import socket, time\n"
        "from bruce_mp.ipc.loop import Loop\n"
        "from bruce_mp.network.resolver import Resolver\n"
        "socket.getaddrinfo = lambda *_, **__: time.sleep(60)\n"
        "Resolver(Loop()).resolve('slow', 1, lambda *_: None)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=20)
