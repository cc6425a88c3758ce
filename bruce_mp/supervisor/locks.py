"""Locks that a daemon before us may hold for a moment more.

A lock lasts as long as any process of its daemon lives.  Those of a supervisor that was killed die within
milliseconds; a daemon that is shutting down takes longer.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, TypeVar

from bruce_mp.errors import BruceError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["patiently"]

log = logging.getLogger(__name__)
_Lock = TypeVar("_Lock")

PATIENCE_S: Final = 5.0
RETRY_S: Final = 0.05


def patiently(take: Callable[[], _Lock]) -> _Lock:
    """What `take` returns, as soon as it does not raise a BruceError any more; its last one after 5 s.

    The first one is told at once: nobody should sit before a silent program.
    """
    deadline = time.monotonic() + PATIENCE_S
    is_told = False
    while True:
        try:
            return take()
        except BruceError as error:
            if time.monotonic() >= deadline:
                raise
            if not is_told:
                log.warning("%s It has %g s to end.", error, PATIENCE_S, extra={"about": str(error)})
                is_told = True
        time.sleep(RETRY_S)
