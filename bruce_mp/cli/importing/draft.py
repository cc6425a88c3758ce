"""Draft of the converted configuration: settings, their places in the old configuration, notes and errors."""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from typing import TYPE_CHECKING, Any, Final, get_origin

import msgspec

from bruce_mp.config.checks import check
from bruce_mp.config.decode import Decoder
from bruce_mp.config.fields import setting_type
from bruce_mp.config.model import Config
from bruce_mp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bruce_mp.config.fields import SettingType
    from bruce_mp.config.problems import Key, Problem

__all__ = ["Draft"]

OLD_CONFIGURATION: Final = "the old configuration"
"""The origin of a setting that no line of the old file sets; error texts begin with the origin."""
COMMENT_WIDTH: Final = 100
KEYS_WITH_SAME_RANGE: Final = frozenset({("input", "tcp", "port"), ("compression", "size_threshold_percent")})
"""Settings that had the same allowed range in the old daemons: a value outside the range is an error."""
RAISED_MINIMUMS: Final[Mapping[Key, int]] = {("delivery", "max_failed_attempts"): 1}
"""The lowest value that `set` writes for a setting: a lower one had a different meaning in the old daemons."""
BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


class Draft:
    """Collector of settings, notes and errors.

    `status_port` (None if it is not set) and `loopback_only` are old settings for the address of the status pages;
    `set_old_defaults` sets `http.listen` from both.
    """

    def __init__(self) -> None:
        self._tree: dict[str, Any] = {}
        self._origins: dict[Key, str] = {}
        self._notes: dict[Key, list[str]] = {}
        self._errors: list[str] = []
        self._suppressed_keys: set[Key] = set()
        self.status_port: int | None = None
        self.loopback_only = False

    def set(self, key: Key, value: object, origin: str = OLD_CONFIGURATION) -> None:
        """Set a value, or the nearest allowed value. `origin` is the value's place in the old configuration."""
        value = self._fit_to_range(key, value)
        table = self._tree
        for part in key[:-1]:
            table = table.setdefault(part, {})
        table[key[-1]] = value
        self._origins[key] = origin

    def remove(self, key: Key) -> None:
        """Remove a setting, if the draft has it."""
        table = self.get(key[:-1])
        if isinstance(table, dict):
            table.pop(key[-1], None)
        self._origins.pop(key, None)

    def _fit_to_range(self, key: Key, value: object) -> object:
        """Return the value if it is allowed. Otherwise return the nearest allowed value, and add a note."""
        setting = _setting_at(key)
        low, high = setting.meta.ge, setting.meta.le
        if low is None or high is None or key in KEYS_WITH_SAME_RANGE:
            return value
        number: Any = setting.kind.parse(value)
        nearest = min(max(number, low, RAISED_MINIMUMS.get(key, 0)), high)
        if number < 0 or nearest == number:
            return value  # `render` reports a negative number as an error
        change = "raised" if nearest > number else "lowered"
        written = setting.show(nearest).strip('"')
        self.add_note(f"The old value was {value}; it is {change} to {written}, the nearest that is allowed.", key)
        return int(written) if written.isdigit() else written

    def get(self, key: Key) -> Any:
        """Return the value of a setting, or the table of a section; None if the draft does not have it."""
        table: Any = self._tree
        for part in key:
            table = table.get(part) if isinstance(table, dict) else None
        return table

    def add_note(self, text: str, key: Key = ()) -> None:
        """Add a note above the setting or section `key`, or at the top if `key` is (); skip a repeated note."""
        notes = self._notes.setdefault(key, [])
        if text not in notes:
            notes.append(text)

    def add_error(self, origin: str, text: str) -> None:
        """Add an error for a value that cannot be converted."""
        self._errors.append(f"{origin}: {text}")

    def suppress_errors(self, key: Key) -> None:
        """Suppress the validation errors of a setting after `add_error` has reported its fault."""
        self._suppressed_keys.add(key)

    def render(self, title: str) -> str:
        """Validate the draft and return it as TOML. Raise ConfigError with a line for each error."""
        self._validate()
        lines = [*_comment_lines(title), *self._note_lines(())]
        for name in Config.__struct_fields__:
            if name in self._tree:
                lines += self._table_lines((name,), self._tree[name])
        text = "\n".join(lines) + "\n"
        assert tomllib.loads(text) == self._tree
        return text

    def _validate(self) -> None:
        """Raise ConfigError if the draft is not a valid configuration, or if it has errors."""
        decoder = Decoder()
        decoded = decoder.decode_table(Config, self._tree)
        problems = [problem for problem in decoder.problems if problem.path not in self._suppressed_keys]
        if not problems and not self._errors:
            problems = list(check(msgspec.convert(decoded, Config)))
        errors = self._errors + [f"{self._origin_of(problem)}: {problem.text}" for problem in problems]
        if errors:
            raise ConfigError("\n".join(errors))

    def _origin_of(self, problem: Problem) -> str:
        """Return the origin of the setting with the problem, else of a setting above or below it in the tree."""
        # Two keys are related if one is the beginning of the other.
        related = [key for key in self._origins if all(a == b for a, b in zip(key, problem.path, strict=False))]
        return self._origins[max(related, key=len)] if related else OLD_CONFIGURATION

    def _table_lines(self, key: Key, table: dict[str, Any]) -> Iterator[str]:
        """Yield the lines of a section and of the sections in it, with their notes."""
        settings = {name: value for name, value in table.items() if not isinstance(value, dict)}
        tables = {name: value for name, value in table.items() if isinstance(value, dict)}
        has_heading = settings or not tables
        if has_heading or key in self._notes:
            yield ""
            yield from self._note_lines(key)
        if has_heading:
            yield f"[{_toml_key(key)}]"
        for name, value in settings.items():
            yield from self._note_lines((*key, name))
            yield f"{_toml_key((name,))} = {_toml_value(value)}"
        for name, value in tables.items():
            yield from self._table_lines((*key, name), value)

    def _note_lines(self, key: Key) -> Iterator[str]:
        for note in self._notes.get(key, ()):
            yield from _comment_lines(f"NOTE: {note}")


def _setting_at(key: Key) -> SettingType:
    """Return the type of the setting `key` of `Config`; all entries of a dictionary have the same type."""
    setting = setting_type(Config)
    for part in key:
        if get_origin(setting.type) is dict:
            setting = setting.entry_type
        else:
            fields = {field.name: field for field in msgspec.structs.fields(setting.type)}
            setting = setting_type(fields[part].type)
    return setting


def _comment_lines(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, COMMENT_WIDTH, break_long_words=False, break_on_hyphens=False)]


def _toml_value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML escapes DEL, JSON does not


def _toml_key(key: Key) -> str:
    return ".".join(part if BARE_KEY.fullmatch(part) else _toml_value(part) for part in key)
