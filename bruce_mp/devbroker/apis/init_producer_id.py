"""InitProducerId (22): a fresh producer id with epoch 0, whatever the client had before.

That is what a real broker does for producers without a transactional id; those with one are refused.
"""

from __future__ import annotations

from typing import Any, Final

from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from bruce_mp.devbroker.apis.base import Api, Context
from bruce_mp.devbroker.codes import ApiKey, Code, Refused

__all__ = ["API"]


def handle(request: Any, context: Context) -> Any:
    try:
        context.check_fault()
        if request.transactional_id is not None:
            raise Refused(Code.INVALID_REQUEST, "This broker has no transactions.")
    except Refused as refusal:
        return response(context.version, refusal.code, -1, -1)
    return response(context.version, Code.NONE, context.cluster.new_producer_id(), 0)


def response(version: int, code: int, producer_id: int, epoch: int) -> Any:
    return InitProducerIdResponse(
        version=version, throttle_time_ms=0, error_code=code, producer_id=producer_id, producer_epoch=epoch
    )


API: Final = Api(ApiKey.INIT_PRODUCER_ID, (0, 5), InitProducerIdRequest, handle)
