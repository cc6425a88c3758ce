"""The settings for access control on this host; `config/sections.py` has the conventions."""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

from typing import Annotated

from msgspec import field

from bruce_mp.config import fields
from bruce_mp.config.fields import DAY_MS, INT32_MAX, LIVE, RESTART_TO_BIND, Section

__all__ = ["AllowGroups", "AllowUsers", "Group", "Mode", "Quota", "User"]

Mode = Annotated[
    int | None,
    fields.mode("Mode of the socket; senders need write permission. Absent: the umask decides."),
    RESTART_TO_BIND,
]
User = Annotated[str | None, fields.plain("Its owner, by name or number. Absent: the daemon's user."), RESTART_TO_BIND]
Group = Annotated[str | None, fields.plain("Its group. Absent: as for any file in its directory."), RESTART_TO_BIND]
AllowUsers = Annotated[
    tuple[str, ...],
    fields.accounts("Users that may send, among those that the mode admits. Both lists empty: all of them."),
    LIVE,
]
AllowGroups = Annotated[tuple[str, ...], fields.accounts("Groups that may send; see `docs/security.md`."), LIVE]


class Quota(Section, frozen=True):
    """Limits on the messages of a user; see `docs/security.md`."""

    interval_ms: Annotated[int, fields.plain("Length of an interval.", 1, DAY_MS), LIVE] = 1000
    max_messages: Annotated[
        int | None, fields.plain("Messages of a user in an interval. Absent or 0: no limit.", 0, INT32_MAX), LIVE
    ] = None
    tcp_max_messages: Annotated[
        int | None, fields.plain("The same for all TCP connections together.", 0, INT32_MAX), LIVE
    ] = None
    users: Annotated[
        dict[str, int],
        fields.plain("Limit of this user (name or number), instead of `max_messages`. 0: no limit.", 0, INT32_MAX),
        LIVE,
    ] = field(default_factory=dict)
