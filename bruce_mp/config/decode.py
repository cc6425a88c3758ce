"""Convert the tables of a TOML file to the input of msgspec, and collect every problem.

msgspec alone stops at the first problem, and in its error texts `[...]` stands for the name of a map's entry. So this
module walks through the file and the model of the configuration side by side. The walk checks each value against the
annotation of its setting, converts sizes ("64m") and file modes ("0222") to integers, and names each problem with its
full key. From the result of a walk without problems, `msgspec.convert()` builds the configuration.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Final, get_origin

import msgspec
from msgspec import Struct

from bruce_mp.config.fields import SettingType, setting_type
from bruce_mp.config.problems import Key, Problem, dotted

if TYPE_CHECKING:
    from msgspec.structs import FieldInfo

__all__ = ["Decoder"]

_OMITTED: Final = object()
"""Stands for the value of an absent or invalid setting, which the input of msgspec does not have."""
_SYNONYMS: Final = {"ssl": "tls"}
"""Names that other Kafka clients use for a section, each with our name of the section."""


class Decoder:
    """Decoder of one tree of TOML tables; `problems` collects the problems of all settings."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def decode_table(self, model: type[Struct], raw: object, path: Key = ()) -> dict[str, Any]:
        """Return the converted values of a section's valid settings, by name.

        `raw` is the value of the section in the file; the method reports a problem if `raw` is not a table.
        """
        fields = {field.name: field for field in msgspec.structs.fields(model)}
        if not isinstance(raw, dict):
            self._report_not_a_table(raw, path, "enable = true and path" if {"enable", "path"} <= fields.keys() else "")
            return {}
        self._report_unknown(raw, fields, path)
        return _without_omitted(
            {name: self._decode_setting(field, raw, (*path, name)) for name, field in fields.items()}
        )

    def _decode_setting(self, field: FieldInfo, table: dict[str, Any], path: Key) -> Any:
        """Return the converted value of a setting, map or section in `table`, or `_OMITTED`."""
        setting = setting_type(field.type)
        if field.name in table:
            return self._decode_by_type(setting, table[field.name], path)
        if not field.required:
            return _OMITTED
        if setting.is_section:
            return self.decode_table(setting.type, {}, path)  # reports the missing required settings
        self._report(path, f"{dotted(path)} is missing: give {setting.allowed}.")
        return _OMITTED

    def _decode_by_type(self, setting: SettingType, raw: object, path: Key) -> Any:
        if setting.is_section:
            return self.decode_table(setting.type, raw, path)
        if get_origin(setting.type) is dict:
            return self._decode_map(setting.entry_type, raw, path)
        return self._decode_value(setting, raw, path)

    def _decode_map(self, entry: SettingType, raw: object, path: Key) -> Any:
        if not isinstance(raw, dict):
            self._report_not_a_table(raw, path)
            return {}
        return _without_omitted(
            {name: self._decode_by_type(entry, value, (*path, name)) for name, value in raw.items()}
        )

    def _decode_value(self, setting: SettingType, raw: object, path: Key) -> Any:
        """Return the converted value of a single setting, or report a problem and return `_OMITTED`."""
        try:
            return msgspec.convert(setting.kind.parse(raw), Annotated[setting.type, setting.meta])
        except msgspec.ValidationError:
            self._report_invalid(setting, raw, path)
        except ValueError as error:
            self._report_invalid(setting, raw, path, str(error))
        return _OMITTED

    def _report_invalid(self, setting: SettingType, raw: object, path: Key, reason: str = "") -> None:
        self.problems.append(Problem.not_allowed(path, raw, f"give {setting.allowed}", reason))

    def _report_not_a_table(self, raw: object, path: Key, usual_settings: str = "") -> None:
        with_settings = f", with {usual_settings}" if usual_settings else ""
        self.problems.append(Problem.not_allowed(path, raw, f"give a section, [{dotted(path)}]{with_settings}"))

    def _report_unknown(self, raw: dict[str, Any], known: dict[str, FieldInfo], path: Key) -> None:
        for name in (name for name in raw if name not in known):
            our_name = _SYNONYMS.get(name)
            suggested = [our_name] if our_name in known else get_close_matches(name, known, n=1)
            hint = f"did you mean {suggested[0]}?" if suggested else f"known here: {', '.join(known)}."
            self._report((*path, name), f"{dotted((*path, name))} is not a setting; {hint}")

    def _report(self, path: Key, text: str) -> None:
        self.problems.append(Problem(path, text))


def _without_omitted(decoded: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in decoded.items() if value is not _OMITTED}
