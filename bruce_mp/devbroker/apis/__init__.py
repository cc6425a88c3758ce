"""APIs that the embedded broker serves, one module each, with a handler that makes a response from a request.

A request of an API that the table `APIS` lacks closes the connection, as with a real broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.devbroker.apis import (
    api_versions,
    create_partitions,
    create_topics,
    fetch,
    find_coordinator,
    init_producer_id,
    list_offsets,
    metadata,
    produce,
)
from bruce_mp.devbroker.apis.base import Api, Context

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["APIS", "Api", "Context"]

APIS: Final[Mapping[int, Api]] = {
    api.key: api
    for api in (
        produce.API, fetch.API, list_offsets.API, metadata.API, find_coordinator.API, api_versions.API,
        create_topics.API, create_partitions.API, init_producer_id.API,
    )
}  # fmt: skip
