"""Faults and commands as words of a command line: a name, then FIELD=VALUE.

    error code=NOT_LEADER_OR_FOLLOWER topic=hits times=3
    move_leader topic=hits partition=0 broker=2

The fields are those of `Fault` and of the structs in `commands`. A value of a command that begins with `{` is JSON.
A value of a fault never is: its `text` may begin with `{`, as the part of a message to look for. A hyphen in a name
counts as an underscore.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from bruce_mp.devbroker.codes import ApiKey, Code
from bruce_mp.devbroker.commands import BY_NAME, BrokerCommand, Inject
from bruce_mp.devbroker.faults import Fault, FaultAction
from bruce_mp.errors import BruceError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from enum import IntEnum

__all__ = ["ArgumentError", "parse_command", "parse_fault"]

Kind = TypeVar("Kind", bound=msgspec.Struct)

WITHOUT_LIMIT: Final = "always"
ANY_API: Final = "any"


class ArgumentError(BruceError):
    """The words of a command line are not a valid fault or command."""

    exit_code = ExitCode.USAGE


def parse_fault(words: Sequence[str]) -> Fault:
    """Return the fault that the words describe.

    `api` and `code` may be names, `api=any` matches every API, and `times=always` sets no limit. Raise ArgumentError if
    the words describe no fault.
    """
    if not words or to_underscores(words[0]) not in list(FaultAction):
        raise ArgumentError(f"A fault begins with its action: one of {', '.join(FaultAction)}.")
    fields = parse_fields(words[1:], Fault)
    if fields.get("times") == WITHOUT_LIMIT:
        fields["times"] = None
    if fields.get("api") == ANY_API:
        fields["api"] = None
    elif "api" in fields:
        fields["api"] = number_or_text(fields["api"], ApiKey)
    if "code" in fields:
        fields["code"] = number_or_text(fields["code"], Code)
    return convert({"action": to_underscores(words[0]), **fields}, Fault)


def parse_command(words: Sequence[str]) -> BrokerCommand:
    """Return the command that the words describe; after `inject` come those of a fault. Raise ArgumentError."""
    name = to_underscores(words[0]) if words else ""
    kind = BY_NAME.get(name)
    if kind is None:
        raise ArgumentError(f"There is no command '{name}': give one of {', '.join(sorted(BY_NAME))}.")
    if kind is Inject:
        return Inject(fault=parse_fault(words[1:]))
    return convert(parse_fields(words[1:], kind), kind)


def to_underscores(name: str) -> str:
    return name.replace("-", "_")


def parse_fields(words: Sequence[str], kind: type[msgspec.Struct]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = to_underscores(name)
        if not equals or name not in kind.__struct_fields__:
            known = ", ".join(kind.__struct_fields__)
            raise ArgumentError(f"'{word}' is not FIELD=VALUE with one of the fields {known or '(there is none)'}.")
        if name in fields or (name, kind) == ("action", Fault):
            raise ArgumentError(f"'{word}': give each field once, and the action of a fault as its first word.")
        fields[name] = value if kind is Fault else _parse_value(word, value)
    return fields


def _parse_value(word: str, value: str) -> Any:
    """Return the decoded JSON if the value begins with a brace, else the text."""
    if not value.startswith("{"):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        raise ArgumentError(f"'{word}': {error}.") from error


def number_or_text(text: str, names: type[IntEnum]) -> int | str:
    """Return the number that `names` gives the text; else the text itself, for `convert`."""
    name = to_underscores(text).upper()
    return int(names[name]) if name in names.__members__ else text


def convert(fields: dict[str, Any], kind: type[Kind]) -> Kind:
    try:
        return msgspec.convert(fields, kind, strict=False)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ArgumentError(f"{error}.") from error
