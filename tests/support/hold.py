"""`bruce hold` under test: started with a daemon's configuration file, ended by pid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from support import processes

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path
    from typing import Self

__all__ = ["Hold"]

WITHIN_S: Final = 30.0


class Hold:
    """One `bruce hold`; `log` has all that it wrote."""

    def __init__(self, config: Path) -> None:
        self._config = config
        self._output = config.with_name("hold.log")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self._output.read_text(errors="replace")

    def start(self, until: str = "bruce hold keeps open") -> Self:
        """Start it and wait for these words in the log."""
        with self._output.open("wb") as output:
            self._process = processes.spawn([*processes.BRUCE, "hold", "--config", self._config], output=output)
        processes.long_lived.add(self._process.pid)
        processes.wait_until(lambda: until in self.log or self._has_ended, f"{until!r} of bruce hold", WITHIN_S)
        assert until in self.log, self.log
        return self

    @property
    def _has_ended(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None

    def wait_for(self, words: str) -> None:
        processes.wait_until(lambda: words in self.log, f"{words!r} of bruce hold", WITHIN_S)

    def terminate(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(WITHIN_S)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
