"""The buffer of a stream client against a model that keeps the messages apart."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.errors import LocalProtocolError
from bruce_mp.protocol.client.messages import MAX_MESSAGE, encode, parse_message
from support.examples import examples

if TYPE_CHECKING:
    from types import ModuleType

    from hypothesis.strategies import DataObject

    from bruce_mp.client.kernels import SendBuffer


def view_of(data: bytes) -> memoryview:
    return memoryview(data)


NOW_MS: Final = 1_700_000_000_123
ENDLESS: Final = 1 << 40
ACTIONS: Final = ("append", "accept", "append", "write", "write", "break", "take back", "give up")
CONTENTS: Final = st.none() | st.binary(max_size=20) | st.binary(max_size=20).map(bytearray)
ARGUMENTS: Final = st.tuples(
    st.text(st.characters(codec="utf-8"), max_size=10) | st.binary(max_size=10),
    CONTENTS | st.binary(max_size=20).map(view_of),
    CONTENTS,
    st.none() | st.integers(-(2**31) - 1, 2**32),
    st.integers(-(2**63) - 1, 2**63),
    st.just(()) | st.just([("name", b"value")]),
    st.booleans(),
)


def create(module: ModuleType, *, fill_limit: int = 0, max_message: int = MAX_MESSAGE) -> SendBuffer:
    created: SendBuffer = module.SendBuffer(threading.Lock(), max_message)
    created.fill_limit = fill_limit
    return created


def accept(buffer: SendBuffer, value: bytes, **more: Any) -> bool:
    return buffer.accept("t", value, None, None, NOW_MS, (), False, **more)


def content(buffer: SendBuffer) -> bytes:
    with buffer.unwritten() as rest:
        return bytes(rest)


@examples(30)
@given(data=st.data())
def test_messages_stay_whole_when_the_connection_breaks_at_any_byte(send_buffer: ModuleType, data: DataObject) -> None:
    outgoing = create(send_buffer)
    waiting: deque[bytes] = deque()
    connection = bytearray()
    for number in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(ACTIONS)):
            case "append":
                waiting.append(b"%d;" % number * data.draw(st.integers(1, 5)))
                outgoing.append(waiting[-1])
            case "accept":
                value = bytes(data.draw(st.sampled_from([0, 10, 70_000])))
                outgoing.fill_limit = ENDLESS
                assert accept(outgoing, value)
                waiting.append(encode("t", value, None, None, timestamp_ms=NOW_MS))
            case "write":
                with outgoing.unwritten() as rest:
                    some = bytes(rest[: data.draw(st.integers(0, len(rest)))])
                connection += some
                done = outgoing.on_written(len(some))
                finished = [waiting.popleft() for _ in range(done.message_count)]
                assert done.byte_count == sum(map(len, finished))
                assert connection.startswith(b"".join(finished))
                del connection[: done.byte_count]
                assert not waiting or len(connection) < len(waiting[0])
            case "break":
                assert outgoing.rewind() == bool(connection)
                connection.clear()
            case "take back" if waiting:
                if outgoing.remove_last():
                    waiting.pop()
                else:
                    assert connection
                    assert len(waiting) == 1
            case "give up" if waiting:
                outgoing.rewind()
                connection.clear()
                assert outgoing.remove_first() == 1
                waiting.popleft()
        assert bytes(connection) + content(outgoing) == b"".join(waiting)
        assert (outgoing.message_count, len(outgoing)) == (len(waiting), sum(map(len, waiting)))
    assert outgoing.clear() == len(waiting)
    assert (outgoing.message_count, len(outgoing), content(outgoing)) == (0, 0, b"")


def test_send_buffer_counts_messages_without_barriers(send_buffer: ModuleType) -> None:
    outgoing = create(send_buffer)
    outgoing.append(b"message")
    outgoing.append(b"barrier", is_message=False)
    assert outgoing.message_count == 1
    assert outgoing.on_written(14) == (1, 14)
    assert not outgoing


@examples(200)
@given(arguments=ARGUMENTS)
def test_accepted_messages_have_the_bytes_of_the_protocol(send_buffer: ModuleType, arguments: tuple[Any, ...]) -> None:
    topic, value, key, partition_key, timestamp_ms, headers, keep_empty = arguments
    outgoing = create(send_buffer, fill_limit=ENDLESS)
    try:
        expected = encode(
            topic, value, key, partition_key, timestamp_ms=timestamp_ms, headers=headers, keep_empty=keep_empty
        )
    except LocalProtocolError:
        with suppress(LocalProtocolError):
            assert not outgoing.accept(*arguments)
        assert not outgoing
        return
    if outgoing.accept(*arguments):
        assert content(outgoing) == expected
    else:
        assert headers or isinstance(value, memoryview), "the caller encodes these"


def test_the_present_time_is_the_default(send_buffer: ModuleType) -> None:
    outgoing = create(send_buffer, fill_limit=ENDLESS)
    before = time.time_ns() // 1_000_000
    assert outgoing.accept("t", b"", None, None, None, (), False)
    message = parse_message(content(outgoing))
    assert before <= getattr(message, "timestamp_ms", 0) <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("missing", [0, 1])
def test_accept_fills_the_buffer_up_to_its_room(send_buffer: ModuleType, missing: int) -> None:
    size = len(encode("t", b"", None, None, timestamp_ms=0))
    outgoing = create(send_buffer, fill_limit=size + size - missing)
    assert accept(outgoing, b"")
    assert accept(outgoing, b"") == (not missing)
    assert outgoing.message_count == 2 - missing


def test_accept_refuses_a_message_over_the_limit(send_buffer: ModuleType) -> None:
    limit = len(encode("t", b"12", None, None, timestamp_ms=0))
    outgoing = create(send_buffer, fill_limit=ENDLESS, max_message=limit)
    assert accept(outgoing, b"12")
    assert not accept(outgoing, b"123")


def test_accept_refuses_everything_without_room(send_buffer: ModuleType) -> None:
    outgoing = create(send_buffer)
    assert not accept(outgoing, b"")
    assert not outgoing.accept("", "text", None, -(2**40), 0, (), False)  # type: ignore[arg-type]


def test_a_topic_that_is_no_text_raises_as_the_protocol_does(send_buffer: ModuleType) -> None:
    with pytest.raises(UnicodeEncodeError):
        create(send_buffer, fill_limit=ENDLESS).accept("\ud800", b"", None, None, 0, (), False)


def test_a_view_stays_valid_when_the_buffer_grows(send_buffer: ModuleType) -> None:
    outgoing = create(send_buffer)
    outgoing.append(b"message")
    view = bytes(outgoing.unwritten())
    for _ in range(2000):
        outgoing.append(bytes(200))
    assert view == b"message"
    assert outgoing.message_count == 2001
    assert outgoing.on_written(7 + 2000 * 200) == (2001, 7 + 2000 * 200)


def test_an_argument_that_changes_another_one_is_read_first(send_buffer: ModuleType) -> None:
    value = bytearray(b"small")

    class Growing:
        def __bool__(self) -> bool:
            value[:] = b"x" * 100_000  # moves the bytes
            return True

    keep_empty: Any = Growing()
    buffer = create(send_buffer, fill_limit=ENDLESS)
    assert buffer.accept("t", value, None, None, NOW_MS, (), keep_empty)
    assert content(buffer) == encode("t", b"x" * 100_000, None, None, timestamp_ms=NOW_MS, keep_empty=True)
