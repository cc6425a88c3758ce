"""FindCoordinator (10): always refused, because the broker has no consumer groups; consumers use assign().

Consumers send this request even without a group and accept the refusal. They would treat a closed connection as a
broken broker.
"""

from __future__ import annotations

from typing import Any, Final

from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from bruce_mp.devbroker.apis.base import Api, Context
from bruce_mp.devbroker.codes import ApiKey, Code
from bruce_mp.devbroker.faults import FaultAction

__all__ = ["API"]

TEXT: Final = "The embedded broker has no consumer groups: use assign() in place of subscribe()."
MANY_KEYS_SINCE: Final = 4


def handle(request: Any, context: Context) -> Any:
    code = context.triggered.error(FaultAction.ERROR) or Code.COORDINATOR_NOT_AVAILABLE
    outcome = {"error_code": code, "error_message": TEXT, "node_id": -1, "host": "", "port": -1}
    if context.version < MANY_KEYS_SINCE:
        return FindCoordinatorResponse(version=context.version, **outcome)
    coordinators = [FindCoordinatorResponse.Coordinator(key=key, **outcome) for key in request.coordinator_keys]
    return FindCoordinatorResponse(version=context.version, coordinators=coordinators)


API: Final = Api(ApiKey.FIND_COORDINATOR, (0, 4), FindCoordinatorRequest, handle)
