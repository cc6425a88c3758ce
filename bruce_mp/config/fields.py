"""Define the types of settings: their notation, conversion, description and display.

The model annotates each setting with its plain Python type and a call of a *kind* (`size()`, `path()`, ...). The
arguments of the call are the meaning of the setting and its range. The kind converts a value of the TOML file to the
plain value that msgspec checks, shows values, and describes the allowed values. Error texts and the reference page both
come from the kinds, so the two agree.

The last part of the annotation states when a change takes effect: `LIVE` at a reload, `restart(reason)` at a restart.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

from msgspec import Meta, Struct

from bruce_mp.config.addresses import check_host, parse_host_port, parse_listen
from bruce_mp.config.paths import PATH_MAX, RUN_DIR_MAX, SOCKET_PATH_MAX, check_path
from bruce_mp.config.sizes import format_size, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

INT32_MAX: Final = 2**31 - 1
DAY_MS: Final = 24 * 60 * 60 * 1000
"""The largest allowed value of most durations."""
_MAX_SHOWN: Final = 80
"""Maximum number of characters of a value in an error text, which should fit into a line of a terminal."""
_MODE: Final = re.compile("0[0-7]{1,3}")


def show(value: object) -> str:
    """Return a value in JSON notation, which resembles TOML; "..." replaces all that follows 80 characters."""
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."


class Description(NamedTuple):
    """The kind of a setting; `meta` has the meaning and the range of the setting for msgspec."""

    kind: ValueKind
    meta: Meta


@dataclass(frozen=True, slots=True)
class ValueKind:
    """A notation of values in the file, such as that of sizes or of paths.

    `allowed` describes the allowed values in error texts, `summary` on the reference page. Both may contain `{range}`.
    If they are empty, the descriptions follow from the setting's plain type. `parse` converts a value of the file, and
    raises ValueError for an invalid one; the text of the error is the reason, or empty. `show` returns a converted
    value in the notation of the file.
    """

    allowed: str = ""
    summary: str = ""
    parse: Callable[[Any], object] = lambda raw: raw
    show: Callable[[Any], str] = show

    def __call__(self, meaning: str, low: int | None = None, high: int | None = None) -> Description:
        """Describe a setting of this kind, with values from `low` to `high`."""
        return Description(self, Meta(description=meaning, ge=low, le=high))


def _show_size(size: int) -> str:
    shown = format_size(size)
    return shown if shown.isdigit() else f'"{shown}"'


def _parse_mode(raw: object) -> int:
    if not isinstance(raw, str) or not _MODE.fullmatch(raw):
        raise ValueError
    return int(raw, 8)


def _check_host(raw: object) -> object:
    if isinstance(raw, str):
        check_host(raw)
    return raw


def _check_listen(raw: object) -> object:
    if isinstance(raw, str):
        parse_listen(raw)
    return raw


def _check_servers(raw: object) -> object:
    if raw == []:
        raise ValueError
    for item in raw if isinstance(raw, list) else ():
        if isinstance(item, str):
            parse_host_port(item)
    return raw


def _check_command(raw: object) -> object:
    if raw == []:
        raise ValueError
    if isinstance(raw, list):
        check_path(raw[0], PATH_MAX)
        if any(isinstance(item, str) and "\0" in item for item in raw):
            raise ValueError("an argument cannot contain NUL")
    return raw


def _show_command(command: Sequence[str]) -> str:
    """Show the program of a command, but not its arguments, because they may contain a secret."""
    return show(command[0]) if len(command) == 1 else f"{show(command[0])} with arguments"


def _parse_accounts(raw: object) -> object:
    """Convert the integers in a list of users or groups to strings, so that the list may mix numbers and names."""
    if not isinstance(raw, list):
        return raw
    return [str(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in raw]


plain: Final = ValueKind()
"""A boolean, an integer, a string, or a choice among the values of a `Literal`."""
size: Final = ValueKind("a size{range}", "size {range}", parse_size, _show_size)
mode: Final = ValueKind(
    'an octal mode as a string, for example "0222"', "mode", _parse_mode, lambda mode: f'"{mode:04o}"'
)
path: Final = ValueKind("an absolute path", "path", lambda raw: check_path(raw, PATH_MAX))
socket_path: Final = ValueKind(
    f"an absolute path of at most {SOCKET_PATH_MAX} bytes, the kernel's limit for a socket",
    f"path, {SOCKET_PATH_MAX} bytes",
    lambda raw: check_path(raw, SOCKET_PATH_MAX),
)
run_dir: Final = ValueKind(
    f"an absolute path of at most {RUN_DIR_MAX} bytes, so that the names of the sockets in it fit",
    f"path, {RUN_DIR_MAX} bytes",
    lambda raw: check_path(raw, RUN_DIR_MAX),
)
listen: Final = ValueKind('"host:port" or "unix:/path"', "address", _check_listen)
servers: Final = ValueKind('a list of at least one "host:port"', "addresses", _check_servers)
command: Final = ValueKind(
    "a list of strings, the absolute path of a program and its arguments",
    "list",
    _check_command,
    _show_command,
)
accounts: Final = ValueKind("a list of names or numbers", "accounts", _parse_accounts)
client_id: Final = ValueKind("a string of 1 to 8191 characters")
"""At 4 bytes a character, its bytes fit into the 16 bits that Kafka's requests have for the length."""
host: Final = ValueKind(parse=_check_host)
hosts: Final = ValueKind("a list of host names without ports", "host names")


