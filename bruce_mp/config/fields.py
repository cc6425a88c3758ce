"""Define the types of settings: their notation, conversion, description and display.

The model annotates each setting with one of the factory functions below (`size()`, `count()`, ...). They return the
range and meaning for msgspec and name a *kind*, a row of `KINDS`. The row converts the TOML value to the plain value
that msgspec checks, shows values, and describes the allowed ones. Error texts and the reference page both come from
these rows, so they agree.

The marker at the end of the annotation states when a change takes effect: `LIVE`, with a reload, or `restart(reason)`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum, auto, unique
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_origin

from msgspec import Meta

from bruce_mp.config.addresses import parse_host_port, parse_listen
from bruce_mp.config.paths import PATH_MAX, RUN_DIR_MAX, SOCKET_PATH_MAX, check_path
from bruce_mp.config.sizes import GIB, format_size, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "LIVE",
    "ReloadRule",
    "SettingType",
    "accounts",
    "choice",
    "command",
    "count",
    "hosts",
    "listen",
    "mode",
    "path",
    "pattern",
    "restart",
    "servers",
    "setting_type",
    "show",
    "size",
    "switch",
    "text",
]

_MAX_SHOWN: Final = 80
"""Characters of a value in an error text, which has to fit into a line of a terminal."""
_MODE: Final = re.compile("0[0-7]{1,3}")


@unique
class SettingKind(Enum):
    """The notation of a setting's value; `KINDS` has a row for each."""

    PLAIN = auto()
    SIZE = auto()
    MODE = auto()
    PATH = auto()
    SOCKET_PATH = auto()
    RUN_DIR = auto()
    LISTEN = auto()
    SERVERS = auto()
    COMMAND = auto()
    ACCOUNTS = auto()
    HOSTS = auto()


@dataclass(frozen=True, slots=True)
class KindRow:
    """The conversion and description of a kind. `parse` raises ValueError; its text may give the reason.

    `allowed` is for error texts, `summary` for the reference page; both may contain `{range}`. If they are empty, the
    texts come from the setting's plain type.
    """

    parse: Callable[[Any], object]
    show: Callable[[Any], str]
    allowed: str
    summary: str


def show(value: object) -> str:
    """Return a value in JSON notation, which is close to TOML's; after 80 characters "..." replaces the rest."""
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."


def _show_size(size: int) -> str:
    shown = format_size(size)
    return shown if shown.isdigit() else f'"{shown}"'


def _parse_mode(raw: object) -> int:
    if not isinstance(raw, str) or not _MODE.fullmatch(raw):
        raise ValueError
    return int(raw, 8)


def _check_listen(raw: object) -> object:
    if isinstance(raw, str):
        parse_listen(raw)
    return raw


def _check_servers(raw: object) -> object:
    for item in raw if isinstance(raw, list) else ():
        if isinstance(item, str):
            parse_host_port(item)
    return raw


def _show_command(command: Sequence[str]) -> str:
    """Return the program, and only mention its arguments, which may contain a secret."""
    return show(command[0]) if len(command) == 1 else f"{show(command[0])} with arguments"


