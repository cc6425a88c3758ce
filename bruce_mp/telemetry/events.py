"""Encode the events that processes report to the status process; `status.events` decodes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["encode_events"]


def encode_events(events: Iterable[msgspec.Struct]) -> bytes:
    """Encode events as one message of the link REPORTS."""
    return msgspec.msgpack.encode(list(events))
