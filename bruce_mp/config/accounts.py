"""Resolve the users and groups in allow lists and quotas to uids and gids.

Each call reads the user and group databases as they are now, and ignores a name without an account. Only
`check_accounts`, at the start of the daemon and at a reload, treats such a name as an error.
"""

from __future__ import annotations

import grp
import pwd
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from bruce_mp.config.inputs import Input, Quota, UnixDatagram, UnixStream

__all__ = [
    "TCP_USER",
    "AllowList",
    "QuotaLimits",
    "allow_list_of",
    "check_accounts",
    "gid_of",
    "quota_limits",
    "uid_of",
]

TCP_USER: Final = -1
"""The uid that stands for the users of all TCP connections together, because these users are unknown."""
_MAX_ID: Final = 2**32 - 2
"""The largest uid and gid; Linux reserves 2**32 - 1."""


class AllowList(NamedTuple):
    """The users and groups that may send on a socket."""

    uids: frozenset[int]
    gids: frozenset[int]

    def admits(self, uid: int, gids: Iterable[int]) -> bool:
        return uid in self.uids or not self.gids.isdisjoint(gids)


class QuotaLimits(NamedTuple):
    """The maximum numbers of messages in an interval; None means no limit.

    `by_uid` has the limits of single users, `default` is the limit of each other user, and `tcp` is the limit of all
    TCP connections together.
    """

    interval_ms: int
    default: int | None
    tcp: int | None
    by_uid: Mapping[int, int | None]

    def limit_for(self, user: int) -> int | None:
        """Return the limit of `user`, which is a uid or TCP_USER."""
        return self.tcp if user == TCP_USER else self.by_uid.get(user, self.default)


def uid_of(name: str) -> int:
    """Return the uid of a user, given by name or number. Raise KeyError for an unknown name or too large a number."""
    return _parse_id(name) if name.isdecimal() else pwd.getpwnam(_checked(name)).pw_uid


def gid_of(name: str) -> int:
    """Return the gid of a group, given by name or number. Raise KeyError for an unknown name or too large a number."""
    return _parse_id(name) if name.isdecimal() else grp.getgrnam(_checked(name)).gr_gid


def _checked(name: str) -> str:
    """Return the name of an account. Raise KeyError for a NUL, because the C library's names end at it."""
    if "\0" in name:
        raise KeyError(name)
    return name


def _parse_id(text: str) -> int:
    if len(text) > len(str(_MAX_ID)) or int(text) > _MAX_ID:
        raise KeyError(text)
    return int(text)


def allow_list_of(config: UnixDatagram | UnixStream) -> AllowList | None:
    """Return the allow list of a socket, or None if only the mode of the socket file restricts senders.

    The list has the uids of each group's members, too, because the credentials of a datagram name only the primary
    group of its sender.
    """
    if not config.allow_users and not config.allow_groups:
        return None
    gids = frozenset(_resolve_known(config.allow_groups, gid_of))
    members = (name for gid in gids for name in _members_of(gid))
    return AllowList(frozenset(_resolve_known((*config.allow_users, *members), uid_of)), gids)


def _members_of(gid: int) -> list[str]:
    """Return the names of the users that the group database lists as members of a group."""
    try:
        return grp.getgrgid(gid).gr_mem
    except KeyError:
        return []


def _resolve_known(names: Iterable[str], look_up: Callable[[str], int]) -> Iterator[int]:
    """Yield the uid or gid of each name that has an account."""
    for name in names:
        with suppress(KeyError):
            yield look_up(name)


def quota_limits(config: Quota) -> QuotaLimits | None:
    """Return the limits in the configuration, or None if it limits nobody."""
    # In the configuration 0 stands for no limit, here None does.
    by_uid = {uid: limit or None for name, limit in config.users.items() for uid in _resolve_known((name,), uid_of)}
    limits = QuotaLimits(config.interval_ms, config.max_messages or None, config.tcp_max_messages or None, by_uid)
    return limits if limits.default or limits.tcp or any(by_uid.values()) else None


def check_accounts(config: Input) -> None:
    """Raise StartError if a name in the quotas or in an enabled socket's allow list has no account on this host."""
    problems = list(_unknown_accounts(config))
    if problems:
        raise StartError("\n".join(problems))


def _unknown_accounts(config: Input) -> Iterator[str]:
    """Yield an error text for each name without an account."""
    for name, section in (("unix_datagram", config.unix_datagram), ("unix_stream", config.unix_stream)):
        if section.enable:
            yield from _unknown_names(f"input.{name}.allow_users", section.allow_users, "user", uid_of)
            yield from _unknown_names(f"input.{name}.allow_groups", section.allow_groups, "group", gid_of)
    yield from _unknown_names("input.quota.users", config.quota.users, "user", uid_of)


def _unknown_names(setting: str, names: Iterable[str], kind: str, look_up: Callable[[str], int]) -> Iterator[str]:
    for name in names:
        try:
            look_up(name)
        except KeyError:
            yield f'{setting}: there is no {kind} "{name}" on this host; create it or remove the name.'
