"""The base class of the configuration's sections, and shared reasons for a restart."""

from typing import Final

from msgspec import Struct

from bruce_mp.config.fields import restart

__all__ = ["RESTART_FOR_SLAB", "RESTART_TO_BIND", "Section"]

RESTART_TO_BIND: Final = restart("the sockets are bound at the start")
RESTART_FOR_SLAB: Final = restart("the slab is created with it")


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the configuration file."""
