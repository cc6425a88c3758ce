"""Dead letters: the messages that become one, their form, and a daemon that does not take them."""

from __future__ import annotations

import socket
import time
from collections import Counter as Tally
from typing import TYPE_CHECKING, Any, Self

import pytest

from bruce_mp.config.inputs import Input, UnixDatagram, UnixStream
from bruce_mp.config.model import Config
from bruce_mp.config.sections import Batching, DeadLetterSection, Kafka
from bruce_mp.protocol.client.messages import EmptyFields, Message, encode, parse_message
from bruce_mp.status.reports.dead_letters import PATIENCE_S, PAUSE_S, DeadLetterTopic
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.message_copies import Copy, CopyTarget

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOST = socket.gethostname().encode()
LIMIT = 1000


class Site:
    """A datagram socket in place of the daemon's, and the sender of dead letters."""

    def __init__(self, directory: Path, max_datagram_size: int = LIMIT, **settings: Any) -> None:
        self.path = directory / "in.dgram"
        self.stream_path = directory / "in.stream"
        self.counted: Tally[Counter] = Tally()
        inputs = Input(
            unix_datagram=UnixDatagram(enable=True, path=str(self.path)),
            unix_stream=UnixStream(enable=True, path=str(self.stream_path)),
            max_datagram_size=max_datagram_size,
        )
        config = Config(
            kafka=Kafka(bootstrap_servers=("b:1",)), input=inputs, discards=DeadLetterSection(topic="dead"), **settings
        )
        self.topic = DeadLetterTopic(config, self._count)
        self.daemon = self._bind()

    def _bind(self) -> socket.socket:
        created = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        created.settimeout(0.0)
        created.bind(str(self.path))
        return created

    def restart_daemon(self) -> None:
        """Replace the daemon's socket by another one at its path."""
        self.daemon.close()
        self.path.unlink()
        self.daemon = self._bind()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.topic.close()
        self.daemon.close()

    def _count(self, counter: Counter, amount: int = 1) -> None:
        self.counted[counter] += amount

    def send(self, copy: Copy) -> bytes | None:
        """Send a copy, and return the datagram, or None."""
        self.topic.send([copy])
        try:
            return self.daemon.recv(1 << 20)
        except BlockingIOError:
            return None


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as made:
        yield made


def copy_of(info: str = "BAD_TOPIC", topic: bytes = b"t", value: bytes = b"value", **fields: Any) -> Copy:
    return Copy(CopyTarget.DISCARDS, 20, 10, info, topic, fields.pop("key", b"key"), value, **fields)


def test_a_dead_letter_has_the_message_and_its_reason(site: Site) -> None:
    headers = ((b"trace", None), (b"a", b"b"))
    sent = site.send(copy_of(partition_key=7, headers=headers, value=b"", empty_fields=int(EmptyFields.EMPTY_VALUE)))
    assert sent is not None
    reasons = (
        *((b"bruce.reason", b"BAD_TOPIC"), (b"bruce.topic", b"t"), (b"bruce.timestamp_ms", b"10")),
        *((b"bruce.partition_key", b"7"), (b"bruce.discarded_ms", b"20"), (b"bruce.host", HOST)),
    )
    assert parse_message(sent) == Message(b"dead", b"", b"key", 20, None, (*headers, *reasons), EmptyFields.EMPTY_VALUE)
    assert site.counted == {Counter.DeadLetterSent: 1}


def test_bytes_that_are_no_message_become_a_dead_letter_without_a_topic(site: Site) -> None:
    sent = site.send(copy_of("MALFORMED", b"", b"\0garbage", key=b""))
    assert sent is not None
    message = parse_message(sent)
    assert isinstance(message, Message)
    assert (message.key, message.value) == (b"", b"\0garbage")
    headers = dict(message.headers)
    assert headers == {b"bruce.reason": b"MALFORMED", b"bruce.discarded_ms": b"20", b"bruce.host": HOST}


@pytest.mark.parametrize(
    "copy",
    [
        copy_of(""),
        copy_of("SENDER_NOT_ALLOWED", b"", b"bytes"),
        copy_of("OVER_QUOTA"),
        copy_of(topic=b"dead"),
        copy_of("MALFORMED", b"", encode(b"dead", b"v", timestamp_ms=1, headers=[("a", b"b")])[:-1]),
    ],
    ids=["possible duplicate", "sender", "quota", "dead letter", "part of a dead letter"],
)
def test_other_copies_are_no_dead_letters(site: Site, copy: Copy) -> None:
    assert site.send(copy) is None
    assert site.counted == {}


