"""ApiVersions (18): what this broker can.

A version of ApiVersions itself that is not known is answered in the shape of version 0 with error 35 and the versions
that are (KIP-511); that is the one request for which a broker does not close the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from bruce_mp.devbroker.apis.base import Api, Context
from bruce_mp.devbroker.codes import ApiKey, Code, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["API", "unsupported"]


def handle(_request: Any, context: Context) -> Any:
    try:
        context.check_fault()
    except RefusedError as refusal:
        return (
            unsupported() if refusal.code == Code.UNSUPPORTED_VERSION else response(refusal.code, (), context.version)
        )
    return response(Code.NONE, context.apis.values(), context.version)


def unsupported() -> Any:
    """The answer to a version that is not known."""
    return response(Code.UNSUPPORTED_VERSION, (API,), 0)


def response(code: int, apis: Iterable[Api], version: int) -> Any:
    ranges = [
        ApiVersionsResponse.ApiVersion(api_key=api.key, min_version=api.advertised[0], max_version=api.advertised[1])
        for api in apis
    ]
    return ApiVersionsResponse(version=version, error_code=code, api_keys=ranges)


API: Final = Api(ApiKey.API_VERSIONS, (0, 4), ApiVersionsRequest, handle)
