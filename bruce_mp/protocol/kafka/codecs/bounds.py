"""Limits of decompression: errors for too much output and for input that ends too early."""

from __future__ import annotations

__all__ = ["bounded", "whole"]


def whole(plain: bytes, limit: int, *, ended: bool) -> bytes:
    """Return `plain`; raise EOFError if its end is missing, ValueError if it exceeds `limit`."""
    bounded(len(plain), limit)
    if not ended:
        raise EOFError("they end too early")
    return plain


def bounded(length: int, limit: int) -> None:
    """Raise ValueError for more than `limit` bytes."""
    if length > limit:
        raise ValueError(f"they unfold to more than {limit} bytes")
