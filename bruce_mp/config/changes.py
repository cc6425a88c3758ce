"""Compare two configurations setting by setting, and name the changes that need a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Struct

from bruce_mp.config.fields import leaf_of
from bruce_mp.config.problems import dotted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bruce_mp.config.fields import Leaf
    from bruce_mp.config.model import Config

__all__ = ["Change", "changes"]

Path = tuple[str, ...]


class Change(NamedTuple):
    """A changed setting with its displayed values; `restart_because` is empty if a reload applies the change."""

    key: str
    before: str
    after: str
    restart_because: str

    def __str__(self) -> str:
        why = f" (restart to apply: {self.restart_because})" if self.restart_because else ""
        return f"{self.key} from {self.before} to {self.after}{why}"


def changes(before: Config, after: Config) -> list[Change]:
    """Return the settings with different values, in the order of the fields of `Config`."""
    old, new = dict(_settings(before)), dict(_settings(after))
    return [
        _change(path, new.get(path) or old[path], old.get(path), new.get(path))
        for path in (old | new)
        if _value(old.get(path)) != _value(new.get(path))
    ]


_Setting = tuple["Leaf", object]


def _settings(section: Struct, path: Path = ()) -> Iterator[tuple[Path, _Setting]]:
    for field in msgspec.structs.fields(type(section)):
        yield from _expand(leaf_of(field.type), getattr(section, field.name), (*path, field.name))


def _expand(leaf: Leaf, value: object, path: Path) -> Iterator[tuple[Path, _Setting]]:
    if isinstance(value, Struct):
        yield from _settings(value, path)
    elif isinstance(value, dict):
        entries: Mapping[str, object] = value
        for name, entry in entries.items():
            yield from _expand(leaf, entry, (*path, name))
    else:
        yield path, (leaf, value)


def _value(setting: _Setting | None) -> object:
    """Return the value of a setting; a setting of a missing map entry counts as absent, None."""
    return None if setting is None else setting[1]


def _change(path: Path, present: _Setting, before: _Setting | None, after: _Setting | None) -> Change:
    leaf, _ = present
    assert leaf.applies is not None  # only sections lack this marker, and `_settings` yields none
    shown = [leaf.show(_value(setting)) or "absent" for setting in (before, after)]
    return Change(dotted(path), shown[0], shown[1], leaf.applies.restart_because)