def pattern(meaning: str, regex: str, example: str, kind: ValueKind = plain) -> Description:
    """Describe a string setting; its whole values match `regex`, and error texts show the example."""
    # The end is no $, which matches before a line feed, too.
    return Description(kind, Meta(description=meaning, pattern=rf"^{regex}\Z", examples=[example]))


@dataclass(frozen=True, slots=True)
class ReloadRule:
    """The step that applies a changed setting: a restart if `restart_reason` is not empty, else a reload."""

    restart_reason: str = ""


LIVE: Final = ReloadRule()


def restart(because: str) -> ReloadRule:
    """Mark a setting that changes only at a restart; `because` is the reason, a clause that the operator reads."""
    return ReloadRule(because)


RESTART_TO_BIND: Final = restart("the sockets are bound at the start")
RESTART_FOR_SLAB: Final = restart("the daemon opens the slab when it starts")
RESTART_FOR_SIZES: Final = restart("a slab keeps its sizes until a shutdown that delivers everything")


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the configuration file."""


@dataclass(frozen=True, slots=True)
class SettingType:
    """The parts of a setting's annotation. The annotation of a section, or of a map of sections, is only a type."""

    type: Any
    """The plain type, without `| None`."""
    kind: ValueKind
    meta: Meta
    reload_rule: ReloadRule | None = None

    @property
    def is_section(self) -> bool:
        """Return True for a section, False for a setting or a map."""
        return isinstance(self.type, type) and issubclass(self.type, Section)

    @property
    def entry_type(self) -> SettingType:
        """Return the type of a map's entries, with the description and reload rule of the map."""
        return replace(self, type=get_args(self.type)[1])

    @property
    def meaning(self) -> str:
        return self.meta.description or ""

    @property
    def allowed(self) -> str:
        """Describe the allowed values so that the text can follow "give" in an error text."""
        return self.kind.allowed.format(range=self._range()) or self._describe_plain()

    @property
    def summary(self) -> str:
        """Return the kind and range of the allowed values in short, for the reference page."""
        return self.kind.summary.format(range=self._short_range()) or self._summarize_plain()

    def show(self, value: object) -> str:
        """Return `value` as it is written in the configuration file, or "" if it is None."""
        return "" if value is None else self.kind.show(value)

    def _range(self) -> str:
        """Return the range as words for an error text, or "" if a bound is missing."""
        if self.meta.ge is None or self.meta.le is None:
            return ""
        return f" from {self._show_bound(self.meta.ge)} to {self._show_bound(self.meta.le)}"

    def _short_range(self) -> str:
        # Without a bound this shows 0. But only plain integers and sizes show a range, and these have both bounds.
        return f"{self._show_bound(self.meta.ge or 0)}..{self._show_bound(self.meta.le or 0)}"

    def _summarize_plain(self) -> str:
        if get_origin(self.type) is Literal:
            return ", ".join(show(value) for value in get_args(self.type))
        if self.type is int:
            return self._short_range()
        return "boolean" if self.type is bool else "string"

    def _show_bound(self, value: float) -> str:
        return format_size(int(value)) if self.kind is size else str(value)

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
    """Split an annotation into its parts: `Annotated[T, Description, ReloadRule]` of a setting, or `T` of a section.

    T may have `| None`. Raise TypeError for a setting without a reload rule.
    """
    if get_origin(annotation) is not Annotated:
        return SettingType(annotation, plain, Meta())
    bare, description, *reload_rule = get_args(annotation)
    if len(reload_rule) != 1:
        raise TypeError(f"{description.meta.description!r}: add LIVE, or restart(because), after it in the annotation.")
    if NoneType in get_args(bare):
        bare, _ = get_args(bare)
    return SettingType(bare, *description, *reload_rule)
