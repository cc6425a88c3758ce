"""Types that the handlers of all APIs use: the description of an API, and the context of one request."""

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
    """The data that a handler needs besides the request."""

    apis: Mapping[int, Api]
    """All APIs by key, for ApiVersions."""
    cluster: Cluster
    statistics: Statistics
    broker: int
    """Id of the broker that received the request."""
    version: int
    """Version of the request and of the response."""
    triggered: TriggeredFaults = NO_FAULTS
    """The faults that the request triggers."""

    def raise_scripted_error(self, target: Target = WHOLE_REQUEST) -> None:
        """Raise RefusedError if a scripted fault sets an error code for this part of the request."""
        code = self.triggered.error_code(FaultAction.ERROR, target)
        if code:
            raise RefusedError(code, "A scripted fault sets this error.")


def topic_targets(request: Any) -> list[Target]:
    """Return the topics of a request that lists them in its field `topics`, as the parts that a fault may concern."""
    return [Target(topic.name) for topic in request.topics or ()]


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its versions, its request class, its handler.

    The functions get requests and return responses as objects of kafka-python's classes.
    """

    key: ApiKey
    advertised: tuple[int, int]
    """Lowest and highest advertised version."""
    request_class: Any
    """kafka-python's class, which decodes requests."""
    handle: Callable[[Any, Context], Any]
    """Executes a request. Returns the response, or None if the client expects none (Produce with acks 0)."""
    served_from: int = 0
    """The lowest served version. Lower versions may be advertised, as in Kafka, but close the connection."""
    targets: Callable[[Any], Iterable[Target]] = lambda _: ()
    """Returns the topics or partitions of a request, as the parts that a fault may concern."""
    max_wait_s: Callable[[Any], float] = lambda _: 0.0
    """Returns the time in seconds for which a request allows the broker to wait for a sufficient response."""
    is_sufficient: Callable[[Any, Any], bool] = lambda _request, _response: True
    """Returns True if the response to a request may be sent before this wait ends."""

    def serves(self, version: int) -> bool:
        return max(self.served_from, self.advertised[0]) <= version <= self.advertised[1]

    @property
    def name(self) -> str:
        """Return the name as in the protocol's documentation, for example "Produce"."""
        return str(self.request_class.__name__).removesuffix("Request")
