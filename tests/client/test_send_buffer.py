"""The buffer of a stream client against a model that keeps the messages apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.client.send_buffer import SendBuffer
from support.examples import examples

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject


@examples(30)
@given(data=st.data())
def test_messages_stay_whole_when_the_connection_breaks_at_any_byte(data: DataObject) -> None:
    outgoing = SendBuffer()
    waiting: list[bytes] = []
    connection = bytearray()
    complete: list[bytes] = []
    for number in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(["append", "append", "write", "write", "break", "take back"])):
            case "append":
                waiting.append(b"%d;" % number * data.draw(st.integers(1, 5)))
                outgoing.append(waiting[-1])
            case "write":
                with outgoing.unwritten() as rest:
                    some = bytes(rest[: data.draw(st.integers(0, len(rest)))])
                connection += some
                done = outgoing.on_written(len(some))
                finished, waiting = waiting[: done.messages], waiting[done.messages :]
                assert done.bytes == sum(map(len, finished))
                assert connection.startswith(b"".join(finished))
                del connection[: done.bytes]
                complete += finished
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
        with outgoing.unwritten() as rest:
            assert bytes(connection) + bytes(rest) == b"".join(waiting)
        assert (outgoing.messages, len(outgoing)) == (len(waiting), sum(map(len, waiting)))


def test_send_buffer_counts_messages_without_barriers() -> None:
    outgoing = SendBuffer()
    outgoing.append(b"message")
    outgoing.append(b"barrier", is_message=False)
    assert outgoing.messages == 1
    assert outgoing.on_written(14) == (1, 14)
    assert not outgoing
