"""The server on the test's own event loop, where the order of events can be chosen."""

from __future__ import annotations

import asyncio
import socket

import pytest

from bruce_mp.devbroker.cluster import Cluster
from bruce_mp.devbroker.server import ChangeSignal, DevServer


async def closed(client: socket.socket) -> bool:
    """Return True if the broker closes this connection."""
    try:
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1), 5) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("up_again", [False, True])
def test_a_connection_closes_with_its_broker_at_any_age(steps: int, up_again: bool) -> None:
    """Some rounds of the loop pass between the kernel's accept and the first line of the handler."""

    async def scenario() -> None:
        server = DevServer(Cluster(1, max_bytes=1000))
        await server.start()
        (node,) = server.cluster.snapshot().nodes
        with socket.create_connection((node.host, node.port)) as client:
            client.setblocking(False)
            for _ in range(steps):
                await asyncio.sleep(0)
            await server.broker_down(1)
            if up_again:
                await server.broker_up(1)
            assert await closed(client)
        await server.close()

    asyncio.run(scenario())


def test_a_broker_stays_up_if_its_new_port_is_in_use() -> None:
    async def scenario() -> None:
        server = DevServer(Cluster(1, max_bytes=1000))
        await server.start()
        (node,) = server.cluster.snapshot().nodes
        with socket.create_connection((node.host, node.port)) as client, socket.socket() as taken:
            taken.bind((node.host, 0))
            taken.listen()
            with pytest.raises(OSError, match="in use"):
                await server.broker_up(1, taken.getsockname()[1])
            client.setblocking(False)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1), 0.1)
            socket.create_connection((node.host, node.port)).close()
        assert server.cluster.snapshot().nodes == (node,)
        assert await server.broker_up(1, node.port) == node.port  # it may name the port that it has
        await server.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("steps", range(4))
def test_a_pulse_does_not_hide_a_cancellation(steps: int) -> None:
    """Some rounds of the loop pass between both."""

    async def wait_forever(changes: ChangeSignal) -> None:
        while True:
            await changes.wait(60)

    async def scenario() -> bool:
        changes = ChangeSignal()
        waiter = asyncio.ensure_future(wait_forever(changes))
        await asyncio.sleep(0)
        changes.notify()
        for _ in range(steps):
            await asyncio.sleep(0)
        waiter.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        is_cancelled = waiter.cancelled()
        waiter.cancel()
        return is_cancelled

    assert asyncio.run(scenario())


def test_a_pulse_wakes_all_waiters_exactly_once() -> None:
    async def scenario() -> list[float]:
        changes, loop = ChangeSignal(), asyncio.get_running_loop()
        waiters = [asyncio.ensure_future(changes.wait(60)) for _ in range(3)]
        await asyncio.sleep(0)
        changes.notify()
        changes.notify()
        await asyncio.gather(*waiters)
        started = loop.time()
        await changes.wait(0.05)
        return [loop.time() - started]

    assert asyncio.run(scenario())[0] >= 0.049
