"""Parse faults and commands from the words of a command line: a name, then FIELD=VALUE.

    error code=NOT_LEADER_OR_FOLLOWER topic=hits times=3
    move_leader topic=hits partition=0 broker=2

A fault has the fields of `Fault`, a command has the fields of its struct in `commands`. In a command, a value that
begins with `{` is JSON. In a fault, no value is JSON, because the text in the field `text` may begin with `{`.
A hyphen in a name counts as an underscore.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from bruce_mp.devbroker.codes import ApiKey, Code
from bruce_mp.devbroker.commands import COMMANDS_BY_NAME, BrokerCommand, Inject
from bruce_mp.devbroker.faults import Fault, FaultAction
from bruce_mp.errors import BruceError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from enum import IntEnum

__all__ = ["ArgumentError", "parse_command", "parse_fault"]

StructType = TypeVar("StructType", bound=msgspec.Struct)

TIMES_WITHOUT_LIMIT: Final = "always"
"""Value of a fault's field `times` that means None."""
ANY_API: Final = "any"
"""Value of a fault's field `api` that means None."""


class ArgumentError(BruceError):
    """The words of a command line are not a valid fault or command."""

    exit_code = ExitCode.USAGE


def parse_fault(words: Sequence[str]) -> Fault:
    """Return the fault that the words describe.

    `api` and `code` may be numbers or names. `api=any` matches every API, and `times=always` sets no limit. Raise
    ArgumentError if the words describe no fault.
    """
    if not words or to_underscores(words[0]) not in list(FaultAction):
        raise ArgumentError(f"A fault begins with its action: one of {', '.join(FaultAction)}.")
    fields = parse_fields(words[1:], Fault)
    if fields.get("times") == TIMES_WITHOUT_LIMIT:
        fields["times"] = None
    if fields.get("api") == ANY_API:
        fields["api"] = None
    elif "api" in fields:
        fields["api"] = number_or_text(fields["api"], ApiKey)
    if "code" in fields:
        fields["code"] = number_or_text(fields["code"], Code)
    return to_struct({"action": to_underscores(words[0]), **fields}, Fault)


def parse_command(words: Sequence[str]) -> BrokerCommand:
    """Return the command that the words describe. The words after `inject` describe a fault.

    Raise ArgumentError if the words describe no command.
    """
    name = to_underscores(words[0]) if words else ""
    kind = COMMANDS_BY_NAME.get(name)
    if kind is None:
        raise ArgumentError(f"There is no command '{name}': give one of {', '.join(sorted(COMMANDS_BY_NAME))}.")
    if kind is Inject:
        return Inject(fault=parse_fault(words[1:]))
    return to_struct(parse_fields(words[1:], kind), kind)


def to_underscores(name: str) -> str:
    return name.replace("-", "_")


def parse_fields(words: Sequence[str], kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the values of FIELD=VALUE words by field name, as text or decoded JSON.

    Raise ArgumentError if a word is not FIELD=VALUE, or names a field that `kind` does not have or that an earlier word
    named.
    """
    fields: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = to_underscores(name)
        if not equals or name not in kind.__struct_fields__:
            known = ", ".join(kind.__struct_fields__)
            hint = f"give one of the fields {known}" if known else "this command has no fields"
            raise ArgumentError(f"'{word}' is not FIELD=VALUE with a known field: {hint}.")
        if name in fields or (name, kind) == ("action", Fault):
            raise ArgumentError(f"'{word}': give each field once, and the action of a fault as its first word.")
        fields[name] = value if kind is Fault else _parse_value(word, value)
    return fields


def _parse_value(word: str, value: str) -> Any:
    """Return the decoded JSON if the value begins with a brace, else the value itself. `word` is for the error text."""
    if not value.startswith("{"):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        raise ArgumentError(f"'{word}': {error}.") from error


def number_or_text(text: str, names: type[IntEnum]) -> int | str:
    """Return the number of the member of `names` that the text names.

    If there is none, return the text: `to_struct` reads it as a number, or refuses it.
    """
    name = to_underscores(text).upper()
    return int(names[name]) if name in names.__members__ else text


def to_struct(fields: dict[str, Any], kind: type[StructType]) -> StructType:
    """Create a struct of type `kind`, and convert texts to the types of its fields.

    Raise ArgumentError if a field is missing or a text cannot be converted.
    """
    try:
        return msgspec.convert(fields, kind, strict=False)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ArgumentError(f"{error}.") from error
