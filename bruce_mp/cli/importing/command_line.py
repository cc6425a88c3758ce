"""Command line of Bruce, and of Dory until 2019, when Dory moved all options into its file."""

from __future__ import annotations

import shlex
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from bruce_mp.cli.importing.old_values import integer
from bruce_mp.cli.importing.settings import SETTINGS, WITHOUT_COUNTERPART
from bruce_mp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.cli.importing.draft import Draft

__all__ = ["Options", "apply_options", "parse_options"]

Options = dict[str, str | None]

ORIGIN: Final = "the command line"
CONFIG_PATH: Final = "config_path"
STATUS_PORT: Final = "status_port"
LOOPBACK_ONLY: Final = "status_loopback_only"

_BY_OPTION: Final = {setting.option: setting for setting in SETTINGS if setting.option}
_WITH_VALUE: Final = (
    {option for option, setting in _BY_OPTION.items() if setting.parse_option}
    | {option for option, (has_value, _) in WITHOUT_COUNTERPART.items() if has_value}
    | {CONFIG_PATH, STATUS_PORT}
)
_SWITCHES: Final = (_BY_OPTION.keys() | WITHOUT_COUNTERPART.keys() | {LOOPBACK_ONLY}) - _WITH_VALUE
_SHORT: Final = {"h": "help"}
_ENABLES: Final = {
    "receive_socket_name": "input.unix_datagram.enable",
    "receive_stream_socket_name": "input.unix_stream.enable",
    "input_port": "input.tcp.enable",
    "discard_log_path": "discard_log.enable",
    "debug_dir": "msg_debug.enable",
}
"""Setting that an option with a path or a port enables."""


def parse_options(line: str) -> Options:
    """Return the options of a command line by name, with underscores; a switch has the value None.

    The first word may be the program. Raise ConfigError for a line that the old daemon would reject.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"{ORIGIN}: cannot be read: {error}. Quote it as for a shell.") from error
    if words and not words[0].startswith("-"):
        del words[0]
    return dict(_name_value_pairs(words))


def _name_value_pairs(words: list[str]) -> Iterator[tuple[str, str | None]]:
    remaining = iter(words)
    for word in remaining:
        if word in {"--", "--ignore_rest"}:
            return
        given, equals, value = word.lstrip("-").partition("=")
        name = _SHORT.get(given, given).replace("-", "_")
        if not word.startswith("-") or name not in _WITH_VALUE | _SWITCHES:
            nearest = get_close_matches(name, _WITH_VALUE | _SWITCHES, n=1)
            hint = f"Did you mean --{nearest[0]}?" if nearest else "Remove it."
            raise ConfigError(f"{ORIGIN}: {word} is not an option of Bruce or Dory. {hint}")
        if name in _SWITCHES:
            yield name, None
        elif (argument := value if equals else next(remaining, None)) is None:
            raise ConfigError(f"{ORIGIN}: {word} needs a value after it.")
        elif argument.startswith("$"):
            raise ConfigError(
                f"{ORIGIN}: {argument} is a variable of the service script: write its value, which is often in "
                "/etc/sysconfig."
            )
        else:
            yield name, argument


def apply_options(options: Options, draft: Draft) -> None:
    """Add the options to the draft. `config_path` is read by `import_config`."""
    for name, value in options.items():
        if name in _BY_OPTION:
            _apply(name, value, draft)
        elif name in WITHOUT_COUNTERPART:
            draft.add_note(f"--{name}: {WITHOUT_COUNTERPART[name][1]}")
    draft.loopback_only |= LOOPBACK_ONLY in options
    if (port := options.get(STATUS_PORT)) is not None:
        draft.status_port = _parse_integer(STATUS_PORT, port, draft)


def _apply(name: str, raw: str | None, draft: Draft) -> None:
    setting = _BY_OPTION[name]
    key = tuple(setting.key.split("."))
    try:
        value = setting.switch_value if raw is None or setting.parse_option is None else setting.parse_option(raw)
    except ValueError as error:  # its text names the allowed values
        draft.add_error(ORIGIN, f"--{name} {raw} is not allowed: give {error}.")
        return
    if name == "required_acks" and isinstance(value, int) and value > 1:
        draft.add_note(
            f"--required_acks {value}: brokers know -1, 0 and 1 only; -1 is the nearest that is as safe.", key
        )
        value = -1
    if value == "" and name in {*_ENABLES, "client_id"}:  # the old daemons took an empty one as not given
        return
    draft.set(key, value, ORIGIN)
    if setting.note:
        draft.add_note(setting.note, key)
    if name in _ENABLES:
        draft.set(tuple(_ENABLES[name].split(".")), True, ORIGIN)


def _parse_integer(name: str, raw: str, draft: Draft) -> int | None:
    try:
        return integer(raw)
    except ValueError as error:  # its text names the allowed values
        draft.add_error(ORIGIN, f"--{name} {raw} is not allowed: give {error}.")
        return None
