"""A reload: read the configuration anew, refuse it as a whole or have every process take it.

    asked ──▶ read and checked ──▶ handed over ──everybody said so, or died──▶ in force
                   └─ wrong, or a restart is needed: refused, the old one stays in force

What is accepted is what every process has from then on: those that run are told, whoever starts is given it.  One that
does not say in time that it took it is killed, and its successor begins with it.  What is asked for meanwhile is done
afterwards, once, because the file may have changed again.

`step` is called after every event and when `due` has come; it never waits.
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
from bruce_mp.pipes.control import MOST_BYTES, InForce, NewConfig, ReloadOutcome
from bruce_mp.pipes.credentials import careless_files
from bruce_mp.supervisor.datagram_limits import check_datagram_size
from bruce_mp.telemetry.clock import wall_ms
from bruce_mp.telemetry.logs import NOTICE, set_up_logging

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bruce_mp.config.changes import Change
    from bruce_mp.config.model import Config
    from bruce_mp.pipes.control import ReloadRequest
    from bruce_mp.supervisor.crew import Crew

__all__ = ["Origin", "Reloads"]

PATIENCE_S: float = 10.0
"""So long may a process take to say that it took a configuration."""
NOTHING: Final = "nothing has changed"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the configuration comes from: a file, and the settings laid over it."""

    path: Path
    overrides: Sequence[str] = ()

    def read(self) -> Config:
        """The configuration as it is there now.  Raises ConfigError, or StartError, as a start would."""
        config = load_config(self.path, self.overrides)
        if config.input.unix_datagram.enable:
            check_datagram_size(config.input.max_datagram_size, allow_large=config.input.allow_large_datagrams)
        check_accounts(config.input)
        return config


class Reloads:
    """Reloads, one after the other.  `config` is the one in force.

    `is_ending` says whether the daemon ends; `apply` lets the supervisor itself go by a configuration.
    """

    def __init__(
        self, origin: Origin, config: Config, crew: Crew, apply: Callable[[Config], None], is_ending: Callable[[], bool]
    ) -> None:
        self.config = config
        self.due: float | None = None
        self._origin = origin
        self._crew = crew
        self._apply = apply
        self._is_ending = is_ending
        self._asked: list[ReloadRequest | None] = []
        self._answered: list[ReloadRequest | None] = []
        self._changed: list[Change] = []
        self._number = 0
        self._in_force = InForce(str(origin.path), wall_ms())
        crew.on_reload_request = self.request
        crew.announce(self._in_force)

    @property
    def is_busy(self) -> bool:
        """Whether processes are still to say that they took a configuration."""
        return bool(self._answered)

    def request(self, request: ReloadRequest | None = None) -> None:
        """Somebody asks for one; None: a signal."""
        if request is not None and request.only_check:
            self._crew.tell_status(self._foretell(request))
        else:
            self._asked.append(request)

    def step(self) -> None:
        """Go on as far as it goes."""
        if self.is_busy:
            self._wait()
        if self._asked and not self.is_busy and self._crew.have_begun:
            self._answered, self._asked = self._asked, []
            try:
                self._begin()
            except BruceError as error:
                self._refuse(str(error))

    def _foretell(self, request: ReloadRequest) -> ReloadOutcome:
        """What a reload would do."""
        try:
            found = self._examine()[1]
        except BruceError as error:
            return ReloadOutcome(request.number, accepted=False, text=f"It would be refused: {error}")
        lines = "".join(f"\n  {change}" for change in found)
        return ReloadOutcome(
            request.number, accepted=True, text=f"It would be applied:{lines}" if found else f"{_upper(NOTHING)}."
        )

    def _examine(self) -> tuple[Config, list[Change]]:
        """The configuration in the file, and what it changes.  Raises BruceError if it cannot be applied."""
        if self._is_ending():
            raise ConfigError("the daemon is shutting down.")
        config = self._origin.read()
        found = changes(self.config, config)
        refused = [change for change in found if change.restart_because]
        if refused:
            raise ConfigError(f"{'; '.join(map(str, refused))}.")
        if len(msgspec.msgpack.encode(NewConfig(self._number, config))) > MOST_BYTES:
            raise ConfigError("it is too long to be handed over to processes that run; restart to apply.")
        return config, found

    def _begin(self) -> None:
        config, self._changed = self._examine()
        self._take(config)
        if self._changed:
            self._number += 1
            self._crew.take_config(NewConfig(self._number, config))
            self.due = time.monotonic() + PATIENCE_S
        self._wait()

    def _take(self, config: Config) -> None:
        """Go by it ourselves.  Raises StartError if the log cannot be written as it says."""
        if config.logging != self.config.logging:
            try:
                set_up_logging(config.logging, "supervisor")
            except BruceError:
                set_up_logging(self.config.logging, "supervisor")
                raise
        self.config = config
        self._apply(config)

    def _wait(self) -> None:
        """Finish once everybody has it; be hard on those who do not take it."""
        if not self._crew.late:
            self._finish()
        elif self.due is not None and time.monotonic() >= self.due:
            self.due = None
            self._crew.kill_late("did not take the new configuration")

    def _finish(self) -> None:
        self.due = None
        keys = ", ".join(change.key for change in self._changed) or NOTHING
        self._in_force = InForce(self._in_force.path, wall_ms(), self._in_force.reloads + 1)
        log.log(NOTICE, "Reloaded %s: %s.", self._origin.path, keys, extra={"about": self._in_force})
        for remark in (*remarks(self.config), *careless_files(self.config)):
            log.warning("%s", remark, extra={"about": remark})
        self._answer(ReloadOutcome(0, accepted=True, text=f"Reloaded {self._origin.path}: {keys}."))

    def _refuse(self, why: str) -> None:
        known = self._in_force
        self._in_force = InForce(known.path, known.since_ms, known.reloads, why.replace("\n", " "), wall_ms())
        text = "Reload refused: {} The old configuration stays in force."
        log.error(text.format(self._in_force.refused), extra={"about": self._in_force})
        self._answer(ReloadOutcome(0, accepted=False, text=text.format(why)))

    def _answer(self, outcome: ReloadOutcome) -> None:
        answered, self._answered = self._answered, []
        self._crew.announce(self._in_force)
        for request in answered:
            if request is not None:
                self._crew.tell_status(msgspec.structs.replace(outcome, number=request.number))


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]
