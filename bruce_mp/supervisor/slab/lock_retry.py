"""Retries for locks that a previous daemon still holds.

A lock lasts until the last process of its daemon exits. After SIGKILL to the supervisor that takes milliseconds; during
a shutdown it takes longer.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.errors import BruceError

__all__ = ["retry_lock"]

log = logging.getLogger(__name__)
_Lock = TypeVar("_Lock")

TIMEOUT_S: Final = 5.0
"""More than the processes of a killed supervisor need to end."""
RETRY_S: Final = 0.05
"""Interval of the tries."""


def retry_lock(acquire: Callable[[], _Lock], in_use: type[BruceError]) -> _Lock:
    """Call `acquire` until it succeeds, and return its result.

    `in_use` is the error of `acquire` if another daemon has the lock; after `TIMEOUT_S` it is raised. Other errors are
    raised at once.
    """
    deadline = time.monotonic() + TIMEOUT_S
    is_logged = False
    while True:
        try:
            return acquire()
        except in_use as error:
            if time.monotonic() >= deadline:
                raise
            if not is_logged:  # at once, so that an interactive user sees the reason of the delay
                # "about": the log does not suppress a second error as a repeat of the first
                log.warning("%s Waiting up to %g s for it to end.", error, TIMEOUT_S, extra={"about": str(error)})
                is_logged = True
        time.sleep(RETRY_S)
