"""The supervisor: acquires all resources of the daemon, starts its processes, restarts and ends them.

It checks everything that can be refused before it starts the first process. The order matters: the locks come first, so
that two daemons never use the same resources. The datagram socket comes last, so that clients find it only when an
input is about to read.

The event loop waits for process ends, control messages and signals. Without any it wakes once a second to store its
heartbeat in the slab, as all processes do.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path
from signal import Signals
from socket import SOCK_STREAM
from typing import TYPE_CHECKING, cast

from setproctitle import setproctitle

from bruce_mp import __version__
from bruce_mp.config.accounts import check_accounts
from bruce_mp.config.addresses import HostPort
from bruce_mp.config.features import remarks
from bruce_mp.errors import BruceError, ExitCode, StartError
from bruce_mp.kernels import CHOICE
from bruce_mp.network.credentials import careless_files
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Slab
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.spill import SpillDirectory
from bruce_mp.supervisor.processes.bootstrap import Inherited
from bruce_mp.supervisor.processes.process_group import Equipment, ProcessGroup
from bruce_mp.supervisor.processes.programs import PROGRAMS
from bruce_mp.supervisor.reload import Origin, Reloads
from bruce_mp.supervisor.run_dir import HTTP_ADDRESS, TCP_ADDRESS, take_run_dir
from bruce_mp.supervisor.sd_notify import ServiceManager
from bruce_mp.supervisor.shutdown import Phase, Shutdown
from bruce_mp.supervisor.signals import SignalPipe
from bruce_mp.supervisor.slab.backlog import SPILLED, held_messages, plural
from bruce_mp.supervisor.slab.slab_setup import join_inputs, take_slab, warn_of_size
from bruce_mp.supervisor.sockets.bound_sockets import (
    DATAGRAM_SETTING,
    HTTP_SETTING,
    STREAM_SETTING,
    TCP_SETTING,
    bind_http,
)
from bruce_mp.supervisor.sockets.datagram_limits import check_datagram_size, warn_of_short_queue
from bruce_mp.supervisor.sockets.inherited_sockets import sockets_of_manager
from bruce_mp.supervisor.sockets.input_sockets import input_rows, open_input_sockets
from bruce_mp.supervisor.upgrade.handover import Handover, PassedSocket, execute, take_handover
from bruce_mp.supervisor.upgrade.takeover import Takeover
from bruce_mp.supervisor.upgrade.upgrade import Upgrade, UpgradeState
from bruce_mp.telemetry.books import balance_line, read_books
from bruce_mp.telemetry.clock import wall_ms
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.log_lines import printable
from bruce_mp.telemetry.logs import NOTICE, is_on_stderr, set_up_logging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bruce_mp.config.addresses import UnixPath
    from bruce_mp.config.model import Config
    from bruce_mp.supervisor.processes.programs import Programs
    from bruce_mp.supervisor.sockets.bound_sockets import Bound
    from bruce_mp.supervisor.sockets.inherited_sockets import InheritedSockets

__all__ = ["run"]

log = logging.getLogger(__name__)


def run(config: Config, config_path: Path, overrides: Sequence[str] = (), programs: Programs = PROGRAMS) -> int:
    """Run the daemon until a signal ends it, and return the exit code.

    `config` is the content of the file at `config_path` with the overrides; a reload reads the file again. Raise
    BruceError if the start fails, unless the log already wrote the error to standard error. Call this in the main
    thread: the processes die with it.
    """
    setproctitle("bruce: supervisor")
    set_up_logging(config.logging, "supervisor")
    log.log(NOTICE, "bruce %s starts with %s.", __version__, config_path)
    log.log(NOTICE if CHOICE.compiled else logging.WARNING, "It uses %s.", CHOICE.sentence)
    for remark in (*remarks(config), *careless_files(config)):
        log.warning("%s", remark, extra={"about": remark})
    handover = take_handover()
    try:
        equipment = _take_over(config, handover) if handover and handover.crew else _equip(config, _inherited(handover))
    except BruceError as error:
        log.error("%s", error)  # noqa: TRY400 - a traceback would hide the sentence of an expected error
        if is_on_stderr(config.logging):
            return error.exit_code
        raise
    row = ProcessRow(equipment.slab, lay.ROW_SUPERVISOR)
    row.begin(os.getpid(), wall_ms())
    supervisor = _Supervisor(equipment, row, programs, handover, Origin(config_path.absolute(), overrides))
    failure = supervisor.serve()
    _finish(equipment._replace(config=supervisor.config), failure, keeps_sockets=supervisor.has_to_make_way)
    if supervisor.has_to_make_way:
        supervisor.make_way()
        equipment.intake.remove_files()
        equipment.http.remove_file()
        return ExitCode.SETUP  # a failure status makes a service manager restart the daemon
    return ExitCode.BOOT_LOOP if failure else ExitCode.OK


def _inherited(handover: Handover | None) -> InheritedSockets:
    """Return the inherited sockets."""
    return handover.handed if handover else sockets_of_manager()


def _equip(config: Config, handed: InheritedSockets) -> Equipment:
    """Acquire all resources at an ordinary start. Inherited sockets are not bound again.

    Raise BruceError if a resource is not available.
    """
    if config.input.unix_datagram.enable:
        check_datagram_size(config.input.max_datagram_size, allow_large=config.input.allow_large_datagrams)
        warn_of_short_queue()
    check_accounts(config.input)
    run_dir = Path(config.daemon.run_dir)
    run_lock = take_run_dir(run_dir)
    slab, slab_lock = take_slab(Path(config.slab_path), config.slab.size, config.input.max_datagram_size)
    inputs = input_rows(config.input, slab)
    spills = SpillDirectory.of(slab, config.spill_path)
    _remove_foreign(spills)
    join_inputs(slab, inputs, spills)
    try:
        http = handed.claim(HTTP_SETTING, SOCK_STREAM, config.http.address) or bind_http(config.http)
        intake = open_input_sockets(config.input, handed)
    except StartError:
        _remove_if_empty(slab, spills)
        raise
    _publish(run_dir, http, config.http.address)
    _publish_tcp(run_dir, intake.tcp)
    return Equipment(config, run_dir, slab, (Inherited(run_lock), Inherited(slab_lock)), intake, http, inputs)


def _take_over(config: Config, handover: Handover) -> Equipment:
    """Take over the resources of the replaced code, while its processes still work.

    Raise BruceError as `_equip` does.
    """
    run_dir, slab = Path(config.daemon.run_dir), Slab(Path(config.slab_path))
    warn_of_size(slab, config.slab.size, config.input.max_datagram_size)
    handed = handover.handed
    http = handed.claim(HTTP_SETTING, SOCK_STREAM, config.http.address) or bind_http(config.http)
    intake = open_input_sockets(config.input, handed)
    _publish(run_dir, http, config.http.address)
    _publish_tcp(run_dir, intake.tcp)
    inputs = input_rows(config.input, slab, had_datagrams=handover.had_datagrams)
    return Equipment(config, run_dir, slab, tuple(map(Inherited, handover.locks)), intake, http, inputs)


def _publish(run_dir: Path, http: Bound, address: HostPort | UnixPath) -> None:
    """Store the address of the status pages: with port 0 only the kernel knows it."""
    if isinstance(address, HostPort):
        address = HostPort(address.host, http.socket.getsockname()[1])
    (run_dir / HTTP_ADDRESS).write_text(str(address), "utf-8")
    log.log(NOTICE, "Status pages are served at %s.", address)


def _publish_tcp(run_dir: Path, tcp: Bound | None) -> None:
    """Store the address of the TCP input, or remove the file without one."""
    place = run_dir / TCP_ADDRESS
    place.unlink(missing_ok=True)
    if tcp is not None:
        host, port = tcp.socket.getsockname()[:2]
        place.write_text(str(HostPort(host, port)), "utf-8")


def _remove_foreign(spills: SpillDirectory) -> None:
    """Remove spill files of a slab that is gone: those of memory end with a reboot, the files may not."""
    lost = spills.remove_foreign()
    if lost:
        log.error(
            "Spill files in %s belong to a slab that is gone: %s of complete fenced attempts are lost with it.",
            spills.path,
            plural(lost, "message"),
        )


def _remove_if_empty(slab: Slab, spills: SpillDirectory) -> None:
    if not held_messages(slab):
        spills.remove()
        slab.path.unlink()


class _Supervisor:
    def __init__(
        self, equipment: Equipment, row: ProcessRow, programs: Programs, handover: Handover | None, origin: Origin
    ) -> None:
        self._equipment = equipment
        self._row = row
        self._signals = SignalPipe()
        self._group = ProcessGroup(programs, equipment, row)
        self._shutdown = Shutdown(self._group, equipment.slab, _max_delay_s(equipment.config), equipment.intake)
        self._reloads = Reloads(origin, equipment.config, self._group, self._apply, lambda: self._is_ending)
        self._manager = ServiceManager()
        self._upgrade = Upgrade(equipment.run_dir, equipment.slab.path)
        self._takeover = Takeover(handover, equipment.run_dir) if handover else None
        self._left_to_new_code: list[Signals] = []
        self._beat_due = 0.0
        self._beat: Callable[[], None]
        row.start_heartbeat(self._call_later, wall_ms)

    @property
    def config(self) -> Config:
        return self._reloads.config

    @property
    def _is_ending(self) -> bool:
        return self._shutdown.phase is not Phase.RUNNING

    def _apply(self, config: Config) -> None:
        self._shutdown.max_delay_s = _max_delay_s(config)

    def _call_later(self, seconds: float, beat: Callable[[], None]) -> None:
        self._beat_due, self._beat = time.monotonic() + seconds, beat

    def serve(self) -> str | None:
        """Run the event loop.

        Return the reason why the daemon cannot continue, or None after a shutdown or for new code.
        """
        if self._takeover:
            self._manager.alive(time.monotonic())
            spills = SpillDirectory.of(self._equipment.slab, self._equipment.config.spill_path)
            self._takeover.carry_out(self._group, self._equipment.slab, self._equipment.inputs, spills)
        while True:
            if time.monotonic() >= self._beat_due:
                self._beat()
            self._group.act()
            self._group.kill_hung()
            self._reloads.step()
            self._shutdown.step()
            self._see_to_upgrade()
            self._tell_manager()
            if self._shutdown.phase is Phase.OVER:
                return self._group.failure
            self._wait()

    def _see_to_upgrade(self) -> None:
        if self._takeover:
            self._takeover.report_when_done(self._group)
        self._upgrade.step()
        if self._upgrade.state is UpgradeState.READY:
            self.make_way()
        elif self.has_to_make_way and self._shutdown.phase is Phase.RUNNING:
            self._shutdown.request(keeps_sockets=True)

    @property
    def has_to_make_way(self) -> bool:
        """Return True if the supervisor executes new code after all processes have ended."""
        return self._upgrade.state is UpgradeState.DRAINING

    def make_way(self) -> None:
        """Execute the installed code. This returns only if the execution fails."""
        equipment = self._equipment
        group = self._group.members_for_handover()
        locks = tuple(lock.descriptor for lock in equipment.locks) if group else ()
        handover = Handover(__version__, self._upgrade.since, tuple(_passed(equipment)), locks, group)
        self._manager.alive(time.monotonic())
        self._manager.reloading()
        try:
            execute(handover, self._manager.variables, lambda: (*self._left_to_new_code, *self._signals.read()))
        except OSError as error:
            self._upgrade.refuse(f"it cannot be executed: {error.strerror}")

    def _tell_manager(self) -> None:
        self._manager.alive(time.monotonic())
        if self.has_to_make_way:
            return
        if self._is_ending:
            self._manager.stopping()
        elif self._reloads.is_busy:
            self._manager.reloading()
        elif self._group.is_complete:
            self._manager.ready()

    def _wait(self) -> None:
        sources = {
            **self._group.sources(),
            **self._upgrade.sources(),
            self._signals.fileno(): self._on_signals,
        }
        for ready in wait(list(sources), self._timeout()):
            sources[cast("int", ready)]()

    def _timeout(self) -> float:
        dues = (self._beat_due, self._group.due, self._shutdown.due, self._upgrade.due, self._reloads.due)
        return max(0.0, min(due for due in dues if due is not None) - time.monotonic())

    def _on_signals(self) -> None:
        for number in self._signals.read():
            match number:
                case Signals.SIGTERM | Signals.SIGINT:
                    self._row.add(Counter.GotShutdownRequest)
                    self._end(number)
                case Signals.SIGUSR1:  # nothing to do: each write of the log reopens a moved file
                    self._row.add(Counter.GotLogfileReopenRequest)
                case Signals.SIGUSR2:
                    self._request_upgrade()
                case Signals.SIGHUP:
                    self._reloads.request()

    def _end(self, number: Signals) -> None:
        """Shut down, or leave the shutdown to new code.

        During a drain for new code the sockets hold messages, which the new code must receive before it shuts down.
        """
        if self.has_to_make_way and not self._left_to_new_code:
            log.log(NOTICE, "Shutdown requested: the new code receives the messages at the sockets, then shuts down.")
            self._left_to_new_code.append(number)
            return
        if not self.has_to_make_way:
            self._upgrade.cancel()
        self._shutdown.request()

    def _request_upgrade(self) -> None:
        self._upgrade.request()
        if self._is_ending and not self.has_to_make_way:
            self._upgrade.cancel()


def _max_delay_s(config: Config) -> float:
    return config.delivery.shutdown_max_delay_ms / 1000


def _passed(equipment: Equipment) -> Iterator[PassedSocket]:
    """Yield the sockets for the new code, by setting."""
    intake = equipment.intake
    bound = {
        DATAGRAM_SETTING: intake.datagrams,
        STREAM_SETTING: intake.unix_stream,
        TCP_SETTING: intake.tcp,
        HTTP_SETTING: equipment.http,
    }
    for setting, each in bound.items():
        if each is not None:
            yield PassedSocket(setting, each.socket.fileno(), each.is_ours, each.queue)


def _finish(equipment: Equipment, failure: str | None, *, keeps_sockets: bool) -> None:
    """Clean up after the end of all processes, and report the remaining messages."""
    if not keeps_sockets:
        equipment.intake.remove_files()
        equipment.http.remove_file()
    if failure:
        _tell(equipment, f"{failure}. The daemon has ended.")
    held = held_messages(equipment.slab)
    balance = balance_line(read_books(equipment.slab))
    if held:
        for line in _report(held, equipment.slab):
            _tell(equipment, line)
    elif not failure:
        SpillDirectory.of(equipment.slab, equipment.config.spill_path).remove()
        equipment.slab.path.unlink()
    log.log(NOTICE, "bruce has ended: %s.", balance)


def _report(held: dict[str, int], slab: Slab) -> list[str]:
    """Return one line for the total, and one for each topic."""
    keepers = f"The slab {slab.path}{' and its spill files keep' if SPILLED in held else ' keeps'}"
    return [
        f"{plural(sum(held.values()), 'message')} could not be delivered.",
        f"{keepers} them, and the next start delivers them. By topic:",
        *(f"  {printable(topic)}: {count:,}" for topic, count in sorted(held.items())),
    ]


def _tell(equipment: Equipment, text: str) -> None:
    """Write an error to the log, and to standard error if the log does not go there."""
    log.error("%s", text, extra={"about": text})
    if not equipment.config.logging.stdout_stderr:
        sys.stderr.write(f"bruce: {text}\n")
