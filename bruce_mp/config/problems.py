"""Problems of a configuration: key, cause and remedy."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from bruce_mp.config.fields import show

__all__ = ["Key", "Problem", "dotted"]

Key = tuple[str, ...]
"""The path of a setting; that of `slab.size` is ("slab", "size")."""

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


class Problem(NamedTuple):
    """One problem; `path` is the key from the root of the file, names of map entries included."""

    path: Key
    text: str

    @classmethod
    def not_allowed(cls, path: Key, value: object, remedy: str, reason: str = "") -> Problem:
        """Create the problem of an invalid value; `remedy` may begin with a clause that explains the problem."""
        because = f" ({reason})" if reason else ""
        return cls(path, f"{dotted(path)} = {show(value)} is not allowed{because}: {remedy}.")


def dotted(path: Key) -> str:
    """Return the key as TOML writes it: parts that are not bare words are quoted."""
    return ".".join(part if _BARE_KEY.fullmatch(part) else show(part) for part in path)
