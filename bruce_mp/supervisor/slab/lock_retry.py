"""Retries for locks that a previous daemon still holds.

A daemon's lock is released when the daemon's last process exits. After SIGKILL to the supervisor, the processes exit
within milliseconds; in a shutdown they take longer.
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
"""Longest wait for a lock: more than the processes of a killed supervisor need to exit."""
RETRY_S: Final = 0.05
"""Time between two attempts to acquire a lock."""


def retry_lock(acquire: Callable[[], _Lock], in_use_error: type[BruceError]) -> _Lock:
    """Call `acquire` until it succeeds, and return its result.

    `in_use_error` is the type of the error that `acquire` raises if another daemon has the lock. Raise this error after
    `TIMEOUT_S`, and any other error at once.
    """
    deadline = time.monotonic() + TIMEOUT_S
    is_logged = False
    while True:
        try:
            return acquire()
        except in_use_error as error:
            if time.monotonic() >= deadline:
                raise
            if not is_logged:  # now, not after the wait, so that an interactive user sees the reason for the delay
                # With "about", the log does not suppress the error of another lock as a repeat of this one.
                log.warning("%s Waiting up to %g s for it to end.", error, TIMEOUT_S, extra={"about": str(error)})
                is_logged = True
        time.sleep(RETRY_S)
