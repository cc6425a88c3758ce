"""Compare two configurations setting by setting, and name the changes that need a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Struct

from bruce_mp.config.fields import setting_type
from bruce_mp.config.problems import dotted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bruce_mp.config.fields import SettingType
    from bruce_mp.config.model import Config

__all__ = ["Change", "list_changes"]

Key = tuple[str, ...]
"""The path of a setting; that of `slab.size` is ("slab", "size")."""


class Change(NamedTuple):
    """A changed setting with its displayed values; `restart_reason` is empty if a reload applies the change."""

    key: str
    before: str
    after: str
    restart_reason: str

    def __str__(self) -> str:
        hint = f" (restart to apply: {self.restart_reason})" if self.restart_reason else ""
        return f"{self.key} from {self.before} to {self.after}{hint}"


def list_changes(before: Config, after: Config) -> list[Change]:
    """Return the settings with different values, in the order of the fields of `Config`."""
    old, new = dict(_settings(before)), dict(_settings(after))
    return [
        _change(path, old.get(path), new.get(path))
        for path in (old | new)
        if _value(old.get(path)) != _value(new.get(path))
    ]


_TypedValue = tuple["SettingType", object]
"""The type and value of one setting."""


def _settings(section: Struct, path: Key = ()) -> Iterator[tuple[Key, _TypedValue]]:
    for field in msgspec.structs.fields(type(section)):
        yield from _expand(setting_type(field.type), getattr(section, field.name), (*path, field.name))


def _expand(setting: SettingType, value: object, path: Key) -> Iterator[tuple[Key, _TypedValue]]:
    if isinstance(value, Struct):
        yield from _settings(value, path)
    elif isinstance(value, dict):
        entries: Mapping[str, object] = value  # `setting` has the reload rule of each entry
        for name, entry in entries.items():
            yield from _expand(setting, entry, (*path, name))
    else:
        yield path, (setting, value)


def _value(typed_value: _TypedValue | None) -> object:
    """Return the value of a setting; a setting of a missing map entry counts as absent, None."""
    return None if typed_value is None else typed_value[1]


def _change(path: Key, before: _TypedValue | None, after: _TypedValue | None) -> Change:
    typed_value = after or before
    assert typed_value is not None  # one of the two configurations has the setting
    setting, _ = typed_value
    assert setting.reload_rule is not None  # only sections have none, and `_settings` yields no section
    shown = [setting.show(_value(each)) or "absent" for each in (before, after)]
    return Change(dotted(path), shown[0], shown[1], setting.reload_rule.restart_reason)
