"""Apply `--set key=value`: single settings that override the file.

Each override is parsed as a line of TOML, so keys and values are written as in the file. A value that is not TOML is
taken as a string. So `slab.size=64m` works without the quotes around the value, which a shell would remove.
"""

from __future__ import annotations

import tomllib
from typing import Any, NamedTuple

from bruce_mp.errors import ConfigError

__all__ = ["Override", "apply_override", "parse_override"]


class Override(NamedTuple):
    """A setting and its new value; `path` has the parts of the key, such as ("slab", "size")."""

    path: tuple[str, ...]
    value: Any


def parse_override(text: str) -> Override:
    """Parse `key=value`. Raise ConfigError if `text` has another form, or gives more or less than one setting."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: this is not of the form key=value, for example slab.size=64m.")
    try:
        table = tomllib.loads(text)
    except ValueError:  # TOMLDecodeError, or an integer too long for Python
        table = _parse_as_string(text, key, value.strip())
    return _single_setting(table, text)


def _parse_as_string(text: str, key: str, value: str) -> dict[str, Any]:
    """Parse `key` as TOML, and take `value` as a string. `text` is the whole override, for error texts."""
    try:
        table = tomllib.loads(f"{key} = 0")  # `value` replaces the 0 below
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--set {text}: {key} is not a key ({error}); an example is slab.size=64m.") from None
    innermost = table
    while isinstance(child := next(iter(innermost.values())), dict):
        innermost = child
    innermost[next(iter(innermost))] = value
    return table


def _single_setting(table: dict[str, Any], text: str) -> Override:
    """Return the only setting in nested tables. Raise ConfigError if there is none or more than one."""
    path: list[str] = []
    value: Any = table
    while isinstance(value, dict) and len(value) == 1:
        name, value = next(iter(value.items()))
        path.append(name)
    if isinstance(value, dict):
        raise ConfigError(f"--set {text}: give one setting, no more and no empty table, in each --set.")
    return Override(tuple(path), value)


def apply_override(override: Override, tree: dict[str, Any]) -> None:
    """Store the setting in `tree`, the parsed tables of a file, in place of an earlier value."""
    *sections, name = override.path
    table = tree
    for section in sections:
        if not isinstance(table.get(section), dict):
            table[section] = {}
        table = table[section]
    table[name] = override.value
