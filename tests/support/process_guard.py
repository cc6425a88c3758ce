"""Find tests that start a process and are not marked for it, so that a run without processes starts none."""

from __future__ import annotations

import platform
import sys
from multiprocessing import util
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ProcessGuard"]

_EVENTS: Final = frozenset({
    "subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.spawn", "os.system", "support.fork_server.start"
})  # fmt: skip


class ProcessGuard:
    """Record each start of a process in this interpreter.  Audit hooks stay, so create one for a session."""

    def __init__(self) -> None:
        self._started: list[str] = []
        platform.processor()  # asks a command once, in the test that happens to be first
        sys.addaudithook(self._on_event)
        # The one way to start a process that raises no audit event.
        self._spawn = util.spawnv_passfds
        setattr(util, "spawnv_passfds", self._on_spawn)  # noqa: B010 - mypy refuses to assign to a function

    def pop_started(self) -> list[str]:
        """Return the processes started since the last call."""
        started, self._started = self._started, []
        return started

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS:
            self._started.append(f"{event} {_shown(arguments)}")

    def _on_spawn(self, path: bytes, args: Sequence[str], passfds: Sequence[int]) -> int:
        self._started.append(f"multiprocessing {_shown(tuple(args))}")
        return self._spawn(path, args, passfds)


def _shown(arguments: tuple[Any, ...]) -> str:
    return str(arguments[:2])[:200]
