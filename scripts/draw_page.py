#!/usr/bin/env python3
"""Take the screenshots of the status page in docs/images: one under load, one while all brokers are down.

    PYTHONPATH=tests .venv/bin/python scripts/draw_page.py

The script takes two minutes, and needs Chromium and its driver.
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
LOAD_S: Final = 75.0  # from the beginning of the load to the first picture
OUTAGE_S: Final = 25.0  # from the end of the brokers to the second picture
HEIGHT: Final = 1560
"""Height of a picture in pixels: from the top of the page to the end of its topics."""
SETTINGS: Final = {"compression.default": "small", "compression.configs.small.type": "lz4"}


def send_load(socket_path: Path, stopped: Event) -> None:
    """Send messages to all topics, and a few to a topic that does not exist, until `stopped` is set."""
    with DatagramClient(str(socket_path), timeout=60) as client:
        round_number = 0
        while not stopped.wait(0.02):
            round_number += 1
            for index, topic in enumerate(TOPICS):
                for number in range(2 * index + 1):  # another rate for each topic
                    client.send(topic, b'{"request": %d, "path": "/shop/basket"}' % (round_number + number))
            if round_number % 500 == 0:
                client.send("oders", b"a misspelt topic")


def take_picture(browser: Browser, daemon: Daemon, name: str) -> None:
    browser.open(daemon.url("/"), width=1280)
    browser.wait(lambda: browser.run("return document.querySelectorAll('#chart-past svg').length"), "the charts")
    Event().wait(4.5)  # the page computes the CPU use of processes from two successive answers of the daemon
    browser.screenshot(IMAGES / name, HEIGHT)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        DevBroker(brokers=len(BROKERS), topics=dict.fromkeys(TOPICS, 4)) as brokers,
        Daemon(Path(directory), brokers.bootstrap, SETTINGS) as daemon,
        Browser(Path(directory) / "profile") as browser,
    ):
        stopped = Event()
        load = Thread(target=send_load, args=(daemon.socket_path, stopped))
        load.start()
        with suppress(KeyboardInterrupt):
            stopped.wait(LOAD_S)
            take_picture(browser, daemon, "page.png")
            for broker_id in BROKERS:
                brokers.broker_down(broker_id)
            stopped.wait(OUTAGE_S)
            take_picture(browser, daemon, "page-brokers-down.png")
        stopped.set()
        load.join()
        for broker_id in BROKERS:
            brokers.broker_up(broker_id)  # so that the daemon can deliver the last messages before it stops


if __name__ == "__main__":
    main()
