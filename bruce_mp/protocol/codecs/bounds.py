"""Decompression stops where its caller cannot take more, and what ends too early is damaged."""

from __future__ import annotations

__all__ = ["bounded", "whole"]


def whole(plain: bytes, limit: int, *, ended: bool) -> bytes:
    """The plain form.  Raises EOFError if its end is missing, ValueError if it is too long."""
    bounded(len(plain), limit)
    if not ended:
        raise EOFError("they end too early")
    return plain


def bounded(length: int, limit: int) -> None:
    """Raises ValueError if there are more than `limit` bytes."""
    if length > limit:
        raise ValueError(f"they unfold to more than {limit} bytes")
