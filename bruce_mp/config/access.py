"""The settings for access control on this host; `config/sections.py` has the conventions."""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

from typing import Annotated, Final

from msgspec import field

from bruce_mp.config import fields
from bruce_mp.config.fields import LIVE
from bruce_mp.config.section import DAY_MS, INT32_MAX, RESTART_TO_BIND, Section

__all__ = ["AllowGroups", "AllowUsers", "Group", "Mode", "Quota", "User"]

Mode = (
    Annotated[
        int,
        fields.mode("Mode of the socket; senders need write permission. Absent: the umask decides."),
        RESTART_TO_BIND,
    ]
    | None
)
User = Annotated[str, fields.text("Its owner, by name or number. Absent: the daemon's user."), RESTART_TO_BIND] | None
Group = (
    Annotated[
        str,
        fields.text("Its group. Absent: as for any file in its directory."),
        RESTART_TO_BIND,
    ]
    | None
)
AllowUsers = Annotated[
    tuple[str, ...],
    fields.accounts("Users that may send, among those that the mode admits. Both lists empty: all of them."),
    LIVE,
]
AllowGroups = Annotated[
    tuple[str, ...],
    fields.accounts("Groups that may send; see `docs/security.md`."),
    LIVE,
]

_USER_LIMIT_MEANING: Final = "Limit of this user (name or number), instead of `max_messages`. 0: no limit."


class Quota(Section, frozen=True):
    """Limits on the messages of a user; see `docs/security.md`."""

    interval_ms: Annotated[int, fields.count("Length of an interval.", 1, DAY_MS), LIVE] = 1000
    max_messages: (
        Annotated[int, fields.count("Messages of a user in an interval. Absent or 0: no limit.", 0, INT32_MAX), LIVE]
        | None
    ) = None
    tcp_max_messages: (
        Annotated[
            int,
            fields.count("The same for all TCP connections together.", 0, INT32_MAX),
            LIVE,
        ]
        | None
    ) = None
    users: Annotated[
        dict[str, Annotated[int, fields.count(_USER_LIMIT_MEANING, 0, INT32_MAX), LIVE]],
        fields.text(_USER_LIMIT_MEANING),
        LIVE,
    ] = field(default_factory=dict)
