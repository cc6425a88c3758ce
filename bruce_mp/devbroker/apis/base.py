"""What the handlers have in common: the record that describes an API, and the context of one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bruce_mp.devbroker.codes import ApiKey, RefusedError
from bruce_mp.devbroker.faults import NO_FAULTS, Action, Struck, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from bruce_mp.devbroker.cluster import Cluster
    from bruce_mp.devbroker.statistics import Statistics

__all__ = ["Api", "Context", "always_enough", "no_patience", "no_targets"]


@dataclass(frozen=True, slots=True)
class Context:
    """Where a request arrived and what is to be done to it."""

    apis: Mapping[int, Api]
    cluster: Cluster
    statistics: Statistics
    broker: int
    version: int
    struck: Struck = NO_FAULTS

    def check_fault(self, topic: str | None = None, partition: int | None = None) -> None:
        """Raises RefusedError with the code that a scripted fault wants for this part of the request, if one does."""
        code = self.struck.error(Action.ERROR, topic, partition)
        if code:
            raise RefusedError(code, "A scripted fault wants this error.")


def no_targets(_: Any) -> Iterable[Target]:
    return ()


def no_patience(_: Any) -> float:
    return 0.0


def always_enough(_request: Any, _response: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its versions, its request schema, its handler."""

    key: ApiKey
    advertised: tuple[int, int]
    """Lowest and highest version that ApiVersions tells."""
    request: Any
    """kafka-python's request class."""
    handle: Callable[[Any, Context], Any]
    """Returns kafka-python's response, or None where the protocol knows no answer (Produce with acks 0)."""
    served_from: int = 0
    """Advertised versions below it close the connection."""
    targets: Callable[[Any], Iterable[Target]] = no_targets
    """The topics and partitions that a request is about."""
    patience: Callable[[Any], float] = no_patience
    """Seconds that the request may wait until its response is enough."""
    enough: Callable[[Any, Any], bool] = always_enough
    """Is this response worth sending before the patience is over?"""

    def serves(self, version: int) -> bool:
        return max(self.served_from, self.advertised[0]) <= version <= self.advertised[1]

    @property
    def name(self) -> str:
        """As in the protocol's documentation, "Produce"."""
        return str(self.request.__name__).removesuffix("Request")
