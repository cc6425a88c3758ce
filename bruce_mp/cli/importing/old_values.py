"""Functions that read values in the notation of the old daemons.

For a value that is not allowed, they raise ValueError. Its text describes the allowed values; callers put it after
"give".
"""

from __future__ import annotations

import re
from typing import Final

from bruce_mp.config.sizes import KIB, MIB, format_size

__all__ = [
    "boolean",
    "equals_word",
    "integer",
    "integer_with_suffix",
    "kibibytes",
    "log_level",
    "mode",
    "option_mode",
    "port",
    "size",
    "stripped",
]

_NUMBER: Final = re.compile(r"([0-9]+)\s*([kKmM]?)")
_FACTORS: Final = {"": 1, "k": KIB, "m": MIB}
_WHITE_SPACE: Final = " \t\r\n\v\f"
_OCTAL: Final = re.compile(r"0[0-7]*")
_BINARY: Final = re.compile(r"0b[01]+")
_LARGEST_MODE: Final = 0o777


def stripped(raw: str) -> str:
    """Return a name without the ASCII white space around it, because the old daemons ignored this white space."""
    if not (name := raw.strip(_WHITE_SPACE)):
        raise ValueError("a name")
    return name


def equals_word(raw: str, word: str) -> bool:
    return raw.strip().lower() == word


def boolean(raw: str) -> bool:
    """Parse true or false, in upper or lower case."""
    word = raw.strip().lower()
    if word not in {"true", "false"}:
        raise ValueError("true or false")
    return word == "true"


def integer(raw: str) -> int:
    """Parse decimal digits with an optional minus sign."""
    if not re.fullmatch(r"-?[0-9]+", raw.strip()):
        raise ValueError("an integer")
    return int(raw)


def port(raw: str) -> int | None:
    """Parse a port; return None for an empty text."""
    return integer(raw) if raw.strip() else None


def integer_with_suffix(raw: str) -> int:
    """Parse a number with an optional factor: `k` stands for 1024, `m` for 1024 * 1024."""
    match = _NUMBER.fullmatch(raw.strip())
    if match is None:
        raise ValueError("an integer, optionally followed by k or m")
    return int(match[1]) * _FACTORS[match[2].lower()]


def size(raw: str) -> int | str:
    """Convert a size in bytes, KiB (k) or MiB (m) to the notation of our settings, such as `8k`."""
    return _to_size_setting(integer_with_suffix(raw))


def kibibytes(raw: str) -> int | str:
    """Convert a number of KiB to the notation of our settings, such as `8k`."""
    return _to_size_setting(integer(raw) * KIB)


def _to_size_setting(byte_count: int) -> int | str:
    written = format_size(byte_count)
    return int(written) if written.isdigit() else written


def mode(raw: str) -> str | None:
    """Convert permission bits in Dory's XML, octal or binary, to octal digits. Return None for `unspecified`."""
    word = raw.strip()
    if word == "unspecified":
        return None
    if _OCTAL.fullmatch(word):
        return _octal_digits(int(word, 8))
    if _BINARY.fullmatch(word):
        return _octal_digits(int(word, 2))
    raise ValueError("an octal number (0222), a binary one (0b010010010) or unspecified")


def option_mode(raw: str) -> str:
    """Convert the permission bits of a command-line option, as C writes them (0222, 0x92 or 146), to octal digits."""
    word = raw.strip()
    try:
        bits = int(word, 8) if _OCTAL.fullmatch(word) else int(word, 0)
    except ValueError:
        raise ValueError("a number as C writes it, such as 0222") from None
    return _octal_digits(bits)


def _octal_digits(bits: int) -> str:
    if not 0 <= bits <= _LARGEST_MODE:
        raise ValueError("at most 0777")
    return f"{bits:04o}"


def log_level(raw: str) -> str:
    """Convert a syslog level, with or without the prefix LOG_."""
    return raw.strip().upper().removeprefix("LOG_")