@pytest.mark.parametrize("size", [LIMIT - 200, LIMIT, 10 * LIMIT])
def test_a_value_is_cut_only_if_the_dead_letter_does_not_fit(tmp_path: Path, size: int) -> None:
    value = bytes(range(256)) * 40
    with Site(tmp_path, batching=Batching(message_max_bytes=LIMIT)) as site:
        sent = site.send(copy_of("LONG_MSG", value=value[:size]))
    assert sent is not None
    message = parse_message(sent)
    assert isinstance(message, Message)
    headers = dict(message.headers)
    if size == LIMIT - 200:
        assert (message.value, b"bruce.value_size" in headers) == (value[:size], False)
    else:
        assert LIMIT - 64 < len(sent) <= LIMIT
        assert value.startswith(message.value)
        assert headers[b"bruce.value_size"] == b"%d" % size


def test_a_key_that_leaves_no_room_is_counted_as_lost(tmp_path: Path) -> None:
    with Site(tmp_path, batching=Batching(message_max_bytes=LIMIT)) as site:
        assert site.send(copy_of(key=bytes(LIMIT))) is None
    assert site.counted == {Counter.DeadLetterLost: 1}


def test_a_large_dead_letter_takes_the_stream(site: Site) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(site.stream_path))
        listener.listen()
        value = bytes(2 * LIMIT)
        assert site.send(copy_of(value=value)) is None
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            site.topic.close()
            message = parse_message(stream.read())
    assert isinstance(message, Message)
    assert message.value == value
    assert site.counted == {Counter.DeadLetterSent: 1}


def test_a_connection_of_an_ended_input_is_replaced_at_once(site: Site) -> None:
    for number in range(3):
        assert site.send(copy_of(value=b"%d" % number)) is not None
        site.restart_daemon()
    assert site.counted == {Counter.DeadLetterSent: 3}


def test_a_stream_of_an_ended_input_is_replaced_at_once(site: Site) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(site.stream_path))
        listener.listen()
        listener.settimeout(20)
        for _ in range(3):
            assert site.send(copy_of(value=bytes(2 * LIMIT))) is None
            listener.accept()[0].close()
    assert site.counted == {Counter.DeadLetterSent: 3}


def test_a_datagram_that_the_kernel_refuses_costs_only_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Site(tmp_path, max_datagram_size=1 << 20, batching=Batching(message_max_bytes=1 << 20)) as site:
        assert site.send(copy_of()) is not None
        assert site.send(copy_of(value=bytes(900_000))) is None
        assert "raise net.core.wmem_default" in caplog.text
        assert site.send(copy_of()) is not None
    assert site.counted == {Counter.DeadLetterSent: 2, Counter.DeadLetterLost: 1}


def test_the_copies_of_a_parcel_wait_together_for_a_slow_input(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The input reads one message each time that the sender has waited for a while."""
    now, waits = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    class SlowSocket(socket.socket):
        def sendall(self, data: Any, flags: int = 0) -> None:
            waits.append(self.gettimeout())
            now[0] += 0.4
            if (self.gettimeout() or 0) < 0.4:
                raise TimeoutError("timed out")
            super().sendall(data, flags)

    monkeypatch.setattr(socket, "socket", SlowSocket)
    site.topic.send([copy_of() for _ in range(10)])
    assert waits == [pytest.approx(PATIENCE_S), pytest.approx(0.6), pytest.approx(0.2)]
    assert site.counted == {Counter.DeadLetterSent: 2, Counter.DeadLetterLost: 8}


def test_a_stopped_sender_counts_what_it_does_not_send(site: Site) -> None:
    site.topic.stop()
    assert site.send(copy_of()) is None
    site.topic.count_lost([copy_of(), copy_of(""), copy_of(topic=b"dead")])
    assert site.counted == {Counter.DeadLetterLost: 2}


def test_dead_letters_pause_after_a_refusal(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    site.path.rename(site.path.with_name("moved"))
    assert site.send(copy_of()) is None
    site.path.with_name("moved").rename(site.path)
    assert site.send(copy_of()) is None
    assert site.counted == {Counter.DeadLetterLost: 2}
    now[0] += PAUSE_S
    assert site.send(copy_of()) is not None
    assert site.counted == {Counter.DeadLetterLost: 2, Counter.DeadLetterSent: 1}
