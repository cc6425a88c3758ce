"""Reload: read the configuration again, and either refuse it as a whole or apply it in every process.

    requested ──▶ read and checked ──▶ sent to processes ──all confirmed or died──▶ in force
                       └─ invalid, or needs a restart: refused, the old one stays in force

Running processes receive an accepted configuration; others start with it. The supervisor kills a process that does not
confirm in time, and its successor starts with the new configuration. Requests during a reload are served together
afterwards, because the file may have changed again.

`step` runs after every event and at the time `due`; it never waits.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.config.accounts import check_accounts
from bruce_mp.config.changes import changes
from bruce_mp.config.features import remarks
from bruce_mp.config.load import load_config
from bruce_mp.errors import BruceError, ConfigError
from bruce_mp.ipc.control_messages import MAX_MESSAGE_BYTES, ActiveConfig, NewConfig, ReloadOutcome
from bruce_mp.network.credentials import careless_files
from bruce_mp.supervisor.sockets.datagram_limits import check_datagram_size
from bruce_mp.telemetry.clock import wall_ms
from bruce_mp.telemetry.logs import NOTICE, set_up_logging

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bruce_mp.config.changes import Change
    from bruce_mp.config.model import Config
    from bruce_mp.ipc.control_messages import ReloadRequest
    from bruce_mp.supervisor.processes.process_group import ProcessGroup

__all__ = ["Origin", "Reloads"]

PATIENCE_S: float = 10.0
"""Time limit for a process to confirm a configuration."""
NOTHING: Final = "nothing has changed"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of the configuration: a file, and the settings that override it."""

    path: Path
    overrides: Sequence[str] = ()

    def read(self) -> Config:
        """Read and check the file, as a start does. Raise ConfigError or StartError."""
        config = load_config(self.path, self.overrides)
        if config.input.unix_datagram.enable:
            check_datagram_size(config.input.max_datagram_size, allow_large=config.input.allow_large_datagrams)
        check_accounts(config.input)
        return config


class Reloads:
    """Reloads, one at a time. `config` is the configuration in force.

    `is_ending` returns True while the daemon ends; `apply` applies a configuration to the supervisor itself.
    """

    def __init__(
        self,
        origin: Origin,
        config: Config,
        group: ProcessGroup,
        apply: Callable[[Config], None],
        is_ending: Callable[[], bool],
    ) -> None:
        self.config = config
        self.due: float | None = None
        self._origin = origin
        self._group = group
        self._apply = apply
        self._is_ending = is_ending
        self._asked: list[ReloadRequest | None] = []
        self._answered: list[ReloadRequest | None] = []
        self._changed: list[Change] = []
        self._number = 0
        self._in_force = ActiveConfig(str(origin.path), wall_ms())
        group.on_reload_request = self.request
        group.announce(self._in_force)

    @property
    def is_busy(self) -> bool:
        """Return True while processes have yet to confirm a configuration."""
        return bool(self._answered)

    def request(self, request: ReloadRequest | None = None) -> None:
        """Request a reload; None stands for a signal."""
        if request is not None and request.only_check:
            self._group.send_to_status(self._foretell(request))
        else:
            self._asked.append(request)

    def step(self) -> None:
        """Advance the reload as far as possible."""
        if self.is_busy:
            self._wait()
        if self._asked and not self.is_busy and self._group.have_begun:
            self._answered, self._asked = self._asked, []
            try:
                self._begin()
            except BruceError as error:
                self._refuse(str(error))

    def _foretell(self, request: ReloadRequest) -> ReloadOutcome:
        """Return the outcome that a reload would have."""
        try:
            found = self._examine()[1]
        except BruceError as error:
            return ReloadOutcome(request.number, accepted=False, text=f"It would be refused: {error}")
        lines = "".join(f"\n  {change}" for change in found)
        return ReloadOutcome(
            request.number, accepted=True, text=f"It would be applied:{lines}" if found else f"{_upper(NOTHING)}."
        )

    def _examine(self) -> tuple[Config, list[Change]]:
        """Read the file, and return the configuration with its changes. Raise BruceError if it cannot be applied."""
        if self._is_ending():
            raise ConfigError("the daemon is shutting down.")
        config = self._origin.read()
        found = changes(self.config, config)
        refused = [change for change in found if change.restart_because]
        if refused:
            raise ConfigError(f"{'; '.join(map(str, refused))}.")
        if len(msgspec.msgpack.encode(NewConfig(self._number, config))) > MAX_MESSAGE_BYTES:
            raise ConfigError("it is too long to send to running processes; restart to apply.")
        return config, found

    def _begin(self) -> None:
        config, self._changed = self._examine()
        self._take(config)
        if self._changed:
            self._number += 1
            self._group.apply_config(NewConfig(self._number, config))
            self.due = time.monotonic() + PATIENCE_S
        self._wait()

    def _take(self, config: Config) -> None:
        """Apply the configuration to the supervisor. Raise StartError if the new log cannot be opened."""
        if config.logging != self.config.logging:
            try:
                set_up_logging(config.logging, "supervisor")
            except BruceError:
                set_up_logging(self.config.logging, "supervisor")
                raise
        self.config = config
        self._apply(config)

    def _wait(self) -> None:
        """Finish when all processes have confirmed, or kill the late ones at the time limit."""
        if not self._group.late:
            self._finish()
        elif self.due is not None and time.monotonic() >= self.due:
            self.due = None
            self._group.kill_late("did not take the new configuration")

    def _finish(self) -> None:
        self.due = None
        keys = ", ".join(change.key for change in self._changed) or NOTHING
        self._in_force = ActiveConfig(self._in_force.path, wall_ms(), self._in_force.reloads + 1)
        log.log(NOTICE, "Reloaded %s: %s.", self._origin.path, keys, extra={"about": self._in_force})
        for remark in (*remarks(self.config), *careless_files(self.config)):
            log.warning("%s", remark, extra={"about": remark})
        self._answer(ReloadOutcome(0, accepted=True, text=f"Reloaded {self._origin.path}: {keys}."))

    def _refuse(self, why: str) -> None:
        known = self._in_force
        self._in_force = ActiveConfig(known.path, known.since_ms, known.reloads, why.replace("\n", " "), wall_ms())
        text = "Reload refused: {} The old configuration stays in force."
        log.error(text.format(self._in_force.refused), extra={"about": self._in_force})
        self._answer(ReloadOutcome(0, accepted=False, text=text.format(why)))

    def _answer(self, outcome: ReloadOutcome) -> None:
        answered, self._answered = self._answered, []
        self._group.announce(self._in_force)
        for request in answered:
            if request is not None:
                self._group.send_to_status(msgspec.structs.replace(outcome, number=request.number))


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]