def _parse_accounts(raw: object) -> object:
    """Convert user and group numbers to strings, so that a list may mix integers and names."""
    if not isinstance(raw, list):
        return raw
    return [str(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in raw]


def _check_command(raw: object) -> object:
    if isinstance(raw, list) and raw:
        check_path(raw[0], PATH_MAX)
    return raw


KINDS: Final = {
    SettingKind.PLAIN: KindRow(lambda raw: raw, show, "", ""),
    SettingKind.SIZE: KindRow(parse_size, _show_size, "a size{range}", "size {range}"),
    SettingKind.MODE: KindRow(
        _parse_mode, lambda mode: f'"{mode:04o}"', 'an octal mode as a string, for example "0222"', "mode"
    ),
    SettingKind.PATH: KindRow(lambda raw: check_path(raw, PATH_MAX), show, "an absolute path", "path"),
    SettingKind.SOCKET_PATH: KindRow(
        lambda raw: check_path(raw, SOCKET_PATH_MAX),
        show,
        f"an absolute path of at most {SOCKET_PATH_MAX} bytes, the kernel's limit for a socket",
        f"path, {SOCKET_PATH_MAX} bytes",
    ),
    SettingKind.RUN_DIR: KindRow(
        lambda raw: check_path(raw, RUN_DIR_MAX),
        show,
        f"an absolute path of at most {RUN_DIR_MAX} bytes, so that the names of the sockets in it fit",
        f"path, {RUN_DIR_MAX} bytes",
    ),
    SettingKind.LISTEN: KindRow(_check_listen, show, '"host:port" or "unix:/path"', "address"),
    SettingKind.SERVERS: KindRow(_check_servers, show, 'a list of at least one "host:port"', "addresses"),
    SettingKind.COMMAND: KindRow(
        _check_command, _show_command, "a list of strings, the absolute path of a program and its arguments", "list"
    ),
    SettingKind.ACCOUNTS: KindRow(_parse_accounts, show, "a list of names or numbers", "accounts"),
    SettingKind.HOSTS: KindRow(lambda raw: raw, show, "a list of host names without ports", "host names"),
}


@dataclass(frozen=True, slots=True)
class ReloadRule:
    """The step that applies a changed setting: a restart if there is a reason for one, else a reload."""

    restart_reason: str = ""


LIVE: Final = ReloadRule()


def restart(because: str) -> ReloadRule:
    """Mark a setting that only a restart applies; `because` is a clause for the operator."""
    return ReloadRule(because)


@dataclass(frozen=True, slots=True)
class SettingType:
    """The parts of a setting's annotation: plain type, range and meaning for msgspec, and its reload rule.

    A section, or a map of sections, has only a type.
    """

    annotation: Any
    """The whole annotation, without `| None`."""
    type: Any
    meta: Meta
    reload_rule: ReloadRule | None = None

    @property
    def kind_row(self) -> KindRow:
        """Return the row that reads and shows values of this setting."""
        return KINDS[(self.meta.extra or {}).get("kind", SettingKind.PLAIN)]

    @property
    def meaning(self) -> str:
        """Return the setting's description, one sentence."""
        return self.meta.description or ""

    @property
    def allowed(self) -> str:
        """Return the description of the allowed values, to follow "give"."""
        return self.kind_row.allowed.format(range=self._range()) or self._describe_plain()

    @property
    def summary(self) -> str:
        """Return the kind and range of the allowed values in short, for the reference page."""
        return self.kind_row.summary.format(range=self._short_range()) or self._summarize_plain()

    def show(self, value: object) -> str:
        """Return `value` as the configuration file would write it."""
        return "" if value is None else self.kind_row.show(value)

    def _range(self) -> str:
        if self.meta.ge is None or self.meta.le is None:
            return ""
        return f" from {self._show_bound(self.meta.ge)} to {self._show_bound(self.meta.le)}"

    def _short_range(self) -> str:
        # The 0 for a missing bound is not shown: the summary of a kind without a range does not contain `{range}`.
        return f"{self._show_bound(self.meta.ge or 0)}..{self._show_bound(self.meta.le or 0)}"

    def _summarize_plain(self) -> str:
        if get_origin(self.type) is Literal:
            return ", ".join(show(value) for value in get_args(self.type))
        if self.type is int:
            return self._short_range()
        return "boolean" if self.type is bool else "string"

    def _show_bound(self, value: float) -> str:
        return format_size(int(value)) if self.kind_row is KINDS[SettingKind.SIZE] else str(value)

    def _describe_plain(self) -> str:
        if get_origin(self.type) is Literal:
            return " or ".join(show(value) for value in get_args(self.type))
        if self.type is bool:
            return "true or false"
        if self.type is int:
            return f"an integer{self._range()}"
        examples = ", ".join(show(example) for example in self.meta.examples or ())
        return "a string in quotes" + (f", for example {examples}" if examples else "")


def setting_type(annotation: Any) -> SettingType:
    """Split `Annotated[T, Meta, ReloadRule]`, `Annotated[T, Meta, ReloadRule] | None` or plain `T` into its parts.

    Raise TypeError for a setting without a reload rule.
    """
    if NoneType in get_args(annotation):
        annotation = next(member for member in get_args(annotation) if member is not NoneType)
    if get_origin(annotation) is Annotated:
        bare, meta, *reload_rule = get_args(annotation)
        if len(reload_rule) != 1:
            raise TypeError(f"{meta.description!r}: add LIVE, or restart(because), after it in the annotation.")
        return SettingType(annotation, bare, meta, *reload_rule)
    return SettingType(annotation, annotation, Meta())


def size(meaning: str, low: int = 0, high: int = GIB) -> Meta:
    """Describe a number of bytes from `low` to `high`: an integer or a string with k, m or g."""
    return Meta(description=meaning, ge=low, le=high, extra={"kind": SettingKind.SIZE})


def count(meaning: str, low: int, high: int) -> Meta:
    """Describe an integer from `low` to `high`."""
    return Meta(description=meaning, ge=low, le=high)


def switch(meaning: str) -> Meta:
    """Describe a boolean."""
    return Meta(description=meaning)


def choice(meaning: str) -> Meta:
    """Describe a choice among the values of a `Literal`."""
    return Meta(description=meaning)


def text(meaning: str) -> Meta:
    """Describe any string."""
    return Meta(description=meaning)


def pattern(meaning: str, regex: str, example: str) -> Meta:
    """Describe a string that matches `regex`, which must be anchored; error texts show the example."""
    return Meta(description=meaning, pattern=regex, examples=[example])


def mode(meaning: str) -> Meta:
    """Describe permission bits, written as an octal string."""
    return Meta(description=meaning, extra={"kind": SettingKind.MODE})


def path(meaning: str, kind: SettingKind = SettingKind.PATH) -> Meta:
    """Describe an absolute path; `kind` limits its length."""
    return Meta(description=meaning, extra={"kind": kind})


def listen(meaning: str) -> Meta:
    """Describe an address to listen on."""
    return Meta(description=meaning, extra={"kind": SettingKind.LISTEN})


def servers(meaning: str) -> Meta:
    """Describe a list of at least one `host:port`."""
    return Meta(description=meaning, min_length=1, extra={"kind": SettingKind.SERVERS})


def command(meaning: str) -> Meta:
    """Describe a program with its arguments."""
    return Meta(description=meaning, min_length=1, extra={"kind": SettingKind.COMMAND})


def accounts(meaning: str) -> Meta:
    """Describe users or groups by name or number."""
    return Meta(description=meaning, extra={"kind": SettingKind.ACCOUNTS})


def hosts(meaning: str) -> Meta:
    """Describe a list of host names."""
    return Meta(description=meaning, extra={"kind": SettingKind.HOSTS})
