"""Links that lead nowhere."""

from __future__ import annotations

__all__ = ["Nowhere"]


class Nowhere:
    """A link that accepts all data, and loses it."""

    def send_bytes(self, _: bytes) -> bool:
        return True
