"""What every page begins with: which daemon this is, since when, and what time it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from bruce_mp import __version__
from bruce_mp.slab import layout as lay
from bruce_mp.status.text import stamp

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["Page", "header_lines", "read_header"]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The first four fields of every page; the JSON of `/server_info`.

    `pid` is the supervisor's, `since` its start; both change when the daemon is started anew, and not when one of its
    processes is.  Times are seconds since the epoch.
    """

    pid: int
    version: str
    since: int
    now: int


def read_header(slab: Slab, now_ms: int) -> dict[str, Any]:
    """The fields of `Page`."""
    row = slab.geometry.rows_at + lay.ROW_SUPERVISOR * lay.ROW_BYTES
    return {
        "pid": slab.words[(row + lay.ROW_PID) >> 2],
        "version": __version__,
        "since": slab.signed(row + lay.ROW_STARTED_MS) // 1000,
        "now": now_ms // 1000,
    }


def header_lines(page: Page) -> list[str]:
    """The first lines of every plain page, with the empty one behind them."""
    return [
        f"pid: {page.pid}",
        f"version: {page.version}",
        f"since: {stamp(page.since)}",
        f"now: {stamp(page.now)}",
        "",
    ]
