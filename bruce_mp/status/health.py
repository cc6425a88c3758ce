"""The page `/healthz`: one answer for a load balancer or service manager, and the reasons for it.

*Live* means that all processes that should run do their work; if not, the supervisor is restarting something or is
itself in trouble.  *Ready* means in addition that messages can get to Kafka: there is a picture of the cluster that is
not too old, and the books balance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.status.header import Page
from bruce_mp.status.metadata import read_metadata
from bruce_mp.status.rows import STALLED_MS, read_processes
from bruce_mp.telemetry.books import read_books

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab
    from bruce_mp.status.metadata import MetadataPage
    from bruce_mp.status.rows import ProcessesPage, ProcessLine
    from bruce_mp.telemetry.books import Books

__all__ = ["HealthPage", "judge", "read_health"]


class HealthPage(Page, frozen=True, kw_only=True):
    """The JSON of `/healthz`.

    `problems` are sentences, none when all is well.  `metadata_age_ms` is None before the first fetch.  `balanced` is
    None when the books could not be read consistently, which says nothing.
    """

    live: bool
    ready: bool
    problems: list[str]
    processes: dict[str, str]
    metadata_age_ms: int | None
    balanced: bool | None


def read_health(slab: Slab, now_ms: int, metadata_max_age_ms: int | None) -> HealthPage:
    """The page as of now; `metadata_max_age_ms` is None if metadata may have any age."""
    metadata = read_metadata(slab, now_ms)
    return judge(read_processes(slab, now_ms), metadata, read_books(slab), metadata_max_age_ms)


def judge(
    processes: ProcessesPage, metadata: MetadataPage, books: Books, metadata_max_age_ms: int | None
) -> HealthPage:
    """The health that follows from what was read."""
    age_ms = max(0, metadata.now - metadata.last_updated) if metadata.last_updated else None
    balanced = books.balanced if books.consistent else None
    dead = [text for line in processes.processes for text in _process_trouble(line)]
    more = [*_metadata_trouble(age_ms, metadata_max_age_ms), *_books_trouble(balanced=balanced)]
    return HealthPage(
        pid=processes.pid,
        version=processes.version,
        since=processes.since,
        now=processes.now,
        live=not dead,
        ready=not dead and not more,
        problems=dead + more,
        processes={line.name: line.state for line in processes.processes},
        metadata_age_ms=age_ms,
        balanced=balanced,
    )


def _process_trouble(line: ProcessLine) -> list[str]:
    who = f"The process {line.name} (pid {line.pid})"
    if line.state == "dead":
        return [f"{who} is dead; the supervisor's log says what it does about it."]
    if line.state == "stalled":
        silent_s, limit_s = line.heartbeat_age_ms // 1000, STALLED_MS // 1000
        return [f"{who} gave no sign of life for {silent_s} s, which is more than {limit_s}; see its log."]
    return []


def _metadata_trouble(age_ms: int | None, max_age_ms: int | None) -> list[str]:
    if age_ms is None:
        return ["No metadata has been fetched from Kafka yet; see the log for the brokers that were asked."]
    if max_age_ms is not None and age_ms > max_age_ms:
        return [f"The metadata is {age_ms // 1000} s old, more than two refresh intervals; see the log for why."]
    return []


def _books_trouble(*, balanced: bool | None) -> list[str]:
    if balanced is False:
        return ["The books do not balance: messages were lost or counted twice.  Please report it, with /books/json."]
    return []
