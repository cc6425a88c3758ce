"""ApiVersions (18): the APIs and versions that this broker serves.

An unknown version of ApiVersions itself gets a response in the shape of version 0, with error 35 and the known versions
(KIP-511). It is the only unknown version for which a broker keeps the connection open.
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
        context.check_fault()
    except RefusedError as refusal:
        return (
            unsupported_version_response()
            if refusal.code == Code.UNSUPPORTED_VERSION
            else response(refusal.code, (), context.version)
        )
    return response(Code.NONE, context.apis.values(), context.version)


def unsupported_version_response() -> Any:
    """Return the response to an unknown version of ApiVersions."""
    return response(Code.UNSUPPORTED_VERSION, (API,), 0)


def response(code: int, apis: Iterable[Api], version: int) -> Any:
    ranges = [
        ApiVersionsResponse.ApiVersion(api_key=api.key, min_version=api.advertised[0], max_version=api.advertised[1])
        for api in apis
    ]
    return ApiVersionsResponse(version=version, error_code=code, api_keys=ranges)


API: Final = Api(ApiKey.API_VERSIONS, (0, 4), ApiVersionsRequest, handle)
