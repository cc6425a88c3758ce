"""InitProducerId (22): a fresh producer id with epoch 0 for each request.

A real broker does the same for producers without a transactional id. This one refuses transactional ids.
"""

from __future__ import annotations

from typing import Any, Final

from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from bruce_mp.devbroker.apis.base import Api, Context
from bruce_mp.devbroker.codes import ApiKey, Code
from bruce_mp.devbroker.faults import FaultAction

__all__ = ["API"]


def handle(request: Any, context: Context) -> Any:
    code = context.triggered.error(FaultAction.ERROR) or refusal_of(request)
    if code:
        return response(context.version, code, -1, -1)
    return response(context.version, Code.NONE, context.cluster.new_producer_id(), 0)


def refusal_of(request: Any) -> int:
    """Return the error code for a transactional id, else NONE: this broker has no transactions."""
    return Code.NONE if request.transactional_id is None else Code.INVALID_REQUEST


def response(version: int, code: int, producer_id: int, epoch: int) -> Any:
    return InitProducerIdResponse(
        version=version, throttle_time_ms=0, error_code=code, producer_id=producer_id, producer_epoch=epoch
    )


API: Final = Api(ApiKey.INIT_PRODUCER_ID, (0, 5), InitProducerIdRequest, handle)
