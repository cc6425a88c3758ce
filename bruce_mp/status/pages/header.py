"""The page `/server_info`, and the fields with which every page begins: pid, version, start and present time."""

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

__all__ = ["Page", "ServerInfoPage", "header_lines", "read_header", "read_server_info", "server_info_text"]

GUARANTEES: Final = ("not known yet", "exactly once", "at least once", "not known yet")
"""Delivery guarantee by the value at `layout.SUPER_IDEMPOTENCE`, a field in the head of the slab.

The value is 1 if the brokers detect duplicates, 2 if they do not, 0 if this is unknown, and 3 during a change to
another cluster.
"""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """First four fields of every page.

    `pid` is the process id of the supervisor, `since` the time of its start, and `now` the present time, both in
    seconds since the epoch.
    """

    pid: int
    version: str
    since: int
    now: int


class ServerInfoPage(Page, frozen=True, kw_only=True):
    """JSON of `/server_info`.

    `cluster_id` is the id of the cluster for which the held messages are; it is empty until a broker has first sent
    metadata. If the brokers belong to another cluster, `foreign_cluster_id` is the id of their cluster, else empty.
    `config_since` is the time of the last successful load of `config_file`, in seconds since the epoch.
    `config_reloads` is the number of successful reloads. If the last reload was refused, `config_refused` is the
    reason, else empty.
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
        delivery=GUARANTEES[slab.words[lay.SUPER_IDEMPOTENCE >> 2]],
        cluster_id=cluster_of(slab),
        foreign_cluster_id=router.foreign_cluster if router is not None else "",
        config_file=active_config.path,
        config_since=active_config.since_ms // 1000,
        config_reloads=active_config.reload_count,
        config_refused=active_config.refused,
    )


def server_info_text(page: ServerInfoPage) -> str:
    lines = [*header_lines(page)[:-1], f"delivery: {page.delivery}", f"cluster_id: {page.cluster_id}"]
    if page.foreign_cluster_id:
        lines.append(f"foreign_cluster_id: {page.foreign_cluster_id}")
    lines += [f"config_file: {page.config_file}", f"config_since: {stamp(page.config_since)}"]
    lines.append(f"config_reloads: {page.config_reloads}")
    if page.config_refused:
        lines.append(f"config_refused: {page.config_refused}")
    return "\n".join([*lines, ""])


def read_header(slab: Slab, now_ms: int) -> dict[str, Any]:
    """Return the fields of `Page`."""
    row = slab.row_at(lay.ROW_SUPERVISOR)
    return {
        "pid": slab.words[(row + lay.ROW_PID) >> 2],
        "version": __version__,
        "since": slab.read_signed(row + lay.ROW_STARTED_MS) // 1000,
        "now": now_ms // 1000,
    }


def header_lines(page: Page) -> list[str]:
    """Return the first lines of the text form of a page, ending with a blank line."""
    return [
        f"pid: {page.pid}",
        f"version: {page.version}",
        f"since: {stamp(page.since)}",
        f"now: {stamp(page.now)}",
        "",
    ]
