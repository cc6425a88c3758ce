"""Allow lists and quotas: the resolution of users and groups."""

from __future__ import annotations

import grp
import pwd
from typing import TYPE_CHECKING

import pytest

from bruce_mp.config.accounts import TCP_USER, AllowList, QuotaLimits, allow_list_of, check_accounts, quota_limits
from bruce_mp.config.inputs import Input, Quota, UnixDatagram, UnixStream
from bruce_mp.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.config.model import Config

    Load = Callable[..., Config]

ROOT = pwd.getpwuid(0).pw_name
ROOTS = grp.getgrgid(0).gr_name


def test_an_input_without_allow_lists_admits_every_sender() -> None:
    assert allow_list_of(UnixDatagram()) is None
    assert allow_list_of(UnixStream()) is None


def test_allow_lists_accept_names_and_numbers() -> None:
    found = allow_list_of(UnixDatagram(allow_users=(ROOT, "1234"), allow_groups=(ROOTS, "70000")))
    assert found is not None
    assert {0, 1234} <= found.uids
    assert found.gids == {0, 70000}
    assert found.admits(1234, (5,))
    assert found.admits(5, (6, 70000))
    assert not found.admits(5, (6, 1234))


def test_an_allowed_group_admits_its_listed_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members may send also if their processes have another primary group."""
    group = grp.struct_group(("senders", "x", 70000, [ROOT, "nobody-has-this-name"]))
    monkeypatch.setattr(grp, "getgrnam", {"senders": group}.__getitem__)
    monkeypatch.setattr(grp, "getgrgid", {70000: group}.__getitem__)
    assert allow_list_of(UnixStream(allow_groups=("senders",))) == AllowList(frozenset({0}), frozenset({70000}))


def test_an_allow_list_of_a_removed_user_admits_no_sender() -> None:
    gone = allow_list_of(UnixDatagram(allow_users=("nobody-has-this-name",)))
    assert gone == AllowList(frozenset(), frozenset())
    assert not gone.admits(0, (0,))


def test_quota_limits_resolve_users_and_defaults() -> None:
    assert quota_limits(Quota()) is None
    assert quota_limits(Quota(max_messages=0, users={ROOT: 0})) is None
    limits = quota_limits(
        Quota(interval_ms=50, max_messages=10, tcp_max_messages=7, users={ROOT: 0, "5": 3, "gone": 1})
    )
    assert limits == QuotaLimits(50, 10, 7, {0: None, 5: 3})
    assert [limits.limit_for(user) for user in (0, 5, 6, TCP_USER)] == [None, 3, 10, 7]


def test_a_quota_of_users_does_not_limit_tcp() -> None:
    limits = quota_limits(Quota(max_messages=10))
    assert limits is not None
    assert limits.limit_for(TCP_USER) is None


def test_unknown_names_are_reported_with_their_settings() -> None:
    config = Input(
        unix_datagram=UnixDatagram(allow_users=(ROOT, "x"), allow_groups=("y\0", "70000")),
        unix_stream=UnixStream(allow_users=("z",)),  # not enabled
        quota=Quota(users={"q\0": 1, "12": 1}),
    )
    with pytest.raises(StartError) as raised:
        check_accounts(config)
    assert str(raised.value).splitlines() == [
        'input.unix_datagram.allow_users: there is no user "x" on this host; create it or remove the name.',
        'input.unix_datagram.allow_groups: there is no group "y\0" on this host; create it or remove the name.',
        'input.quota.users: there is no user "q\0" on this host; create it or remove the name.',
    ]


@pytest.mark.parametrize(("written", "read"), [('["a", "1"]', ("a", "1")), ('["a", 1]', ("a", "1")), ("[]", ())])
def test_account_lists_accept_strings_and_integers(load: Load, written: str, read: tuple[str, ...]) -> None:
    assert load(f"[input.unix_datagram]\nallow_users = {written}\n").input.unix_datagram.allow_users == read


@pytest.mark.parametrize("written", ['"a"', "[true]", "[1.5]", "5"])
def test_an_invalid_account_list_is_rejected(load: Load, written: str) -> None:
    with pytest.raises(Exception, match=r"input\.unix_datagram\.allow_users.*give a list of names or numbers"):
        load(f"[input.unix_datagram]\nallow_users = {written}\n")
