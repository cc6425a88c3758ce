"""Compare two configurations setting by setting, and name the changes that need a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Struct

from bruce_mp.config.fields import setting_type
from bruce_mp.config.problems import dotted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.config.fields import SettingType
    from bruce_mp.config.model import Config
    from bruce_mp.config.problems import Key

__all__ = ["Change", "list_changes"]


class Change(NamedTuple):
    """A changed setting, with its old and new values as texts.

    `restart_reason` is the reason why the change needs a restart; it is empty if a reload applies the change.
    """

    key: str
    before: str
    after: str
    restart_reason: str

    def __str__(self) -> str:
        hint = f" (restart to apply: {self.restart_reason})" if self.restart_reason else ""
        return f"{self.key} from {self.before} to {self.after}{hint}"


def list_changes(before: Config, after: Config) -> list[Change]:
    """Return the settings with different values in the two configurations, in the order of the fields of `Config`."""
    types = {path: setting for config in (before, after) for path, setting, _ in _settings(config)}
    old, new = ({path: value for path, _, value in _settings(config)} for config in (before, after))
    # For the settings of a map's entry that only one configuration has, `get` returns None from the other one.
    return [
        _change(path, setting, old.get(path), new.get(path))
        for path, setting in types.items()
        if old.get(path) != new.get(path)
    ]


def _settings(section: Struct, path: Key = ()) -> Iterator[tuple[Key, SettingType, object]]:
    """Yield path, type and value of each setting in the section at `path` and its subsections."""
    for field in msgspec.structs.fields(type(section)):
        yield from _expand(setting_type(field.type), getattr(section, field.name), (*path, field.name))


def _expand(setting: SettingType, value: object, path: Key) -> Iterator[tuple[Key, SettingType, object]]:
    """Yield the settings in the section or map at `path`, or the setting at `path` if `value` is a single value."""
    if isinstance(value, Struct):
        yield from _settings(value, path)
    elif isinstance(value, dict):
        for name, entry in value.items():
            yield from _expand(setting.entry_type, entry, (*path, name))
    else:
        yield path, setting, value


def _change(path: Key, setting: SettingType, before: object, after: object) -> Change:
    assert setting.reload_rule is not None  # only sections have no rule, and `_settings` yields no sections
    shown_before, shown_after = (setting.show(value) or "absent" for value in (before, after))
    return Change(dotted(path), shown_before, shown_after, setting.reload_rule.restart_reason)
