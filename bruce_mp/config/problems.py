"""Problems of a configuration, each with its key and a text that states cause and remedy."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from bruce_mp.config.fields import show

__all__ = ["Key", "Problem", "dotted"]

Key = tuple[str, ...]
"""The path of a setting: the parts of its key, for example ("slab", "size") for `slab.size`."""

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


class Problem(NamedTuple):
    """One problem; `path` is the whole path of its setting, with the names of map entries."""

    path: Key
    text: str

    @classmethod
    def not_allowed(cls, path: Key, value: object, remedy: str, reason: str = "") -> Problem:
        """Create the problem of an invalid value. `remedy` may begin with a clause that explains the problem."""
        because = f" ({reason})" if reason else ""
        return cls(path, f"{dotted(path)} = {show(value)} is not allowed{because}: {remedy}.")


def dotted(path: Key) -> str:
    """Return the key as it is written in TOML, with quotes around the parts that need them."""
    return ".".join(part if _BARE_KEY.fullmatch(part) else show(part) for part in path)
