"""Waiting for locks that a previous daemon still holds.

A lock lasts until the last process of its daemon ends. Processes of a killed supervisor end within milliseconds; a
daemon that shuts down takes longer.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, TypeVar

from bruce_mp.errors import BruceError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["retry_lock"]

log = logging.getLogger(__name__)
_Lock = TypeVar("_Lock")

PATIENCE_S: Final = 5.0
RETRY_S: Final = 0.05


def retry_lock(take: Callable[[], _Lock]) -> _Lock:
    """Call `take` until it succeeds, for at most 5 s, and return its result. Raise its last BruceError after that.

    The first error is logged at once, so that an interactive user sees the reason of the delay.
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
