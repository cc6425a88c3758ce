"""InitProducerId (22): a new producer id with epoch 0 for each request.

A real broker does the same for a request without a transactional id. The embedded broker refuses transactional ids.
"""

from __future__ import annotations

from typing import Any, Final

from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from bruce_mp.devbroker.apis.base import Api, Context
from bruce_mp.devbroker.codes import ApiKey, Code
from bruce_mp.devbroker.faults import FaultAction

__all__ = ["API"]


def handle(request: Any, context: Context) -> Any:
    refusal_code = Code.NONE if request.transactional_id is None else Code.INVALID_REQUEST
    code = context.triggered.error_code(FaultAction.ERROR) or refusal_code
    producer_id, epoch = (-1, -1) if code else (context.cluster.new_producer_id(), 0)
    return InitProducerIdResponse(
        version=context.version, error_code=code, producer_id=producer_id, producer_epoch=epoch
    )


API: Final = Api(ApiKey.INIT_PRODUCER_ID, (0, 5), InitProducerIdRequest, handle)
