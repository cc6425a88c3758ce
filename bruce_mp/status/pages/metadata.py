"""The page `/metadata_fetch_time`: times of the last metadata fetch and of the last metadata change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.slab import layout as lay
from bruce_mp.status.pages.header import Page, read_header
from bruce_mp.status.pages.text import stamp
from bruce_mp.telemetry.clock import utc_text

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["MetadataPage", "metadata_plain", "read_metadata", "read_metadata_age"]


class MetadataPage(Page, frozen=True, kw_only=True):
    """JSON of `/metadata_fetch_time`; on this page, `now` is in ms.

    `last_updated` is the time of the last successful fetch, `last_modified` that of the last fetch with a change. Both
    are in ms since the epoch; 0 means never.
    """

    last_updated: int
    last_modified: int


def read_metadata(slab: Slab, now_ms: int) -> MetadataPage:
    return MetadataPage(
        **{**read_header(slab, now_ms), "now": now_ms},
        last_updated=slab.read_signed(lay.SUPER_METADATA_UPDATED_MS),
        last_modified=slab.read_signed(lay.SUPER_METADATA_MODIFIED_MS),
    )


def read_metadata_age(slab: Slab, steady_now_ms: int) -> int | None:
    """Return the time since the last successful fetch in ms, by the steady clock; None before the first."""
    updated_ms = slab.read_signed(lay.SUPER_METADATA_UPDATED_MS)
    fetched_ms = slab.read_signed(lay.SUPER_METADATA_STEADY_MS) or updated_ms  # 0 in a slab of an older version
    return max(0, steady_now_ms - fetched_ms) if updated_ms else None


def metadata_plain(page: MetadataPage) -> str:
    """Render the page in the lines of Dory."""
    return "\n".join(
        [
            f"pid: {page.pid}",
            f"version: {page.version}",
            f"since: {stamp(page.since)}",
            _line("now", page.now),
            _line("metadata last updated at", page.last_updated),
            _line("metadata last modified at", page.last_modified),
            "",
        ]
    )


def _line(name: str, ms: int) -> str:
    return f"{name} (milliseconds since epoch): {ms} {utc_text(ms // 1000)}"
