"""Read a configuration: file, overrides, decoding, checks; one `ConfigError` that names every problem."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bruce_mp.config.checks import check
from bruce_mp.config.decode import Decoder
from bruce_mp.config.model import Config
from bruce_mp.config.overrides import apply, parse_override
from bruce_mp.config.problems import dotted
from bruce_mp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from bruce_mp.config.overrides import Override
    from bruce_mp.config.problems import Problem

__all__ = ["load_config"]

_PLACE: Final = re.compile(r" \(at line (\d+), column (\d+)\)")
_TWICE: Final = {
    "Cannot overwrite a value": "the setting is there twice; remove one",
    "Cannot declare": "the section is there twice; put its settings together",
}
"""What tomllib means, by the beginning of what it says."""
_UNCLOSED: Final = {
    "Illegal character '\\n'": '"',
    "Found invalid character '\\n'": "'",
    'Expected "\'"': "'",
    "Unterminated string": '"""',
    "Expected \"'''\"": "'''",
}
"""What it says when it misses the end of a string, and what the string begins with."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration in the TOML file `path`, with `overrides` (`key=value` each) laid over it.

    Raises `ConfigError`: a line for each problem, with file (or override), key, value and what is allowed.
    """
    tree = _read(path)
    parsed = [parse_override(text) for text in overrides]
    for override in parsed:
        apply(override, tree)
    decoder = Decoder()
    decoded = decoder.table(Config, tree)
    problems = [*decoder.problems, *_misfits(decoded, decoder.problems)]
    _raise_any(problems, path, parsed)
    return msgspec.convert(decoded, Config)


def _misfits(decoded: dict[str, Any], problems: Sequence[Problem]) -> list[Problem]:
    """What does not fit together, as far as values that are wrong by themselves (`problems`) let us see it.

    All problems should be told at once.  So defaults stand for wrong values meanwhile, and what is said of these, or of
    what they are in, is passed over.
    """
    kafka = {"bootstrap_servers": ["stand-in:1"], **decoded.get("kafka", {})}
    try:
        config = msgspec.convert({**decoded, "kafka": kafka}, Config)
    except msgspec.ValidationError:
        return []  # an entry of a map without something that it needs
    wrong = [problem.path for problem in problems]
    return [found for found in check(config) if not any(_overlap(found.path, path) for path in wrong)]


def _overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two settings stand in one section, or one of them in the other."""
    return one[:-1] == other[:-1] or all(ours == theirs for ours, theirs in zip(one, other, strict=False))


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the configuration: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8, which TOML requires.") from error
    try:
        return tomllib.loads(f"{text}\n")  # with the end of the last line a string in it can be told from a longer one
    except ValueError as error:  # TOMLDecodeError, and integers too long for Python
        raise ConfigError(f"{path}:{_explain(text, str(error))}.") from error


def _explain(text: str, error: str) -> str:
    """tomllib puts the place at the end of its message; editors and people look for it after the file's name."""
    said, quote = _PLACE.sub("", error), _UNCLOSED.get(error.partition(" (")[0])
    means = f"the string that begins with {quote} in this line is not closed" if quote else said
    return f"{_place(text, error, quote)}: this is not TOML: {_TWICE.get(said.partition(' (')[0], means)}"


def _place(text: str, error: str, quote: str | None) -> str:
    """Line and column: those of the error, or at the end of the file where the string begins that is not closed."""
    match = _PLACE.search(error)
    if match:
        return f"{match[1]}:{match[2]}"
    lines = (text[: text.rindex(quote)] if quote else text).split("\n")
    return f"{len(lines)}:{len(lines[-1]) + 1 if quote else 'end'}"


def _raise_any(problems: Iterable[Problem], path: Path, overrides: Sequence[Override]) -> None:
    lines = [f"{_origin(problem, path, overrides)}: {problem.text}" for problem in problems]
    if lines:
        raise ConfigError("\n".join(lines))


def _origin(problem: Problem, path: Path, overrides: Sequence[Override]) -> str:
    """The override that set the key, something in it, or the section that it is in; else the file."""
    for override in overrides:
        if all(ours == theirs for ours, theirs in zip(problem.path, override.path, strict=False)):
            return f"--set {dotted(override.path)}"
    return str(path)
