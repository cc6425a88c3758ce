"""What every page begins with: which daemon this is, since when, and what time it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from bruce_mp import __version__
from bruce_mp.slab import layout as lay
from bruce_mp.status.text import stamp

if TYPE_CHECKING:
    from bruce_mp.pipes.control import InForce
    from bruce_mp.slab.file import Slab

__all__ = ["Page", "ServerInfoPage", "header_lines", "read_header", "read_server_info", "server_info_plain"]

DELIVERIES: Final = ("not known yet", "exactly once", "at least once")
"""By what `layout.SUPER_IDEMPOTENCE` says: recognising what they have already is the brokers' part in it."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The first four fields of every page.

    `pid` is the supervisor's, `since` its start; both change when the daemon is started anew, and not when one of its
    processes is.  Times are seconds since the epoch.
    """

    pid: int
    version: str
    since: int
    now: int


class ServerInfoPage(Page, frozen=True, kw_only=True):
    """The JSON of `/server_info`.

    `delivery` is what the brokers were found to be able to.  `config_*`: the file of the configuration, since when it
    is in force as it is, how many reloads there were, and why the last one was refused, empty if it was not.
    """

    delivery: str
    config_file: str
    config_since: int
    config_reloads: int
    config_refused: str


def read_server_info(slab: Slab, in_force: InForce, now_ms: int) -> ServerInfoPage:
    """The page as of now."""
    return ServerInfoPage(
        **read_header(slab, now_ms),
        delivery=DELIVERIES[slab.words[lay.SUPER_IDEMPOTENCE >> 2]],
        config_file=in_force.path,
        config_since=in_force.since_ms // 1000,
        config_reloads=in_force.reloads,
        config_refused=in_force.refused,
    )


def server_info_plain(page: ServerInfoPage) -> str:
    """The plain form."""
    refused = [f"config_refused: {page.config_refused}"] if page.config_refused else []
    return "\n".join(
        [
            *header_lines(page)[:-1],
            f"delivery: {page.delivery}",
            f"config_file: {page.config_file}",
            f"config_since: {stamp(page.config_since)}",
            f"config_reloads: {page.config_reloads}",
            *refused,
            "",
        ]
    )


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
