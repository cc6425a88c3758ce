"""Scripted faults as data: the requests that a fault matches, and its effect on them.

A fault *matches* requests by API, broker, client, topic, partition and text. A fault with `nth=3 every=2 times=4` is
*triggered* by the matches 3, 5, 7 and 9. `EFFECTS` has the effects of some actions on the steps of
a request: execution, response bytes, and connection. `apis` and `server` carry out the other actions. One request may
trigger several faults; their effects add up.
"""

from __future__ import annotations

from enum import StrEnum, unique
from functools import lru_cache
from ipaddress import ip_address, ip_network
from itertools import count
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec

from bruce_mp.devbroker.batch import records_of
from bruce_mp.devbroker.codes import ApiKey, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from ipaddress import IPv4Network, IPv6Network

__all__ = [
    "EFFECTS",
    "NO_FAULTS",
    "WHOLE_REQUEST",
    "Fault",
    "FaultAction",
    "FaultBook",
    "InjectedFault",
    "Target",
    "TriggeredFaults",
]

CORRELATION_AT: Final = 4  # behind the frame's length
BODY_AT: Final = CORRELATION_AT + 4
GARBAGE_FRAME: Final = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
"""Response of a web server to a Kafka client. As a frame length, its first bytes mean 1.2 GB."""


@unique
class FaultAction(StrEnum):
    """Action of a fault; `EFFECTS` has the effects of some."""

    ERROR = "error"
    """Return `code` for the matching partitions only, and append nothing for them."""
    ERROR_APPENDED = "error_appended"
    """Append, but return `code`."""
    ACK_LOST = "ack_lost"
    """Execute the request, then close without a response."""
    CLOSE = "close"
    """Close without executing the request."""
    HALF_FRAME = "half_frame"
    """Execute the request, send half of the response, close."""
    WRONG_CORRELATION = "wrong_correlation"
    """Respond with a correlation id that no request in flight has."""
    GARBAGE_BODY = "garbage_body"
    """Respond with the right length and correlation id, and a body of noise."""
    GARBAGE_FRAME = "garbage_frame"
    """Respond with bytes that are not a Kafka frame."""
    DELAY = "delay"
    """Execute the request at once, and respond `ms` later."""
    SILENCE = "silence"
    """Stop the whole broker for `ms`, as on SIGSTOP, without reads or responses; then continue with this request."""
    THROTTLE = "throttle"
    """Respond with a throttle time of `ms`."""


PositiveInt = Annotated[int, msgspec.Meta(ge=1)]


class Target(NamedTuple):
    """A part of a request: a partition with the record batch for it, or a topic (partition -1).

    The topic is None for a whole request, such as one about all topics.
    """

    topic: str | None = None
    partition: int = -1
    batch: bytes | None = None

    def contains(self, text: bytes) -> bool:
        """Return True if a key or a value of the batch contains the text."""
        try:
            records = records_of(self.batch or b"")
        except RefusedError:
            return False
        return any(text in (field or b"") for record in records for field in (record.key, record.value))


WHOLE_REQUEST: Final = Target()


@lru_cache
def network_of(text: str) -> IPv4Network | IPv6Network:
    return ip_network(text, strict=False)


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One scripted fault. A field that is None matches any value.

    The matches nth, nth + every, nth + 2 every and so on trigger the fault, up to `times` times.
    """

    action: FaultAction
    api: ApiKey | None = ApiKey.PRODUCE
    broker: int | None = None
    client: str | None = None
    """IP address of the client, or a network such as "127.0.0.0/30"."""
    topic: str | None = None
    partition: int | None = None
    text: str | None = None
    """Text in the key or the value of a record, in UTF-8. Only Produce requests have records."""
    nth: PositiveInt = 1
    every: PositiveInt = 1
    times: PositiveInt | None = 1
    """None means without limit."""
    code: int = 0
    """Error code of ERROR and ERROR_APPENDED."""
    ms: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Milliseconds of DELAY, SILENCE and THROTTLE."""

    def __post_init__(self) -> None:
        if self.client is not None:
            network_of(self.client)  # raises ValueError, which msgspec reports

    def concerns(self, target: Target) -> bool:
        """Return True if the fault concerns this part of a request."""
        return (
            (target.topic is None or self.topic in (None, target.topic))
            and self.partition in (None, target.partition)
            and (self.text is None or target.contains(self.text.encode()))
        )

    def matches(self, api: ApiKey, broker: int, client: str, targets: Collection[Target]) -> bool:
        """Return True if the fault matches this request, or a part of it."""
        if self.api not in (None, api) or self.broker not in (None, broker):
            return False
        if self.client is not None and ip_address(client) not in network_of(self.client):
            return False
        concerns_whole_request = self.topic is None and self.partition is None and self.text is None
        return concerns_whole_request or any(map(self.concerns, targets))


