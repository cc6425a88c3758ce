"""CreatePartitions (37), versions 0 to 3: increase a topic's number of partitions.

The broker ignores the replicas that a request assigns.
"""

from __future__ import annotations

from typing import Any, Final

from kafka.protocol.admin import CreatePartitionsRequest, CreatePartitionsResponse

from bruce_mp.devbroker.apis.base import Api, Context, topic_targets
from bruce_mp.devbroker.codes import ApiKey, Code, RefusedError
from bruce_mp.devbroker.faults import Target

__all__ = ["API"]

Outcome: Final = CreatePartitionsResponse.CreatePartitionsTopicResult


def handle(request: Any, context: Context) -> Any:
    results = [answer(topic, request.validate_only, context) for topic in request.topics]
    return CreatePartitionsResponse(version=context.version, results=results)


def answer(wanted: Any, validate_only: bool, context: Context) -> Any:
    try:
        context.raise_scripted_error(Target(wanted.name))
        if validate_only:
            context.cluster.check_growth(wanted.name, wanted.count)
        else:
            context.cluster.add_partitions(wanted.name, wanted.count)
    except RefusedError as refusal:
        return Outcome(name=wanted.name, error_code=refusal.code, error_message=str(refusal))
    return Outcome(name=wanted.name, error_code=Code.NONE, error_message=None)


API: Final = Api(ApiKey.CREATE_PARTITIONS, (0, 3), CreatePartitionsRequest, handle, targets=topic_targets)
