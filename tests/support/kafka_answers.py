"""A broker's answers, by kafka-python's encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka.protocol.metadata import ApiVersionsResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["framed", "versions"]


def framed(response: Any, correlation_id: int) -> bytes:
    """Return a response as a whole frame."""
    response.with_header(correlation_id=correlation_id)
    return bytes(response.encode(header=True, framed=True))


def versions(apis: Mapping[int, tuple[int, int]], correlation_id: int = 1, version: int = 3) -> bytes:
    """Return the ApiVersions response of a broker with the lowest and the highest version of each API."""
    keys = [
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
        for key, (low, high) in apis.items()
    ]
    return framed(ApiVersionsResponse[version](error_code=0, api_keys=keys), correlation_id)
