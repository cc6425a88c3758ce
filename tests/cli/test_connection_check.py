"""`bruce check-config --connect`: broken set-ups, each with its line, its remedy and the exit status."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from bruce_mp.cli.host_check import host_findings
from bruce_mp.config.load import load_config
from bruce_mp.devbroker.control import DevBroker
from support.config_checks import Site
from support.ports import ReservedPort

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def broker() -> Iterator[DevBroker]:
    with DevBroker(topics={"there": 3}) as started:
        yield started


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Site:
    return Site(tmp_path, capsys)


def test_a_good_set_up_is_ok_in_each_line(site: Site, broker: DevBroker) -> None:
    done = site.check(broker.bootstrap, '[partitioner.topics]\nthere = "murmur2"')
    assert done.line("broker ") == f"ok       broker {broker.bootstrap}: connected, metadata"
    assert done.line("topic there").startswith("ok       topic there: 3 partitions")
    assert done.line("slab").startswith("ok ")
    assert not any(line.startswith("failed") for line in done.lines)
    assert done.status == 0


def test_an_unknown_topic_fails(site: Site, broker: DevBroker) -> None:
    done = site.check(broker.bootstrap, '[partitioner.topics]\nthere = "murmur2"\nmissing = "murmur2"')
    assert done.line("topic missing").startswith("failed   topic missing: does not exist")
    assert done.line("topic there").startswith("ok ")
    assert done.status == 1


def test_an_unknown_topic_is_not_created(site: Site, broker: DevBroker) -> None:
    for _ in range(2):
        done = site.check(broker.bootstrap, '[discards]\ntopic = "dead"')
        assert done.line("topic dead").startswith("failed ")


def test_a_broker_that_is_down_fails(site: Site) -> None:
    port = ReservedPort()
    done = site.check(f"127.0.0.1:{port.number}")
    port.release()
    line = done.line("broker ")
    assert ": cannot be reached: Connection refused. Check the address, that the broker runs, and the firewalls" in line
    assert (line[:6], done.status) == ("failed", 1)


def test_a_name_without_an_address_fails(site: Site) -> None:
    done = site.check("no-such-host.invalid:9092")
    assert "its name cannot be resolved" in done.line("broker ")
    assert done.status == 1


def test_a_second_broker_is_asked_when_the_first_is_down(site: Site, broker: DevBroker) -> None:
    port = ReservedPort()
    done = site.check(f'127.0.0.1:{port.number}", "{broker.bootstrap}')
    port.release()
    assert [line[:6] for line in done.lines if " broker " in line] == ["failed", "ok    "]
    assert done.status == 1


def test_tls_on_a_plain_port_is_named(site: Site, broker: DevBroker) -> None:
    done = site.check(broker.bootstrap, "[kafka.tls]\nenable = true")
    assert "speaks plain text on this port. Set kafka.tls.enable = false, or name the port" in done.line("broker ")
    assert done.status == 1


def serve(stack: ExitStack, answer: bytes) -> str:
    """Answer each connection with the same bytes, and return the address."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

    def run() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                peer.recv(1 << 16)
                peer.sendall(answer)

    thread = Thread(target=run, daemon=True)
    thread.start()
    stack.callback(listener.shutdown, socket.SHUT_RDWR)
    return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", "answers, but not as a Kafka broker", id="wrong port"),
        pytest.param(b"\x15\x03\x03\x00\x02\x02\x46", "expects TLS on this port", id="plain on a TLS port"),
        pytest.param(b"", "closed the connection", id="closes at once"),
    ],
)
def test_another_service_on_the_port_fails(site: Site, answer: bytes, text: str) -> None:
    with ExitStack() as stack:
        done = site.check(serve(stack, answer))
    line = done.line("broker ")
    assert text in line
    assert (line[:6], done.status) == ("failed", 1)


def test_a_missing_password_file_is_named(site: Site, broker: DevBroker, tmp_path: Path) -> None:
    sasl = f'[kafka.sasl]\nmechanism = "PLAIN"\nusername = "a"\npassword_file = "{tmp_path}/none"'
    done = site.check(broker.bootstrap, sasl)
    assert f"{tmp_path}/none" in done.line("broker ")
    assert done.status == 1


def findings(site: Site, text: str = "") -> dict[str, Any]:
    return {each.subject: each for each in host_findings(load_config(site.write("b:1", text), []))}


def test_a_file_system_without_room_for_the_slab_fails(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs
    monkeypatch.setattr(os, "statvfs", lambda path: _Space(real(path).f_frsize, 100))
    text = '[discard_log]\nenable = true\npath = "/dev/shm/none/discard.log"'
    found = findings(site, text)
    assert (found["slab"].level, found["discard file"].level) == ("failed", "warning")
    assert "lower slab.size, or set slab.path to a larger file system." in found["slab"].text


class _Space:
    def __init__(self, unit: int, free: int) -> None:
        self.f_frsize, self.f_bavail = unit, free


def test_limits_of_the_kernel_are_compared(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for length, level in ((10, "warning"), (512, "ok"), (None, "warning")):
        monkeypatch.setattr("bruce_mp.cli.host_check.queue_length", lambda length=length: length)
        assert findings(site)["kernel net.unix.max_dgram_qlen"].level == level
    assert findings(site)["kernel datagram size"].level == "ok"
    text = '[input]\nmax_datagram_size = "16m"'
    too_large = findings(site, text)["kernel datagram size"]
    assert too_large.level == "failed"
    assert "net.core.wmem" in too_large.text
