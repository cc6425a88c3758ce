"""Decode requests from frames, and encode responses as frames.

A frame is a length of 4 bytes and a request or a response. In each version of the protocol, a request begins with the
API key, the version and the correlation id. kafka-python's schemas define the rest; their exceptions for malformed
input become `RemoteProtocolError`, at which the server closes the connection, as a real broker does.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bruce_mp.devbroker.apis import APIS, Api
from bruce_mp.devbroker.codes import ApiKey
from bruce_mp.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FRAME_LENGTH", "FRAME_MAX", "Incoming", "decode", "encode", "frame_length"]

FRAME_LENGTH: Final = Struct(">i")
FRAME_MAX: Final = 104_857_600  # Kafka's socket.request.max.bytes
REQUEST_PREFIX: Final = Struct(">hhi")  # API key, version, correlation id
DECODE_ERRORS: Final = (struct.error, ValueError, IndexError, OverflowError)  # raised by kafka-python's schemas


class Incoming(NamedTuple):
    """A decoded request.

    A request of ApiVersions in an unknown version is not decoded: `request` is None, and `version` is 0, the version of
    the response.
    """

    api: Api
    version: int
    correlation_id: int
    request: Any
    """Object of kafka-python's request class."""

    @property
    def client_id(self) -> str | None:
        return None if self.request is None else self.request.header.client_id


def frame_length(length_field: bytes) -> int:
    """Decode the length of a frame from its first four bytes.

    Raise RemoteProtocolError if the length is too small or too large for a request.
    """
    length = int(FRAME_LENGTH.unpack(length_field)[0])
    if not REQUEST_PREFIX.size <= length <= FRAME_MAX:
        raise RemoteProtocolError(f"A frame of {length} bytes is not a Kafka request.")
    return length


def decode(frame: bytes, apis: Mapping[int, Api] = APIS) -> Incoming:
    """Decode a request. `frame` does not include the length.

    Raise RemoteProtocolError if the API or its version is not served, or the frame is malformed.
    """
    key, version, correlation_id = REQUEST_PREFIX.unpack_from(frame)
    api = apis.get(key)
    if api is not None and api.key is ApiKey.API_VERSIONS and not api.serves(version):
        return Incoming(api, 0, correlation_id, None)
    if api is None or not api.serves(version):
        raise RemoteProtocolError(f"Version {version} of API {key} is not served.")
    try:
        request = api.request_class.decode(frame, version=version, header=True)
    except DECODE_ERRORS as cause:
        raise RemoteProtocolError(f"A malformed {api.name} request of version {version}: {cause!r}.") from cause
    return Incoming(api, version, correlation_id, request)


def encode(response: Any, correlation_id: int, throttle_ms: int = 0) -> bytes:
    """Encode a response object of kafka-python in its version, as a frame that includes the length.

    If `throttle_ms` is not 0, it replaces the response's throttle time.
    """
    if throttle_ms and "throttle_time_ms" in response.fields:
        response.throttle_time_ms = throttle_ms
    response.with_header(correlation_id)
    frame: bytes = response.encode(header=True, framed=True)
    return frame
