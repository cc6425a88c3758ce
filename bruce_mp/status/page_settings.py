"""Settings that the pages use, and the supervisor's report about the configuration in force."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bruce_mp.ipc.control_messages import ActiveConfig

if TYPE_CHECKING:
    from bruce_mp.config.model import Config
    from bruce_mp.config.sections import Http
    from bruce_mp.config.security import Tls

__all__ = ["NOT_REPORTED", "PageSettings"]

_MINUTE_MS: Final = 60_000
NOT_REPORTED: Final = ActiveConfig("", 0)
"""Value before the first report of the supervisor."""


@dataclass(frozen=True, slots=True)
class PageSettings:
    """Settings of the pages.

    `metadata_max_age_ms` is None if metadata may have any age. `has_copies` is True if the daemon writes copies of
    messages to files: the discard file, or those of message debugging. `sync_interval_ms` is the journal's.
    """

    tls: Tls
    metadata_max_age_ms: int | None
    http: Http
    sync_interval_ms: int
    has_copies: bool
    active_config: ActiveConfig = NOT_REPORTED

    @classmethod
    def of(cls, config: Config, active_config: ActiveConfig) -> PageSettings:
        # two intervals, because the router varies each, and a fetch takes time
        max_age_ms = 2 * config.delivery.metadata_refresh_interval_min * _MINUTE_MS
        has_copies = config.discard_log.enable or config.msg_debug.enable
        sync_ms = config.slab.sync_interval_ms
        return cls(config.kafka.tls, max_age_ms or None, config.http, sync_ms, has_copies, active_config)
