"""Sums of events on the way to the status process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from bruce_mp.telemetry.events import encode_events

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec

    from bruce_mp.telemetry.message_copies import ByteSender

__all__ = ["EventOutput"]


class _Sums(Protocol):
    def __bool__(self) -> bool: ...

    def events(self) -> Sequence[msgspec.Struct]: ...

    def clear(self) -> None: ...


class EventOutput:
    """The sender of sums, which keep growing until the link accepts them."""

    def __init__(self, sender: ByteSender, sums: _Sums) -> None:
        self._sender = sender
        self._sums = sums

    @property
    def pending(self) -> bool:
        """True if there are sums to send."""
        return bool(self._sums)

    def flush(self) -> None:
        """Send and clear the sums, unless the link refuses them."""
        if self._sums and self._sender.send_bytes(encode_events(self._sums.events())):
            self._sums.clear()
