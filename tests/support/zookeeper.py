"""Requests to ZooKeeper by its four-letter commands, so that tests need no client library."""

from __future__ import annotations

import socket


def ask_zookeeper(port: int, word: str) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(word.encode())
        with connection.makefile("rb") as answer:
            return answer.read().decode()


def registered_brokers(port: int) -> frozenset[int]:
    """Return the ids of the Kafka brokers with a live session."""
    words = ask_zookeeper(port, "dump").split()
    return frozenset(int(word.rpartition("/")[2]) for word in words if word.startswith("/brokers/ids/"))
