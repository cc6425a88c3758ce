"""How the old daemons wrote values.  Each reader raises ValueError with the words for what is allowed."""

from __future__ import annotations

import re
from typing import Final

from bruce_mp.config.sizes import KIB, MIB, format_size

__all__ = [
    "count_k",
    "flag_mode",
    "integer",
    "kibibytes",
    "log_level",
    "mode",
    "size",
    "switch",
    "text",
]

_NUMBER: Final = re.compile(r"([0-9]+)([kKmM]?)")
_FACTORS: Final = {"": 1, "k": KIB, "m": MIB}
_OCTAL: Final = re.compile(r"0[0-7]*")
_BINARY: Final = re.compile(r"0b[01]+")
_MOST_BITS: Final = 0o777


def text(raw: str) -> str:
    """As it is."""
    return raw


def switch(raw: str) -> bool:
    """True or false, in any case."""
    word = raw.strip().lower()
    if word not in {"true", "false"}:
        raise ValueError("true or false")
    return word == "true"


def integer(raw: str) -> int:
    """Digits, perhaps with a sign."""
    if not re.fullmatch(r"-?[0-9]+", raw.strip()):
        raise ValueError("an integer")
    return int(raw)


def count_k(raw: str) -> int:
    """A number, with k for 1024."""
    match = _NUMBER.fullmatch(raw.strip())
    if match is None:
        raise ValueError("an integer, perhaps with k or m behind it")
    return int(match[1]) * _FACTORS[match[2].lower()]


def size(raw: str) -> int | str:
    """Bytes, with k or m for powers of 1024; as we write sizes."""
    return _written(count_k(raw))


def kibibytes(raw: str) -> int | str:
    """A number of KiB, as we write sizes."""
    return _written(integer(raw) * KIB)


def _written(size: int) -> int | str:
    written = format_size(size)
    return int(written) if written.isdigit() else written


def mode(raw: str) -> str | None:
    """Permission bits: octal, binary, or `unspecified`."""
    word = raw.strip()
    if word == "unspecified":
        return None
    if _OCTAL.fullmatch(word):
        return _mode(int(word, 8))
    if _BINARY.fullmatch(word):
        return _mode(int(word, 2))
    raise ValueError("an octal number (0222), a binary one (0b010010010) or unspecified")


def flag_mode(raw: str) -> str:
    """Permission bits as C writes numbers: 0222, 0x92 or 146."""
    word = raw.strip()
    try:
        return _mode(int(word, 8) if _OCTAL.fullmatch(word) else int(word, 0))
    except ValueError:
        raise ValueError("a number as C writes it, such as 0222") from None


def _mode(bits: int) -> str:
    if not 0 <= bits <= _MOST_BITS:
        raise ValueError("at most 0777")
    return f"{bits:04o}"


def log_level(raw: str) -> str:
    """A level of syslog, with or without LOG_ before it."""
    return raw.strip().upper().removeprefix("LOG_")
