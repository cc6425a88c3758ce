"""Reader of the command line of Bruce, and of Dory until 2019, when Dory moved all options into its XML file."""

from __future__ import annotations

import shlex
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, TypeVar

from bruce_mp.cli.importing.old_values import integer
from bruce_mp.cli.importing.settings import REMOVED_OPTIONS, SETTINGS
from bruce_mp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bruce_mp.cli.importing.draft import Draft

__all__ = ["CommandLineOptions", "apply_options", "parse_options"]

Value = TypeVar("Value")

CommandLineOptions = dict[str, str | None]
"""The options of a command line: each value by the option's name with underscores. The value of a switch is None."""

COMMAND_LINE: Final = "the command line"
"""The origin, for errors, of the settings that this module adds to the draft."""
CONFIG_PATH: Final = "config_path"
STATUS_PORT: Final = "status_port"
LOOPBACK_ONLY: Final = "status_loopback_only"

_SETTING_BY_OPTION: Final = {setting.option: setting for setting in SETTINGS if setting.option}
_OPTIONS_WITH_VALUE: Final = (
    {option for option, setting in _SETTING_BY_OPTION.items() if setting.parse_option}
    | {option for option, entry in REMOVED_OPTIONS.items() if entry.has_value}
    | {CONFIG_PATH, STATUS_PORT}
)
# A switch is an option that takes no value.
_SWITCHES: Final = (_SETTING_BY_OPTION.keys() | REMOVED_OPTIONS.keys() | {LOOPBACK_ONLY}) - _OPTIONS_WITH_VALUE
_SHORT_OPTIONS: Final = {"h": "help"}
_ENABLE_SETTING_BY_OPTION: Final = {
    "receive_socket_name": "input.unix_datagram.enable",
    "receive_stream_socket_name": "input.unix_stream.enable",
    "input_port": "input.tcp.enable",
    "discard_log_path": "discard_log.enable",
    "debug_dir": "msg_debug.enable",
}
"""The setting that each option with a path or a port sets to true."""


def parse_options(line: str) -> CommandLineOptions:
    """Parse a command line; it may begin with the program's path. Raise ConfigError for an invalid option."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"{COMMAND_LINE}: cannot be read: {error}. Quote it as for a shell.") from error
    if words and not words[0].startswith("-"):
        del words[0]
    return dict(_name_value_pairs(words))


def _name_value_pairs(words: list[str]) -> Iterator[tuple[str, str | None]]:
    """Yield the name and value of each option. Raise ConfigError for an unknown option or a missing value."""
    remaining = iter(words)
    for word in remaining:
        if word in {"--", "--ignore_rest"}:  # the old daemons ignored the words after these
            return
        given_name, equals, value = word.lstrip("-").partition("=")
        name = _SHORT_OPTIONS.get(given_name, given_name).replace("-", "_")
        if not word.startswith("-") or name not in _OPTIONS_WITH_VALUE | _SWITCHES:
            nearest = get_close_matches(name, _OPTIONS_WITH_VALUE | _SWITCHES, n=1)
            hint = f"Did you mean --{nearest[0]}?" if nearest else "Remove it."
            raise ConfigError(f"{COMMAND_LINE}: {word} is not an option of Bruce or Dory. {hint}")
        if name in _SWITCHES:
            yield name, None
            continue
        argument = value if equals else next(remaining, None)
        if argument is None:
            raise ConfigError(f"{COMMAND_LINE}: {word} needs a value after it.")
        if argument.startswith("$"):
            raise ConfigError(
                f"{COMMAND_LINE}: {argument} is a variable of the service script: write its value, which is often in "
                "/etc/sysconfig."
            )
        yield name, argument


def apply_options(options: CommandLineOptions, draft: Draft) -> None:
    """Add the options to the draft, except `config_path`, which `import_config` reads."""
    for name, value in options.items():
        if name in _SETTING_BY_OPTION:
            _apply_option(name, value, draft)
        elif name in REMOVED_OPTIONS:
            draft.add_note(f"--{name}: {REMOVED_OPTIONS[name].note}")
    draft.loopback_only |= LOOPBACK_ONLY in options
    if (port := options.get(STATUS_PORT)) is not None:
        draft.status_port = _parse_value(STATUS_PORT, port, integer, draft)


def _apply_option(name: str, raw: str | None, draft: Draft) -> None:
    """Add an option to the draft; the table `SETTINGS` has the option."""
    setting = _SETTING_BY_OPTION[name]
    key = tuple(setting.key.split("."))
    value = setting.switch_value
    if raw is not None and setting.parse_option is not None:
        value = _parse_value(name, raw, setting.parse_option, draft)
    # If the value is None, `_parse_value` has added an error. The old daemons ignored an empty path or client id.
    if value is None or (value == "" and name in {*_ENABLE_SETTING_BY_OPTION, "client_id"}):
        return
    if name == "required_acks" and isinstance(value, int) and value > 1:
        draft.add_note(
            f"--required_acks {value}: brokers know -1, 0 and 1 only; -1 is the nearest that is as safe.", key
        )
        value = -1
    draft.set(key, value, COMMAND_LINE)
    if setting.note:
        draft.add_note(setting.note, key)
    if name in _ENABLE_SETTING_BY_OPTION:
        draft.set(tuple(_ENABLE_SETTING_BY_OPTION[name].split(".")), True, COMMAND_LINE)


def _parse_value(name: str, raw: str, parse: Callable[[str], Value], draft: Draft) -> Value | None:
    """Return the parsed value of an option, or add an error to the draft and return None."""
    try:
        return parse(raw)
    except ValueError as error:  # its text names the allowed values
        draft.add_error(COMMAND_LINE, f"--{name} {raw} is not allowed: give {error}.")
        return None
