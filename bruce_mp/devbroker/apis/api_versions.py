"""ApiVersions (18): the APIs and versions that this broker serves.

A request of ApiVersions itself in an unknown version gets a response in the format of version 0, with error 35
(UNSUPPORTED_VERSION) and the known versions of ApiVersions (KIP-511). A request of any other API in an unknown version
closes the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from bruce_mp.devbroker.apis.base import Api, Context
from bruce_mp.devbroker.codes import ApiKey, Code, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["API", "unsupported_version_response"]


def handle(_request: Any, context: Context) -> Any:
    try:
        context.raise_scripted_error()
    except RefusedError as refusal:
        return (
            unsupported_version_response()
            if refusal.code == Code.UNSUPPORTED_VERSION
            else response(refusal.code, (), context.version)
        )
    return response(Code.NONE, context.apis.values(), context.version)


def unsupported_version_response() -> Any:
    """Return the response to a request of ApiVersions in an unknown version."""
    return response(Code.UNSUPPORTED_VERSION, (API,), 0)


def response(code: int, apis: Iterable[Api], version: int) -> Any:
    ranges = [
        ApiVersionsResponse.ApiVersion(api_key=api.key, min_version=api.advertised[0], max_version=api.advertised[1])
        for api in apis
    ]
    return ApiVersionsResponse(version=version, error_code=code, api_keys=ranges)


API: Final = Api(ApiKey.API_VERSIONS, (0, 4), ApiVersionsRequest, handle)
