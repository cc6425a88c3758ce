#!/usr/bin/env python3
"""Take the pictures of the status page in docs/images: under load, and while all brokers are down.

    PYTHONPATH=tests .venv/bin/python scripts/draw_page.py

Takes two minutes, and needs Chromium and its driver.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Final

from bruce_mp.client import DatagramClient
from bruce_mp.devbroker.control import DevBroker
from support.browser import Browser
from support.daemon import Daemon

IMAGES: Final = Path(__file__).parent.parent / "docs" / "images"
TOPICS: Final = ("web-access", "web-errors", "orders", "payments", "metrics", "audit")
BROKERS: Final = (1, 2, 3)
LOAD_S: Final = 75.0
OUTAGE_S: Final = 25.0
HEIGHT: Final = 1560
"""Pixels of a picture: down to the topics."""
SETTINGS: Final = {"compression.default": "small", "compression.configs.small.type": "lz4"}


def send_load(socket_path: Path, stopped: Event) -> None:
    """Send messages to all topics, and a few to a topic that does not exist."""
    with DatagramClient(str(socket_path), timeout=60) as client:
        rounds = 0
        while not stopped.wait(0.02):
            rounds += 1
            for index, topic in enumerate(TOPICS):
                for number in range(2 * index + 1):
                    client.send(topic, b'{"request": %d, "path": "/shop/basket"}' % (rounds + number))
            if rounds % 500 == 0:
                client.send("oders", b"a misspelt topic")


def take_picture(browser: Browser, daemon: Daemon, name: str) -> None:
    browser.open(daemon.url("/"), width=1280)
    browser.wait(lambda: browser.run("return document.querySelectorAll('#chart-past svg').length"), "the charts")
    Event().wait(4.5)  # the CPU of processes follows from two answers
    browser.screenshot(IMAGES / name, HEIGHT)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        DevBroker(brokers=len(BROKERS), topics=dict.fromkeys(TOPICS, 4)) as broker,
        Daemon(Path(directory), broker.bootstrap, SETTINGS) as daemon,
        Browser(Path(directory) / "profile") as browser,
    ):
        stopped = Event()
        load = Thread(target=send_load, args=(daemon.socket_path, stopped))
        load.start()
        with suppress(KeyboardInterrupt):
            stopped.wait(LOAD_S)
            take_picture(browser, daemon, "page.png")
            for node in BROKERS:
                broker.broker_down(node)
            stopped.wait(OUTAGE_S)
            take_picture(browser, daemon, "page-brokers-down.png")
        stopped.set()
        load.join()
        for node in BROKERS:
            broker.broker_up(node)


if __name__ == "__main__":
    main()
