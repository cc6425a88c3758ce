"""Load a configuration: read the file, apply the overrides, decode and check the settings.

One `ConfigError` reports all problems that these steps find.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import tomllib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from bruce_mp.config.checks import check
from bruce_mp.config.decode import Decoder
from bruce_mp.config.model import Config
from bruce_mp.config.overrides import apply_override, parse_override
from bruce_mp.config.problems import dotted
from bruce_mp.config.sections import DaemonSection, Http
from bruce_mp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from bruce_mp.config.overrides import Override
    from bruce_mp.config.problems import Problem

__all__ = ["StatusSettings", "load_config", "load_status_settings"]

_POSITION: Final = re.compile(r" \(at line (\d+), column (\d+)\)")
_EXPLANATIONS_BY_ERROR: Final = {
    "Cannot overwrite a value": "the file has this setting twice; remove one",
    "Cannot declare": "the file has this section twice; merge its settings",
    "Expected newline or end of document after a statement": "the line should end here; text needs quotes, "
    "and an integer begins with 0 only as in 0o660",
    "Invalid value": "a value is a string in quotes, a number, true or false in lower case, or a list in brackets",
}
"""Explanations of tomllib's errors, by the beginning of the error's text."""
_UNCLOSED_STRING_ERRORS: Final = {
    "Illegal character '\\n'": '"',
    "Found invalid character '\\n'": "'",
    'Expected "\'"': "'",
    "Unterminated string": '"""',
    "Expected \"'''\"": "'''",
}
"""Texts of tomllib's errors about a string without an end, each with the quote at the beginning of that string."""


class StatusSettings(NamedTuple):
    """The settings of the status pages, and the run directory, where a file has the address that the pages use."""

    http: Http
    run_dir: str


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Load the TOML file `path`; each of the `overrides` (`key=value`) replaces a setting of the file.

    If there are problems, raise `ConfigError` with a line for each one: file or override, key, value and the allowed
    values.
    """
    tree = _read(path)
    parsed = [parse_override(text) for text in overrides]
    for override in parsed:
        apply_override(override, tree)
    decoder = Decoder()
    decoded = decoder.decode_table(Config, tree)
    problems = [*decoder.problems, *_relation_problems(decoded, decoder.problems)]
    _raise_problems(problems, path, parsed)
    return msgspec.convert(decoded, Config)


def load_status_settings(path: Path) -> StatusSettings:
    """Load only the settings with which commands find a running daemon. Raise `ConfigError` if these have problems.

    So a mistake in another setting does not prevent an operator from reaching the daemon.
    """
    tree = _read(path)
    daemon = tree.get("daemon", {})
    if isinstance(daemon, dict):
        daemon = {name: value for name, value in daemon.items() if name == "run_dir"}
    decoder = Decoder()
    http = decoder.decode_table(Http, tree.get("http", {}), ("http",))
    decoded_daemon = decoder.decode_table(DaemonSection, daemon, ("daemon",))
    _raise_problems(decoder.problems, path, ())
    return StatusSettings(msgspec.convert(http, Http), msgspec.convert(decoded_daemon, DaemonSection).run_dir)


def _relation_problems(decoded: dict[str, Any], value_problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems in the relations between settings (`checks.py`).

    `value_problems` are the problems of invalid and missing values, which `decoded` does not have. Defaults replace
    these values, so that one report contains all problems. A problem in the section of such a default is left out,
    because the default may have caused the problem.
    """
    # Every other required setting is in an entry of a map, such as rate_limit.configs.NAME.
    kafka = {"bootstrap_servers": ["placeholder:1"], **decoded.get("kafka", {})}
    try:
        config = msgspec.convert({**decoded, "kafka": kafka}, Config)
    except msgspec.ValidationError:
        return []  # a required setting is missing in an entry of a map
    invalid_paths = [problem.path for problem in value_problems]
    return [found for found in check(config) if not any(_overlap(found.path, path) for path in invalid_paths)]


def _overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Return True if two settings are in the same section, or one of them is a section that contains the other."""
    return one[:-1] == other[:-1] or all(a == b for a, b in zip(one, other, strict=False))


def _read(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Raise ConfigError if it cannot be read or parsed."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        remedy = f" {_permission_remedy()}" if error.errno == errno.EACCES else ""
        raise ConfigError(f"{path}: cannot read the configuration: {error.strerror}.{remedy}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8, which TOML requires.") from error
    try:
        # The added line end gives unclosed strings and unclosed multi-line strings different errors in tomllib.
        return tomllib.loads(f"{text}\n")
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, too long integers, or too deeply nested brackets
        raise ConfigError(f"{path}:{_explain(text, str(error))}.") from error


def _permission_remedy() -> str:
    """Return a sentence with the remedies for a file that this user may not read."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    return (
        f"Run this as the daemon's user or as root, or give the current user, {user}, read permission for the file "
        "and access to its directory."
    )


def _explain(text: str, error: str) -> str:
    """Explain an error of tomllib; the text begins with the position of the error, as editors expect."""
    message, quote = _POSITION.sub("", error), _UNCLOSED_STRING_ERRORS.get(error.partition(" (")[0])
    explanation = f"the string that begins with {quote} in this line is not closed" if quote else message
    explanation = _EXPLANATIONS_BY_ERROR.get(message.partition(" (")[0], explanation)
    return f"{_position(text, error, quote)}: this is not TOML: {explanation}"


def _position(text: str, error: str, quote: str | None) -> str:
    """Return "line:column" of an error of tomllib.

    tomllib gives no position for an error at the end of the file. Then return the position of the unclosed string that
    begins with `quote`, or the end of the file if `quote` is None.
    """
    match = _POSITION.search(error)
    if match:
        return f"{match[1]}:{match[2]}"
    lines = (text[: text.rindex(quote)] if quote else text).split("\n")
    column = len(lines[-1]) + 1 if quote else "end"
    return f"{len(lines)}:{column}"


def _raise_problems(problems: Iterable[Problem], path: Path, overrides: Sequence[Override]) -> None:
    """Raise ConfigError if there are problems."""
    lines = [f"{_origin(problem, path, overrides)}: {problem.text}" for problem in problems]
    if lines:
        raise ConfigError("\n".join(lines))


def _origin(problem: Problem, path: Path, overrides: Sequence[Override]) -> str:
    """Return the override that set the problem's key, a part of it or a section around it; if none did, the file."""
    for override in overrides:
        if all(a == b for a, b in zip(problem.path, override.path, strict=False)):
            return f"--set {dotted(override.path)}"
    return str(path)
