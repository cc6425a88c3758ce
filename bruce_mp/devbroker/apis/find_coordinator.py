"""FindCoordinator (10): always refused, because the broker has no consumer groups.

Consumers with assign() also send this request, and continue after the refusal. If the broker did not serve this API, it
would have to close the connection, which consumers take for a failure of the broker.
"""

from __future__ import annotations

from typing import Any, Final

from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from bruce_mp.devbroker.apis.base import Api, Context
from bruce_mp.devbroker.codes import ApiKey, Code
from bruce_mp.devbroker.faults import FaultAction

__all__ = ["API"]

REFUSAL_TEXT: Final = "The embedded broker has no consumer groups: use assign() in place of subscribe()."
MANY_KEYS_VERSION: Final = 4  # the first version in which a request asks for several coordinators


def handle(request: Any, context: Context) -> Any:
    code = context.triggered.error_code(FaultAction.ERROR) or Code.COORDINATOR_NOT_AVAILABLE
    outcome = {"error_code": code, "error_message": REFUSAL_TEXT, "node_id": -1, "host": "", "port": -1}
    if context.version < MANY_KEYS_VERSION:
        return FindCoordinatorResponse(version=context.version, **outcome)
    coordinators = [FindCoordinatorResponse.Coordinator(key=key, **outcome) for key in request.coordinator_keys]
    return FindCoordinatorResponse(version=context.version, coordinators=coordinators)


API: Final = Api(ApiKey.FIND_COORDINATOR, (0, 4), FindCoordinatorRequest, handle)
