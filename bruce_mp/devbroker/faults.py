"""Scripted faults as data: the requests that a fault matches, and its effect on them.

A fault *matches* requests by API, broker, client, topic, partition and text. Some matches *trigger* the fault: with
`nth=3 every=2 times=4`, the matches 3, 5, 7 and 9 trigger it. The fault's action then applies to the request. One
request may trigger several faults; their effects add up.

Some actions change the execution of a request, the bytes of its response, or the connection: `EFFECTS` describes these
changes as data. The package `apis` and the module `server` carry out the other actions.
"""

from __future__ import annotations

from enum import StrEnum, unique
from functools import lru_cache
from ipaddress import ip_address, ip_network
from itertools import count
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec

from bruce_mp.devbroker.batch import decode_records
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

CORRELATION_OFFSET: Final = 4  # of the correlation id in a response, after the frame's length
BODY_OFFSET: Final = CORRELATION_OFFSET + 4
GARBAGE_FRAME: Final = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
"""Response of a web server to a Kafka client. The client reads its first four bytes as a frame length of 1.2 GB."""


@unique
class FaultAction(StrEnum):
    """Action of a fault. `code` and `ms` are fields of `Fault`."""

    ERROR = "error"
    """Return the error `code` for the matching parts of the request, and do not execute these parts."""
    ERROR_APPENDED = "error_appended"
    """Append the records, but return the error `code` for the matching partitions."""
    ACK_LOST = "ack_lost"
    """Execute the request, then close the connection without a response."""
    CLOSE = "close"
    """Close the connection without executing the request."""
    HALF_FRAME = "half_frame"
    """Execute the request, send half of the response, and close the connection."""
    WRONG_CORRELATION = "wrong_correlation"
    """Respond with a correlation id that no request in flight has."""
    GARBAGE_BODY = "garbage_body"
    """Respond with the right length and correlation id, and a body that cannot be decoded."""
    GARBAGE_FRAME = "garbage_frame"
    """Respond with bytes that are not a Kafka frame."""
    DELAY = "delay"
    """Execute the request at once, and respond `ms` later."""
    SILENCE = "silence"
    """Stop the whole broker for `ms`, as SIGSTOP would: it reads no requests and sends no responses."""
    THROTTLE = "throttle"
    """Respond with a throttle time of `ms`."""


PositiveInt = Annotated[int, msgspec.Meta(ge=1)]


class Target(NamedTuple):
    """The part of a request that a fault may concern: a partition, a topic, or the whole request.

    For a topic, `partition` is -1. For a whole request, such as a request about all topics, `topic` is None also.
    """

    topic: str | None = None
    partition: int = -1
    batch: bytes | None = None
    """The record batch for the partition, in a Produce request."""

    def contains(self, text: bytes) -> bool:
        """Return True if a key or a value of the batch contains the text."""
        try:
            records = decode_records(self.batch or b"")
        except RefusedError:
            return False
        return any(text in (field or b"") for record in records for field in (record.key, record.value))


WHOLE_REQUEST: Final = Target()


@lru_cache
def parse_network(text: str) -> IPv4Network | IPv6Network:
    return ip_network(text, strict=False)


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One scripted fault. A field that is None matches any value.

    Matches are counted from 1. The matches number nth, nth + every, nth + 2 * every and so on trigger the fault, until
    it has been triggered `times` times.
    """

    action: FaultAction
    api: ApiKey | None = ApiKey.PRODUCE
    broker: int | None = None
    client: str | None = None
    """IP address of the client, or a network such as "127.0.0.0/30"."""
    topic: str | None = None
    partition: int | None = None
    text: str | None = None
    """A text, in UTF-8, that the key or the value of a record contains. Only Produce requests have records."""
    nth: PositiveInt = 1
    every: PositiveInt = 1
    times: PositiveInt | None = 1
    """None: no limit."""
    code: Annotated[int, msgspec.Meta(ge=-(1 << 15), lt=1 << 15)] = 0
    """Error code of ERROR and ERROR_APPENDED."""
    ms: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Duration of DELAY, SILENCE and THROTTLE in milliseconds."""

    def __post_init__(self) -> None:
        if self.client is not None:
            parse_network(self.client)  # raises ValueError, which msgspec converts to ValidationError

    def concerns(self, target: Target) -> bool:
        """Return True if topic, partition and text of the fault match this part of a request."""
        return (
            (target.topic is None or self.topic in (None, target.topic))
            and self.partition in (None, target.partition)
            and (self.text is None or target.contains(self.text.encode()))
        )

    def matches(self, api: ApiKey, broker: int, client: str, targets: Collection[Target]) -> bool:
        """Return True if the fault matches this request: the request as a whole, or one of its parts `targets`."""
        if self.api not in (None, api) or self.broker not in (None, broker):
            return False
        if self.client is not None and ip_address(client) not in parse_network(self.client):
            return False
        concerns_whole_request = self.topic is None and self.partition is None and self.text is None
        return concerns_whole_request or any(map(self.concerns, targets))


def change_correlation_id(frame: bytes) -> bytes:
    """Flip a high bit of the correlation id, so that it matches no request in flight.

    Other faults may have cut the frame off before that bit; then it stays as it is.
    """
    after = CORRELATION_OFFSET + 1
    flipped = bytes(byte ^ 0x40 for byte in frame[CORRELATION_OFFSET:after])  # one byte, or none
    return frame[:CORRELATION_OFFSET] + flipped + frame[after:]


