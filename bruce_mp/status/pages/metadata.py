"""The page `/metadata_fetch_time`: times of the last metadata fetch and of the last metadata change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.slab import layout as lay
from bruce_mp.status.pages.header import Page, read_header
from bruce_mp.status.pages.text import stamp
from bruce_mp.telemetry.clock import utc_text

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["MetadataPage", "metadata_text", "read_metadata", "read_metadata_age"]


class MetadataPage(Page, frozen=True, kw_only=True):
    """JSON of `/metadata_fetch_time`. Unlike on other pages, `now` is in ms.

    `last_updated` is the time of the last successful metadata fetch; `last_modified` is the time of the last fetch that
    changed the metadata. Both are in ms since the epoch; 0 means never.
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
    """Return the ms since the last successful metadata fetch, by the steady clock, or None before the first fetch."""
    updated_ms = slab.read_signed(lay.SUPER_METADATA_UPDATED_MS)
    # In a slab from an older release, the steady time is 0; then use the time of the wall clock.
    fetched_ms = slab.read_signed(lay.SUPER_METADATA_STEADY_MS) or updated_ms
    return max(0, steady_now_ms - fetched_ms) if updated_ms else None


def metadata_text(page: MetadataPage) -> str:
    """Render the page in the same lines as Dory."""
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
