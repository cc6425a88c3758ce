"""The first fields of every page (pid, version, start of the daemon, time of the reading), and `/server_info`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from bruce_mp import __version__
from bruce_mp.slab import layout as lay
from bruce_mp.slab.producer_id import cluster_of
from bruce_mp.status.pages.text import stamp

if TYPE_CHECKING:
    from bruce_mp.ipc.control_messages import ActiveConfig
    from bruce_mp.slab.file import Slab
    from bruce_mp.telemetry.broker_status import RouterStatus

__all__ = ["Page", "ServerInfoPage", "header_lines", "read_header", "read_server_info", "server_info_plain"]

DELIVERIES: Final = ("not known yet", "exactly once", "at least once", "not known yet")
"""Delivery guarantee by the value of `layout.SUPER_IDEMPOTENCE`: 0 unknown, 1 supported, 2 not supported, 3 the cluster
is changing. Exactly once requires brokers that detect duplicates.
"""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """First four fields of every page.

    `pid` and `since` (the start) are the supervisor's. Both change at a restart of the daemon, but not when the
    supervisor restarts one of its processes. Times are in seconds since the epoch.
    """

    pid: int
    version: str
    since: int
    now: int


class ServerInfoPage(Page, frozen=True, kw_only=True):
    """JSON of `/server_info`.

    `delivery` is the guarantee that the brokers support. `cluster_id` is the cluster that the messages are for, empty
    before the first metadata; `foreign_cluster_id` is that of the brokers if it is another one, else empty.
    `config_since` is the time of the last successful load of `config_file`; `config_refused` is the reason why the last
    reload was refused, or empty.
    """

    delivery: str
    cluster_id: str
    foreign_cluster_id: str
    config_file: str
    config_since: int
    config_reloads: int
    config_refused: str


def read_server_info(
    slab: Slab, active_config: ActiveConfig, router: RouterStatus | None, now_ms: int
) -> ServerInfoPage:
    return ServerInfoPage(
        **read_header(slab, now_ms),
        delivery=DELIVERIES[slab.words[lay.SUPER_IDEMPOTENCE >> 2]],
        cluster_id=cluster_of(slab),
        foreign_cluster_id=router.foreign_cluster if router is not None else "",
        config_file=active_config.path,
        config_since=active_config.since_ms // 1000,
        config_reloads=active_config.reloads,
        config_refused=active_config.refused,
    )


def server_info_plain(page: ServerInfoPage) -> str:
    lines = [*header_lines(page)[:-1], f"delivery: {page.delivery}", f"cluster_id: {page.cluster_id}"]
    if page.foreign_cluster_id:
        lines.append(f"foreign_cluster_id: {page.foreign_cluster_id}")
    lines += [f"config_file: {page.config_file}", f"config_since: {stamp(page.config_since)}"]
    lines.append(f"config_reloads: {page.config_reloads}")
    if page.config_refused:
        lines.append(f"config_refused: {page.config_refused}")
    return "\n".join([*lines, ""])


def read_header(slab: Slab, now_ms: int) -> dict[str, Any]:
    row = slab.row_at(lay.ROW_SUPERVISOR)
    return {
        "pid": slab.words[(row + lay.ROW_PID) >> 2],
        "version": __version__,
        "since": slab.read_signed(row + lay.ROW_STARTED_MS) // 1000,
        "now": now_ms // 1000,
    }


def header_lines(page: Page) -> list[str]:
    """Return the first lines of a plain page; the last one is blank."""
    return [
        f"pid: {page.pid}",
        f"version: {page.version}",
        f"since: {stamp(page.since)}",
        f"now: {stamp(page.now)}",
        "",
    ]
