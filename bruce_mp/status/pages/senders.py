"""The page `/senders`: messages and refused connections of each local user, and of all TCP clients together."""

from __future__ import annotations

import pwd
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from bruce_mp.config.accounts import TCP_USER
from bruce_mp.slab.sender_usage import read_senders
from bruce_mp.status.pages.header import Page, header_lines, read_header

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["SendersPage", "read_senders_page", "senders_text"]


class SenderLine(msgspec.Struct, frozen=True):
    """Sums of a local user, or of all TCP clients together; then `uid` is None.

    `received` and the fields after it are the fields of `slab.sender_usage.SenderSums`, in the same order.
    """

    user: str
    uid: int | None
    received: int
    not_allowed: int
    over_quota: int
    refused_connections: int
    waited: int


class SendersPage(Page, frozen=True, kw_only=True):
    """JSON of `/senders`; the user with the most received messages comes first."""

    senders: list[SenderLine]


def read_senders_page(slab: Slab, now_ms: int) -> SendersPage:
    lines = [
        SenderLine(_name_of(user), None if user == TCP_USER else user, *sums)
        for user, sums in sorted(read_senders(slab).items(), key=lambda item: (-item[1].received, item[0]))
    ]
    return SendersPage(**read_header(slab, now_ms), senders=lines)


@lru_cache(maxsize=4096)
def _name_of(user: int) -> str:
    if user == TCP_USER:
        return "tcp"
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def senders_text(page: SendersPage) -> str:
    return "\n".join([*header_lines(page), *map(_text_line, page.senders), ""])


def _text_line(line: SenderLine) -> str:
    user = f"user: {line.user}" if line.uid is None else f"user: {line.user} uid: {line.uid}"
    refused = f"not_allowed: {line.not_allowed} over_quota: {line.over_quota} refused_connections: "
    return f"{user} received: {line.received} {refused}{line.refused_connections} waited: {line.waited}"
