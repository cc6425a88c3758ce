"""A stream client that gets no connection: a missing permission is an error, and other causes a wait with a warning."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from bruce_mp.client import ClientClosedError, DaemonUnreachableError, FlushError, StreamClient, outage_warning
from bruce_mp.client.log_handler import BruceHandler
from support.as_user import denied_connections
from support.processes import wait_until
from support.stream_daemon import StreamDaemon

if TYPE_CHECKING:
    import socket
    from pathlib import Path

SOON_S = 2.0
LONG_S = 20.0


def send_twice(client: StreamClient) -> None:
    for _ in range(2):
        client.send("t", bytes(80))


@pytest.mark.parametrize("linger", [0.0, 0.01])
def test_a_missing_permission_is_an_error_at_once(path: Path, linger: float) -> None:
    with StreamDaemon(path), denied_connections(path.parent):
        client = StreamClient(path, timeout=LONG_S, linger=linger, buffer=100)
        began_s = time.monotonic()
        with pytest.raises(DaemonUnreachableError, match=r"no permission to send\..*input\.unix_stream\.mode .*0222"):
            client.connect(LONG_S)
        with pytest.raises(DaemonUnreachableError, match="no permission"):
            send_twice(client)
        with pytest.raises(FlushError, match="no permission"):
            client.flush(LONG_S)
        assert time.monotonic() - began_s < SOON_S
        assert client.stats().dropped == {"unreachable": 1}
        with suppress(ClientClosedError):
            client.close()


def test_a_client_gets_through_the_moment_before_the_daemon_sets_the_owner(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StreamDaemon(path) as daemon, StreamClient(path) as client:
        connect = client._link._open
        denials = iter([PermissionError(13, "Permission denied")])

        def deny_once(timeout: float) -> socket.socket:
            for denial in denials:
                raise denial
            return connect(timeout)

        monkeypatch.setattr(client._link, "_open", deny_once)
        client.send("t", b"v")
        assert len(daemon.wait(1)) == 1


def test_a_long_outage_gives_one_warning(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outage_warning, "WARN_AFTER_S", 0.1)
    with StreamClient(path, linger=0.001) as client:
        client.send("t", b"v")
        wait_until(lambda: bool(caplog.records), "the warning")
        with pytest.raises(DaemonUnreachableError):
            client.connect(1)
        with StreamDaemon(path) as daemon:
            daemon.wait(1)
    [record] = caplog.records
    assert (record.name, record.levelno) == ("bruce_mp.client", logging.WARNING)
    assert record.getMessage().startswith(f"No connection for 0 s; the client goes on trying. {path}: there is no such")


def test_a_log_handler_may_send_the_warning_through_the_client_itself(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage_warning, "WARN_AFTER_S", 0.1)
    handler = BruceHandler("logs", client=StreamClient(path, timeout=0, linger=0.001, errors="count"))
    outage_warning.log.addHandler(handler)
    try:
        outage_warning.log.warning("first")
        wait_until(lambda: handler.stats().waiting == 2, "the warning in the buffer")
    finally:
        outage_warning.log.removeHandler(handler)
        handler.close()
