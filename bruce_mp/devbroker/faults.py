"""Scripted misbehaviour, as data: which request a fault meets, and what it does to it.

A fault says *match* (API, broker, topic, partition), *when* (the nth match, then every mth, so many times) and
*action*.  `EFFECTS` says what each action means for the three steps of a request: is it carried out, what happens to
the bytes of the answer, does the connection live on.  Several faults may strike one request; their effects add up.
"""

from __future__ import annotations

from enum import StrEnum, unique
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec

from bruce_mp.devbroker.codes import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

__all__ = ["EFFECTS", "NO_FAULTS", "Action", "Effect", "Fault", "FaultBook", "Struck", "Target"]

Target = tuple[str, int]
"""(topic, partition) that a request is about; partition -1 where it names only the topic."""

CORRELATION_AT: Final = 4
GARBAGE_FRAME: Final = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
"""What a web server says to a Kafka client; read as a frame length its first bytes are 1.2 GB."""


@unique
class Action(StrEnum):
    """What a fault does."""

    ERROR = "error"
    """Answer `code`, for the matching partitions only; nothing is appended for them."""
    ERROR_APPENDED = "error_appended"
    """Append, and answer `code` all the same."""
    ACK_LOST = "ack_lost"
    """Carry the request out, then close without answering."""
    CLOSE = "close"
    """Close; the request is not carried out."""
    HALF_FRAME = "half_frame"
    """Carry the request out, send half of the answer, close."""
    WRONG_CORRELATION = "wrong_correlation"
    """Answer with a correlation id that nobody is waiting for."""
    GARBAGE_BODY = "garbage_body"
    """Answer with the right length and correlation id, and a body of noise."""
    GARBAGE_FRAME = "garbage_frame"
    """Answer with bytes that are no Kafka frame at all."""
    DELAY = "delay"
    """Carry the request out at once, answer it `ms` later."""
    SILENCE = "silence"
    """The whole broker stops for `ms`, as on SIGSTOP, neither reads nor answers, then goes on with this request."""
    THROTTLE = "throttle"
    """Answer with a throttle time of `ms`."""


Natural = Annotated[int, msgspec.Meta(ge=1)]


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One scripted fault.  None matches everything; it strikes matches nth, nth + every, nth + 2 every ..."""

    action: Action
    api: ApiKey | None = ApiKey.PRODUCE
    broker: int | None = None
    topic: str | None = None
    partition: int | None = None
    nth: Natural = 1
    every: Natural = 1
    times: Natural | None = 1
    """None: for ever."""
    code: int = 0
    """The error code of ERROR and ERROR_APPENDED."""
    ms: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Milliseconds of DELAY, SILENCE and THROTTLE."""

    def meets(self, topic: str | None, partition: int | None) -> bool:
        """Is this part of a request one that the fault is about?"""
        return self.topic in (None, topic) and self.partition in (None, partition)

    def matches(self, api: ApiKey, broker: int, targets: Collection[Target]) -> bool:
        """Is this request one that the fault is about?"""
        if self.api not in (None, api) or self.broker not in (None, broker):
            return False
        anywhere = self.topic is None and self.partition is None
        return anywhere or any(self.meets(topic, partition) for topic, partition in targets)


def whole(frame: bytes) -> bytes:
    return frame


def nothing(_: bytes) -> bytes:
    return b""


def half(frame: bytes) -> bytes:
    return frame[: len(frame) // 2]


def other_correlation(frame: bytes) -> bytes:
    """Flip a high bit of the correlation id: never that of another request in flight."""
    return frame[:CORRELATION_AT] + bytes((frame[CORRELATION_AT] ^ 0x40,)) + frame[CORRELATION_AT + 1 :]


def noise_body(frame: bytes) -> bytes:
    """0xFF all over: negative lengths and counts, over-long varints, whatever the version."""
    return frame[: CORRELATION_AT + 4] + b"\xff" * (len(frame) - CORRELATION_AT - 4)


def no_frame(_: bytes) -> bytes:
    return GARBAGE_FRAME


class Effect(NamedTuple):
    """What an action means: is the request carried out, what becomes of the answer's bytes, is there a close after."""

    handled: bool = True
    mangle: Callable[[bytes], bytes] = whole
    closes: bool = False


EFFECTS: Final = {
    Action.ERROR: Effect(),
    Action.ERROR_APPENDED: Effect(),
    Action.ACK_LOST: Effect(mangle=nothing, closes=True),
    Action.CLOSE: Effect(handled=False, mangle=nothing, closes=True),
    Action.HALF_FRAME: Effect(mangle=half, closes=True),
    Action.WRONG_CORRELATION: Effect(mangle=other_correlation),
    Action.GARBAGE_BODY: Effect(mangle=noise_body),
    Action.GARBAGE_FRAME: Effect(mangle=no_frame),
    Action.DELAY: Effect(),
    Action.SILENCE: Effect(),
    Action.THROTTLE: Effect(),
}


class Struck(NamedTuple):
    """The faults that strike one request, and what they add up to."""

    faults: tuple[Fault, ...] = ()

    @property
    def handled(self) -> bool:
        return all(EFFECTS[fault.action].handled for fault in self.faults)

    @property
    def closes(self) -> bool:
        return any(EFFECTS[fault.action].closes for fault in self.faults)

    def mangle(self, frame: bytes) -> bytes:
        """The bytes that go out instead of `frame`."""
        for fault in self.faults:
            frame = EFFECTS[fault.action].mangle(frame)
        return frame

    def milliseconds(self, action: Action) -> int:
        return sum(fault.ms for fault in self.faults if fault.action is action)

    def error(self, action: Action, topic: str | None = None, partition: int | None = None) -> int:
        """The code that a fault of `action` wants for this part of the request; 0 if none does."""
        wanted = (f.code for f in self.faults if f.action is action and f.meets(topic, partition))
        return next(wanted, 0)


NO_FAULTS: Final = Struck()


class Armed:
    """A fault in the book, with its counts."""

    __slots__ = ("fault", "matched", "struck")

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.matched = 0
        self.struck = 0

    @property
    def spent(self) -> bool:
        return self.fault.times is not None and self.struck >= self.fault.times

    def strikes(self) -> bool:
        """Count one match; is it one to strike?"""
        self.matched += 1
        past = self.matched - self.fault.nth
        strikes = not self.spent and past >= 0 and past % self.fault.every == 0
        self.struck += strikes
        return strikes


class FaultBook:
    """The faults of all brokers, in the order of their injection."""

    def __init__(self) -> None:
        self._armed: list[Armed] = []

    def inject(self, fault: Fault) -> None:
        """Arm a fault."""
        self._armed.append(Armed(fault))

    def clear(self) -> None:
        """Disarm all."""
        self._armed.clear()

    def strike(self, api: ApiKey, broker: int, targets: Callable[[], Iterable[Target]]) -> Struck:
        """The faults that strike this request; counts it as a match of all that are about it."""
        if not self._armed:
            return NO_FAULTS
        about = tuple(targets())
        matching = [armed for armed in self._armed if armed.fault.matches(api, broker, about)]
        struck = tuple(armed.fault for armed in matching if armed.strikes())
        self._armed = [armed for armed in self._armed if not armed.spent]
        return Struck(struck)
