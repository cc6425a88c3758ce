"""The sending ends of links, without a receiver."""

from __future__ import annotations

__all__ = ["Keeping", "Nowhere"]


class Nowhere:
    """A link that accepts all data, and loses it."""

    def send_bytes(self, _: bytes) -> bool:
        return True


class Keeping:
    """A link that accepts all data, and keeps it in `sent`."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send_bytes(self, data: bytes) -> bool:
        self.sent.append(data)
        return True
