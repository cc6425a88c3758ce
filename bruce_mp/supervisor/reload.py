"""Reload: read the configuration again, and either refuse it as a whole or apply it in every process.

    requested ──▶ read and checked ──▶ sent to processes ──all confirmed or died──▶ in force
                       └─ invalid, or needs a restart: refused, the old configuration stays in force

The supervisor sends an accepted configuration to running processes; a process that starts later starts with it. The
supervisor kills a process that does not confirm the configuration in time, and restarts it with the new configuration.
Requests that arrive during a reload are served together by one further reload, because the file may have changed again.

The supervisor calls `Reloads.step`, which never blocks, after every event and at the time in `Reloads.due`.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.config.accounts import check_accounts
from bruce_mp.config.changes import list_changes
from bruce_mp.config.load import load_config
from bruce_mp.config.risky_settings import risk_warnings
from bruce_mp.errors import BruceError, ConfigError
from bruce_mp.ipc.control_messages import MAX_MESSAGE_BYTES, ActiveConfig, NewConfig, ReloadOutcome
from bruce_mp.network.credentials import exposed_file_warnings
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

__all__ = ["ConfigSource", "Reloads"]

CONFIRM_TIMEOUT_S: float = 10.0
"""Time limit for a running process to confirm that it has applied a new configuration."""
NO_CHANGE: Final = "nothing has changed"
_MAX_PROBLEMS: Final = 20
_MAX_TEXT_LENGTH: Final = 8000
"""Limits of a text with problems or changes, which the log and the control messages to the status process have."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """Source of the configuration: a file, and `key=value` settings that override those in the file."""

    path: Path
    overrides: Sequence[str] = ()

    def read(self) -> Config:
        """Return the configuration after the checks of a start. Raise ConfigError or StartError if a check fails."""
        config = load_config(self.path, self.overrides)
        if config.input.unix_datagram.enable:
            check_datagram_size(config.input.max_datagram_size, allow_large=config.input.allow_large_datagrams)
        check_accounts(config.input)
        return config


class Reloads:
    """State machine of reloads, one at a time. `config` is the last accepted configuration.

    `is_ending` returns True during a shutdown, when each reload is refused. `on_config` is called with each accepted
    configuration. `due` is the time at which `step` must be called, in seconds of the monotonic clock, or None.
    """

    def __init__(
        self,
        source: ConfigSource,
        config: Config,
        group: ProcessGroup,
        on_config: Callable[[Config], None],
        is_ending: Callable[[], bool],
    ) -> None:
        self.config = config
        self.due: float | None = None
        self._source = source
        self._group = group
        self._on_config = on_config
        self._is_ending = is_ending
        self._next_requests: list[ReloadRequest | None] = []
        """Requests for the next reload; None stands for SIGHUP."""
        self._current_requests: list[ReloadRequest | None] = []
        """Requests that the current reload serves; None stands for SIGHUP."""
        self._changes: list[Change] = []
        """The changes that the current or last reload applies."""
        self._config_number = 0
        """The number of the last configuration, which a process sends back when it confirms that configuration."""
        self._active_config = ActiveConfig(str(source.path), wall_ms())
        group.on_reload_request = self.request
        group.publish_config_status(self._active_config)

    @property
    def is_busy(self) -> bool:
        """Return True while processes have yet to confirm a configuration."""
        return bool(self._current_requests)

    def request(self, request: ReloadRequest | None = None) -> None:
        """Accept a request for a reload; None stands for SIGHUP. Answer it at once if `only_check` is True."""
        if request is not None and request.only_check:
            self._group.send_to_status(self._preview(request))
        else:
            self._next_requests.append(request)

    def step(self) -> None:
        """Continue the current reload, or begin the next one."""
        if self.is_busy:
            self._check_confirmations()
        # A process that still waits for Begin could not receive the configuration.
        if self._next_requests and not self.is_busy and self._group.all_may_begin:
            self._current_requests, self._next_requests = self._next_requests, []
            try:
                self._begin()
            except BruceError as error:
                self._refuse(_problems_text(error))

    def _preview(self, request: ReloadRequest) -> ReloadOutcome:
        """Return the outcome of a reload if it were carried out now."""
        try:
            _, changes = self._load_changes()
        except BruceError as error:
            return ReloadOutcome(request.number, accepted=False, text=f"It would be refused: {_problems_text(error)}")
        lines = _join([str(change) for change in changes], "\n  ")
        text = f"It would be applied:\n  {lines}" if changes else f"{NO_CHANGE.capitalize()}."
        return ReloadOutcome(request.number, accepted=True, text=text)

    def _load_changes(self) -> tuple[Config, list[Change]]:
        """Read the file, and return the new configuration and its differences from the configuration in force.

        Raise BruceError if a reload cannot apply it.
        """
        if self._is_ending():
            raise ConfigError("the daemon is shutting down.")
        config = self._source.read()
        changes = list_changes(self.config, config)
        refused = [change for change in changes if change.restart_reason]
        if refused:
            raise ConfigError(f"{'; '.join(map(str, refused))}.")
        if len(msgspec.msgpack.encode(NewConfig(self._config_number, config))) > MAX_MESSAGE_BYTES:
            raise ConfigError("it is too long to send to running processes; restart to apply.")
        return config, changes

    def _begin(self) -> None:
        config, self._changes = self._load_changes()
        self._apply_to_supervisor(config)
        if self._changes:
            self._config_number += 1
            self._group.apply_config(NewConfig(self._config_number, config))
            self.due = time.monotonic() + CONFIRM_TIMEOUT_S
        self._check_confirmations()

    def _apply_to_supervisor(self, config: Config) -> None:
        """Apply the configuration to the supervisor itself.

        If the new log cannot be opened, continue with the old log, and raise StartError.
        """
        if config.logging != self.config.logging:
            try:
                set_up_logging(config.logging, "supervisor", must_open=True)
            except BruceError:
                set_up_logging(self.config.logging, "supervisor")
                raise
        self.config = config
        self._on_config(config)

    def _check_confirmations(self) -> None:
        """Finish the reload if all processes have confirmed it. At the time limit, kill those that have not."""
        if not self._group.unconfirmed_instances:
            self._finish()
        elif self.due is not None and time.monotonic() >= self.due:
            self.due = None
            self._group.kill_unconfirmed("did not confirm the new configuration")

    def _finish(self) -> None:
        self.due = None
        keys = _join([change.key for change in self._changes], ", ") or NO_CHANGE
        self._active_config = ActiveConfig(self._active_config.path, wall_ms(), self._active_config.reload_count + 1)
        log.log(NOTICE, "Reloaded %s: %s.", self._source.path, keys, extra={"about": self._active_config})
        for warning in (*risk_warnings(self.config), *exposed_file_warnings(self.config)):
            # The log suppresses repeats from one source line unless "about" differs.
            log.warning("%s", warning, extra={"about": warning})
        self._answer(ReloadOutcome(number=0, accepted=True, text=f"Reloaded {self._source.path}: {keys}."))

    def _refuse(self, reason: str) -> None:
        before = self._active_config
        self._active_config = ActiveConfig(
            before.path, before.since_ms, before.reload_count, refused=reason.replace("\n", " "), refused_ms=wall_ms()
        )
        text = "Reload refused: {} The old configuration stays in force."
        log.error(text.format(self._active_config.refused), extra={"about": self._active_config})
        self._answer(ReloadOutcome(number=0, accepted=False, text=text.format(reason)))

    def _answer(self, outcome: ReloadOutcome) -> None:
        """Send the outcome to the status process for each request that this reload served, with its number."""
        finished, self._current_requests = self._current_requests, []
        self._group.publish_config_status(self._active_config)
        for request in finished:
            if request is not None:
                self._group.send_to_status(msgspec.structs.replace(outcome, number=request.number))


def _problems_text(error: BruceError) -> str:
    return _join(str(error).split("\n"), "\n", most=_MAX_PROBLEMS, rest="and {} more problems.")


def _join(items: Sequence[str], separator: str, *, most: int | None = None, rest: str = "and {} more") -> str:
    """Join at most `most` items, and not more than the longest text has; `rest` tells how many more there are."""
    shown = list(items[:most])
    text = separator.join(shown)
    if len(text) > _MAX_TEXT_LENGTH:
        text = text[:_MAX_TEXT_LENGTH]
        shown = text.split(separator)[:-1] or [text]  # the last one is cut
    omitted_count = len(items) - len(shown)
    return separator.join([*shown, rest.format(omitted_count)] if omitted_count else shown)
