"""The base class and shared markers of the configuration's sections."""

from typing import Final

from msgspec import Struct

from bruce_mp.config.fields import restart

__all__ = ["BOUND", "MADE_WITH_SLAB", "Section"]

BOUND: Final = restart("the sockets are bound at the start")
MADE_WITH_SLAB: Final = restart("the slab is created with it")


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the configuration file."""
