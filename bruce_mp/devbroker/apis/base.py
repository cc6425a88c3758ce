"""Base of the handlers: the description of an API, and the context of one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bruce_mp.devbroker.codes import ApiKey, RefusedError
from bruce_mp.devbroker.faults import NO_FAULTS, WHOLE_REQUEST, FaultAction, Target, TriggeredFaults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from bruce_mp.devbroker.cluster import Cluster
    from bruce_mp.devbroker.statistics import Statistics

__all__ = ["Api", "Context", "topic_targets"]


@dataclass(frozen=True, slots=True)
class Context:
    """Broker and state that serve a request, and the faults that it triggers."""

    apis: Mapping[int, Api]
    cluster: Cluster
    statistics: Statistics
    broker: int
    version: int
    triggered: TriggeredFaults = NO_FAULTS

    def check_fault(self, target: Target = WHOLE_REQUEST) -> None:
        """Raise RefusedError if a scripted fault sets an error code for this part of the request."""
        code = self.triggered.error(FaultAction.ERROR, target)
        if code:
            raise RefusedError(code, "A scripted fault sets this error.")


def topic_targets(request: Any) -> list[Target]:
    """Return the topics of a request whose field `topics` has them."""
    return [Target(topic.name) for topic in request.topics or ()]


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its versions, its request schema, its handler."""

    key: ApiKey
    advertised: tuple[int, int]
    """Lowest and highest version that ApiVersions advertises."""
    request: Any
    """kafka-python's request class."""
    handle: Callable[[Any, Context], Any]
    """Returns kafka-python's response, or None if the protocol has no response (Produce with acks 0)."""
    served_from: int = 0
    """The lowest served version.  As in Kafka, lower ones may be advertised; their use closes the connection."""
    targets: Callable[[Any], Iterable[Target]] = lambda _: ()
    """Topics and partitions of a request."""
    max_wait_s: Callable[[Any], float] = lambda _: 0.0
    """Longest wait for a sufficient response, in seconds."""
    is_sufficient: Callable[[Any, Any], bool] = lambda _request, _response: True
    """Returns True if a response may be sent before the wait ends."""

    def serves(self, version: int) -> bool:
        return max(self.served_from, self.advertised[0]) <= version <= self.advertised[1]

    @property
    def name(self) -> str:
        """Return the name as in the protocol's documentation, for example "Produce"."""
        return str(self.request.__name__).removesuffix("Request")
