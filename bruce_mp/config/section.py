"""The base class of the configuration's sections, with the reasons for a restart and the limits that sections share."""

from typing import Any, Final

from msgspec import Struct

from bruce_mp.config.fields import restart

__all__ = ["DAY_MS", "INT32_MAX", "RESTART_FOR_SLAB", "RESTART_TO_BIND", "Section", "is_section"]

INT32_MAX: Final = 2**31 - 1
DAY_MS: Final = 24 * 60 * 60 * 1000
"""The largest duration of most settings."""

RESTART_TO_BIND: Final = restart("the sockets are bound at the start")
RESTART_FOR_SLAB: Final = restart("the slab is created with it")


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the configuration file."""


def is_section(annotation: Any) -> bool:
    """Return True for the type of a section, False for that of a setting or map."""
    return isinstance(annotation, type) and issubclass(annotation, Section)
