"""The settings about who may use what on this host: part of `sections`, which says how they are written."""

# No `from __future__ import annotations` here: what the annotations name is used at run time.

from typing import Annotated, Final

from msgspec import field

from bruce_mp.config import fields
from bruce_mp.config.fields import LIVE
from bruce_mp.config.limits import DAY_MS, INT32_MAX
from bruce_mp.config.section import BOUND, Section

__all__ = ["AllowGroups", "AllowUsers", "Group", "Mode", "Quota", "User"]

Mode = (
    Annotated[int, fields.mode("Permission bits of the socket; senders need write. Absent: the umask decides."), BOUND]
    | None
)
User = (
    Annotated[str, fields.text("Name or number of the user who owns the socket file. Absent: the daemon's own."), BOUND]
    | None
)
Group = (
    Annotated[
        str, fields.text("Name or number of the file's group. Absent: that of a file the daemon makes there."), BOUND
    ]
    | None
)
AllowUsers = Annotated[
    tuple[str, ...],
    fields.accounts("Users who may send, of those whom the mode lets in. Empty, and `allow_groups` too: all of them."),
    LIVE,
]
AllowGroups = Annotated[
    tuple[str, ...],
    fields.accounts("Groups whose members may send as well; `docs/security.md` says who is a member."),
    LIVE,
]

_OF_ONE: Final = "Messages of this user (name or number), instead. 0: no limit."


class Quota(Section, frozen=True):
    """How many messages a user may send, so that nobody starves the others. No limit unless configured.

    A user is who runs the sending process; all that he sends counts together, by whatever UNIX socket it comes. What is
    beyond the quota is not read from his stream connections before the next interval; as a datagram it is discarded.
    """

    interval_ms: Annotated[int, fields.count("Length of an interval.", 1, DAY_MS), LIVE] = 1000
    max_messages: (
        Annotated[int, fields.count("Messages of a user in an interval. Absent or 0: no limit.", 0, INT32_MAX), LIVE]
        | None
    ) = None
    tcp_max_messages: (
        Annotated[
            int,
            fields.count(
                "Messages of all TCP connections together, as of one user. Absent or 0: no limit.", 0, INT32_MAX
            ),
            LIVE,
        ]
        | None
    ) = None
    users: Annotated[
        dict[str, Annotated[int, fields.count(_OF_ONE, 0, INT32_MAX), LIVE]], fields.text(_OF_ONE), LIVE
    ] = field(default_factory=dict)
