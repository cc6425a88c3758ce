"""Hold a lock in a `with` block, with a time limit.

Separate because its safety from signal handlers depends on details of the interpreter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from bruce_mp.client.errors import SendTimeoutError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from bruce_mp.client.deadline import Deadline

__all__ = ["LockHold", "lock_hold_type"]

MIN_LOCK_WAIT_S: Final = 0.02
"""Shortest timeout for the lock, so that a short call of another thread causes no error with `timeout=0`."""


class LockHold:
    """The hold of a lock during a `with` block, which begins with a call of `then`.

    Raise SendTimeoutError if the time limit passes. An exception of a signal handler does not leave the lock held.
    Handlers run at the start of functions in Python and after calls. So one call acquires the lock and keeps the
    result, and the lock's own method in C is `__exit__`.
    """

    _lock: threading.Lock
    _destination: str
    if TYPE_CHECKING:

        def __exit__(self, *_: object) -> None: ...

    def __init__(self, deadline: Deadline, then: Callable[[], None] | None = None) -> None:
        self._deadline = deadline
        self._then = then

    def __enter__(self) -> None:
        results: list[bool] = []
        try:
            results.extend(map(self._lock.acquire, (True,), (self._deadline.lock_timeout_s(MIN_LOCK_WAIT_S),)))
            if self._then is not None and True in results:
                self._then()
        except BaseException:
            if True in results:
                self._lock.release()
            raise
        if True not in results:
            raise SendTimeoutError(f"{self._destination}: other threads held the connection for the whole time limit.")


def lock_hold_type(lock: threading.Lock, destination: str) -> type[LockHold]:
    """Return the class of the holds of a lock; `destination` names the client in errors."""
    fields = {"_lock": lock, "_destination": destination, "__exit__": lock.__exit__}
    return cast("type[LockHold]", type("LockHold", (LockHold,), fields))