def overwrite_body(frame: bytes) -> bytes:
    """Fill the body with 0xFF, which no decoder accepts.

    In each version of a response, these bytes are negative lengths and counts, or varints that are too long.
    """
    return frame[:BODY_OFFSET] + b"\xff" * (len(frame) - BODY_OFFSET)


class Effect(NamedTuple):
    """Effect of an action on the execution of a request, the response and the connection. Defaults change nothing."""

    is_executed: bool = True
    mangle: Callable[[bytes], bytes] = lambda frame: frame
    """Returns the bytes to send in place of the response's frame."""
    closes: bool = False
    """True: the broker closes the connection after the request."""


EFFECTS: Final = {
    FaultAction.ERROR: Effect(),
    FaultAction.ERROR_APPENDED: Effect(),
    FaultAction.ACK_LOST: Effect(mangle=lambda _: b"", closes=True),
    FaultAction.CLOSE: Effect(is_executed=False, mangle=lambda _: b"", closes=True),
    FaultAction.HALF_FRAME: Effect(mangle=lambda frame: frame[: len(frame) // 2], closes=True),
    FaultAction.WRONG_CORRELATION: Effect(mangle=change_correlation_id),
    FaultAction.GARBAGE_BODY: Effect(mangle=overwrite_body),
    FaultAction.GARBAGE_FRAME: Effect(mangle=lambda _: GARBAGE_FRAME),
    FaultAction.DELAY: Effect(),
    FaultAction.SILENCE: Effect(),
    FaultAction.THROTTLE: Effect(),
}
"""The handlers in `apis`, or `server`, carry out the actions with `Effect()`."""


class TriggeredFaults(NamedTuple):
    """Faults that one request triggers, with their combined effect."""

    faults: tuple[Fault, ...] = ()

    @property
    def is_executed(self) -> bool:
        """Return True if no fault prevents the execution of the request."""
        return all(EFFECTS[fault.action].is_executed for fault in self.faults)

    @property
    def closes(self) -> bool:
        """Return True if a fault closes the connection after the request."""
        return any(EFFECTS[fault.action].closes for fault in self.faults)

    def mangle(self, frame: bytes) -> bytes:
        """Return the bytes to send in place of `frame`, the response with its length.

        If a fault suppresses the response, later faults change nothing.
        """
        for fault in self.faults:
            frame = EFFECTS[fault.action].mangle(frame) if frame else frame
        return frame

    def total_ms(self, action: FaultAction) -> int:
        """Return the milliseconds of all faults with this action, added up."""
        return sum(fault.ms for fault in self.faults if fault.action is action)

    def error_code(self, action: FaultAction, target: Target = WHOLE_REQUEST) -> int:
        """Return the error code that a fault with this action sets for this part of the request; 0 if none does."""
        codes = (fault.code for fault in self.faults if fault.action is action and fault.concerns(target))
        return next(codes, 0)


NO_FAULTS: Final = TriggeredFaults()


class InjectedFault(msgspec.Struct):
    """An injected fault with its number and its counts."""

    number: int
    fault: Fault
    matched: int = 0
    """How often a request has matched the fault."""
    triggered: int = 0
    """How often a match has triggered the fault."""

    @property
    def is_spent(self) -> bool:
        """Return True if the fault has been triggered `times` times, so that it cannot be triggered again."""
        return self.fault.times is not None and self.triggered >= self.fault.times

    def count_match(self) -> bool:
        """Count one match, and return True if it triggers the fault."""
        self.matched += 1
        matches_since_nth = self.matched - self.fault.nth
        is_triggered = not self.is_spent and matches_since_nth >= 0 and matches_since_nth % self.fault.every == 0
        self.triggered += is_triggered
        return is_triggered


class FaultBook:
    """The injected faults that may still be triggered, for all brokers, in the order of injection."""

    def __init__(self) -> None:
        self._injected: list[InjectedFault] = []
        self._numbers = count(1)

    @property
    def injected(self) -> list[InjectedFault]:
        return list(self._injected)

    def inject(self, fault: Fault) -> int:
        """Add a fault and return its number."""
        number = next(self._numbers)
        self._injected.append(InjectedFault(number, fault))
        return number

    def clear(self, number: int | None = None) -> None:
        """Remove the fault of this number, or all faults if it is None."""
        self._injected = [injected for injected in self._injected if number not in (None, injected.number)]

    def trigger_faults(
        self, api: ApiKey, broker: int, client: str, targets: Callable[[], Iterable[Target]]
    ) -> TriggeredFaults:
        """Count a match for each fault that matches this request, and return the faults that the request triggers.

        `targets` returns the parts of the request. It is called only if there are faults, because it takes time.
        """
        if not self._injected:
            return NO_FAULTS
        parts = tuple(targets())
        matching = [injected for injected in self._injected if injected.fault.matches(api, broker, client, parts)]
        triggered = tuple(injected.fault for injected in matching if injected.count_match())
        self._injected = [injected for injected in self._injected if not injected.is_spent]
        return TriggeredFaults(triggered)