def wrong_correlation(frame: bytes) -> bytes:
    """Flip a high bit of the correlation id, so that it matches no request in flight."""
    return frame[:CORRELATION_AT] + bytes((frame[CORRELATION_AT] ^ 0x40,)) + frame[CORRELATION_AT + 1 :]


def garbage_body(frame: bytes) -> bytes:
    """Fill the body with 0xFF: in any version these are negative lengths and counts, or over-long varints."""
    return frame[:BODY_AT] + b"\xff" * (len(frame) - BODY_AT)


class Effect(NamedTuple):
    """Effect of an action on the three steps of a request; `mangle` returns the bytes to send instead of a frame."""

    is_executed: bool = True
    mangle: Callable[[bytes], bytes] = lambda frame: frame
    closes: bool = False


EFFECTS: Final = {
    FaultAction.ERROR: Effect(),
    FaultAction.ERROR_APPENDED: Effect(),
    FaultAction.ACK_LOST: Effect(mangle=lambda _: b"", closes=True),
    FaultAction.CLOSE: Effect(is_executed=False, mangle=lambda _: b"", closes=True),
    FaultAction.HALF_FRAME: Effect(mangle=lambda frame: frame[: len(frame) // 2], closes=True),
    FaultAction.WRONG_CORRELATION: Effect(mangle=wrong_correlation),
    FaultAction.GARBAGE_BODY: Effect(mangle=garbage_body),
    FaultAction.GARBAGE_FRAME: Effect(mangle=lambda _: GARBAGE_FRAME),
    FaultAction.DELAY: Effect(),
    FaultAction.SILENCE: Effect(),
    FaultAction.THROTTLE: Effect(),
}
"""The handlers in `apis` and `server` carry out the actions whose `Effect()` has no arguments."""


class TriggeredFaults(NamedTuple):
    """Faults that one request triggers, with their combined effect."""

    faults: tuple[Fault, ...] = ()

    @property
    def is_executed(self) -> bool:
        """Return True if no fault prevents the execution of the request."""
        return all(EFFECTS[fault.action].is_executed for fault in self.faults)

    @property
    def closes(self) -> bool:
        return any(EFFECTS[fault.action].closes for fault in self.faults)

    def mangle(self, frame: bytes) -> bytes:
        """Return the bytes to send instead of `frame`."""
        for fault in self.faults:
            frame = EFFECTS[fault.action].mangle(frame)
        return frame

    def milliseconds(self, action: FaultAction) -> int:
        """Return the sum of `ms` of the faults with this action."""
        return sum(fault.ms for fault in self.faults if fault.action is action)

    def error(self, action: FaultAction, target: Target = WHOLE_REQUEST) -> int:
        """Return the code that a fault of `action` sets for this part of the request, or 0."""
        codes = (fault.code for fault in self.faults if fault.action is action and fault.concerns(target))
        return next(codes, 0)


NO_FAULTS: Final = TriggeredFaults()


class InjectedFault(msgspec.Struct):
    """An injected fault with its number and its counts."""

    number: int
    fault: Fault
    matched: int = 0
    triggered: int = 0

    @property
    def is_spent(self) -> bool:
        return self.fault.times is not None and self.triggered >= self.fault.times

    def count_match(self) -> bool:
        """Count one match, and return True if it triggers the fault."""
        self.matched += 1
        since_nth = self.matched - self.fault.nth
        is_triggered = not self.is_spent and since_nth >= 0 and since_nth % self.fault.every == 0
        self.triggered += is_triggered
        return is_triggered


class FaultBook:
    """Faults of all brokers, in order of injection."""

    def __init__(self) -> None:
        self._injected: list[InjectedFault] = []
        self._numbers = count(1)

    @property
    def injected(self) -> list[InjectedFault]:
        """Return the faults that may still be triggered."""
        return list(self._injected)

    def inject(self, fault: Fault) -> int:
        """Add a fault and return its number."""
        number = next(self._numbers)
        self._injected.append(InjectedFault(number, fault))
        return number

    def clear(self, number: int | None = None) -> None:
        """Remove all faults, or the one of this number."""
        self._injected = [injected for injected in self._injected if number not in (None, injected.number)]

    def faults_for(
        self, api: ApiKey, broker: int, client: str, targets: Callable[[], Iterable[Target]]
    ) -> TriggeredFaults:
        """Return the faults that this request triggers, and count a match for all faults that match it."""
        if not self._injected:
            return NO_FAULTS
        found = tuple(targets())
        matching = [injected for injected in self._injected if injected.fault.matches(api, broker, client, found)]
        triggered = tuple(injected.fault for injected in matching if injected.count_match())
        self._injected = [injected for injected in self._injected if not injected.is_spent]
        return TriggeredFaults(triggered)
