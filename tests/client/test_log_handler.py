"""The log handler: records arrive as messages, and errors never reach the logging program."""

from __future__ import annotations

import logging
import logging.config
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from bruce_mp.client import DatagramClient, StreamClient, lock_hold, log_handler
from bruce_mp.client.log_handler import BruceHandler
from bruce_mp.protocol.client.messages import Message, parse_message
from support.stream_daemon import StreamDaemon

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("client_kernels")


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.Logger("shop.orders")
    yield logger
    for handler in logger.handlers:
        handler.close()


def receive(daemon: socket.socket) -> Message:
    message = parse_message(daemon.recv(1 << 20))
    assert isinstance(message, Message)
    return message


def test_a_log_record_becomes_a_message(daemon: socket.socket, path: Path, logger: logging.Logger) -> None:
    handler = BruceHandler("logs", path, key=lambda record: record.name, level=logging.INFO)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.debug("too low")
    logger.warning("größer als %d\ud800", 5)
    message = receive(daemon)
    assert (message.topic, message.key) == (b"logs", b"shop.orders")
    assert message.value == "WARNING größer als 5\\ud800".encode()
    assert handler.stats().sent == 1


def test_the_message_has_the_time_of_the_log_record(daemon: socket.socket, path: Path) -> None:
    handler = BruceHandler("logs", path, key=b"k")
    record = logging.makeLogRecord({"msg": "m", "created": 1700000000.123})
    handler.handle(record)
    handler.close()
    assert receive(daemon) == Message(b"logs", b"m", b"k", 1700000000123, None)


def test_the_handler_counts_drops_without_blocking_or_raising(
    daemon: socket.socket, path: Path, logger: logging.Logger
) -> None:
    handler = BruceHandler("logs", path)
    logger.addHandler(handler)
    while not handler.stats().dropped:
        logger.error("x")
    logger.error("x" * 100_000)
    path.unlink()
    logger.error("x")
    assert dict(handler.stats().dropped) == {"timeout": 1, "too_large": 1, "unreachable": 1}
    handler.close()
    logger.error("x")
    assert handler.stats().dropped["closed"] == 1


def test_a_record_that_cannot_be_formatted_does_not_stop_the_program(
    daemon: socket.socket, path: Path, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logger.addHandler(BruceHandler("logs", path))
    logger.error("%d", "no number")
    assert "Logging error" in capsys.readouterr().err


def test_a_client_that_waits_is_refused(path: Path) -> None:
    with DatagramClient(path) as client, pytest.raises(ValueError, match="timeout=0"):
        BruceHandler("logs", client=client)


def test_unsent_records_raise_no_error_when_the_handler_closes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handler = BruceHandler("logs", client=StreamClient(path, timeout=0, linger=60))
    handler.handle(logging.makeLogRecord({"msg": "m"}))
    handler.close()
    handler.handle(logging.makeLogRecord({"msg": "m"}))
    assert dict(handler.stats().dropped) == {"closed": 2}
    assert capsys.readouterr().err == ""


def test_the_last_records_wait_for_a_busy_daemon(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_handler, "EXIT_WRITE_S", 20)
    with StreamDaemon(path) as daemon:
        daemon.reading.clear()
        handler = BruceHandler("logs", client=StreamClient(path, timeout=0, linger=60))
        for _ in range(900):  # more than a connection takes
            handler.handle(logging.makeLogRecord({"msg": "x" * 1000}))
        timer = threading.Timer(0.2, daemon.reading.set)
        timer.start()
        handler.close()
        timer.join()
        assert len(daemon.wait(900)) == 900
        assert not handler.stats().dropped


def test_records_of_many_threads_arrive_by_stream(
    path: Path, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine, a thread may keep the lock of the connection longer than the others wait without a timeout.
    monkeypatch.setattr(lock_hold, "MIN_LOCK_WAIT_S", 60)
    with StreamDaemon(path) as daemon:
        handler = BruceHandler("logs", client=StreamClient(path, timeout=0, linger=0.01, errors="count"))
        logger.addHandler(handler)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(logger.error, ["x"] * 800))
        assert len(daemon.wait(800)) == 800
        assert not handler.stats().dropped
        handler.close()


@pytest.mark.process
def test_the_handler_works_in_a_forked_child(daemon: socket.socket, path: Path, logger: logging.Logger) -> None:
    handler = BruceHandler("logs", path)
    logger.addHandler(handler)
    with handler._client._count_lock:
        pid = os.fork()
        if pid == 0:
            logger.error("child")
            os._exit(0 if handler.stats().sent == 1 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    logger.error("parent")
    assert [receive(daemon).value for _ in range(2)] == [b"child", b"parent"]


def test_dict_config_creates_the_handler(daemon: socket.socket, path: Path) -> None:
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {
                "kafka": {"class": "bruce_mp.client.log_handler.BruceHandler", "topic": "logs", "path": str(path)}
            },
            "loggers": {"test-of-the-handler": {"handlers": ["kafka"]}},
        }
    )
    logger = logging.getLogger("test-of-the-handler")
    logger.error("x")
    assert receive(daemon).value == b"x"
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
