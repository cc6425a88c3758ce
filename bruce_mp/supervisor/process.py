"""The supervisor: acquires all resources of the daemon, and starts, restarts and ends its processes.

Every check that can make a start fail runs before the first process starts. The locks are acquired first, so that two
daemons never use the same resources, then the slab. The sockets are acquired last, so that clients find them only
shortly before an input reads from them.

At an upgrade (`upgrade/upgrade.py`), the supervisor's process executes the installed code. This new code gets the
sockets of the *replaced code*, and the processes of the replaced code if they still run.

The event loop waits for process exits, control messages and signals. It wakes at least once a second to store the
supervisor's heartbeat in the slab, where every process stores one.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, cast

from setproctitle import setproctitle

from bruce_mp import __version__
from bruce_mp.config.accounts import check_accounts
from bruce_mp.config.addresses import HostPort
from bruce_mp.config.risky_settings import risk_warnings
from bruce_mp.errors import BruceError, ExitCode, StartError, creation_remedy
from bruce_mp.ipc.control_messages import LostSocketFiles
from bruce_mp.journal.recorder import JOURNAL_SETTING
from bruce_mp.kernels import CHOICE
from bruce_mp.network.credentials import exposed_file_warnings
from bruce_mp.pipeline.configured_partitioners import partitioners_of
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry, Slab
from bruce_mp.slab.private_directory import check_owner
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.spill import SPILL_SETTING, SpillDirectory
from bruce_mp.supervisor.processes.process_group import ProcessGroup, Resources
from bruce_mp.supervisor.processes.programs import PROGRAMS
from bruce_mp.supervisor.reload import ConfigSource, Reloads
from bruce_mp.supervisor.run_dir import HTTP_ADDRESS, TCP_ADDRESS, acquire_run_dir, write_address
from bruce_mp.supervisor.sd_notify import ServiceManager
from bruce_mp.supervisor.shutdown import Shutdown, ShutdownPhase
from bruce_mp.supervisor.signal_pipe import SignalPipe
from bruce_mp.supervisor.slab.backlog import Successor, count_held_by_topic, undelivered_lines
from bruce_mp.supervisor.slab.journal_setup import JournalSetup
from bruce_mp.supervisor.slab.slab_setup import acquire_slab, recover_inputs, warn_of_other_size
from bruce_mp.supervisor.sockets.bound_sockets import (
    DATAGRAM_SETTING,
    HTTP_SETTING,
    STREAM_SETTING,
    TCP_SETTING,
)
from bruce_mp.supervisor.sockets.datagram_limits import check_datagram_size, warn_of_short_queue
from bruce_mp.supervisor.sockets.inherited_sockets import sockets_from_manager, with_socket_file
from bruce_mp.supervisor.sockets.input_sockets import InputSockets, http_setting, input_rows, open_input_sockets
from bruce_mp.supervisor.sockets.kept_sockets import SocketKeeperLink, request_sockets
from bruce_mp.supervisor.upgrade.handover import Handover, PassedSocket, execute, read_handover
from bruce_mp.supervisor.upgrade.takeover import Takeover
from bruce_mp.supervisor.upgrade.upgrade import Upgrade, UpgradeState
from bruce_mp.telemetry.books import balance_line
from bruce_mp.telemetry.clock import steady_ms, wall_ms
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.logs import NOTICE, is_on_stderr, plural, set_up_logging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bruce_mp.config.model import Config
    from bruce_mp.supervisor.processes.programs import Programs
    from bruce_mp.supervisor.sockets.bound_sockets import BoundSocket
    from bruce_mp.supervisor.sockets.inherited_sockets import InheritedSockets

__all__ = ["run"]

log = logging.getLogger(__name__)


def run(config: Config, config_path: Path, overrides: Sequence[str] = (), programs: Programs = PROGRAMS) -> int:
    """Run the daemon until a signal or a permanent failure ends it, and return the exit code.

    `config` is the content of the file at `config_path` with the `overrides` (`key=value` each); a reload reads the
    file again. If the start fails, raise BruceError, or only return the error's exit code if the log has already
    written the error to standard error. Call this in the main thread: the kernel kills the daemon's processes when the
    thread that spawned them ends.
    """
    setproctitle("bruce: supervisor")
    handover = read_handover()
    set_up_logging(config.logging, "supervisor", must_open=handover is None)
    log.log(NOTICE, "bruce %s starts with %s.", __version__, config_path)
    log.log(NOTICE if CHOICE.compiled else logging.WARNING, "It uses %s.", CHOICE.sentence)
    for warning in (*risk_warnings(config), *exposed_file_warnings(config)):
        # The log suppresses repeats from one source line unless "about" differs.
        log.warning("%s", warning, extra={"about": warning})
    try:
        if handover and handover.processes:  # an upgrade, and the processes of the replaced code still run
            resources = _take_over_resources(config, handover)
        else:
            resources = _acquire_resources(config, passed=handover.inherited_sockets if handover else None)
    except BruceError as error:
        log.error("%s", error)
        if is_on_stderr(config.logging):
            return error.exit_code
        raise
    row = ProcessRow.recover(resources.slab, lay.ROW_SUPERVISOR)
    row.begin(os.getpid(), wall_ms(), steady_ms())
    supervisor = _Supervisor(resources, row, programs, handover, ConfigSource(config_path.absolute(), overrides))
    try:
        failure = supervisor.run_event_loop()
    except BruceError as error:  # of a takeover
        log.error("%s", error)
        supervisor.kill_processes()
        return error.exit_code
    except Exception:
        log.critical("Unexpected error; the daemon ends, and its slab stays.", exc_info=True)
        supervisor.kill_processes()
        return ExitCode.BOOT_LOOP
    # If the new code or `bruce hold` keeps the sockets open, the socket files stay.
    keeps_sockets = supervisor.is_draining_for_upgrade or supervisor.offer_sockets()
    _clean_up(resources._replace(config=supervisor.config), failure, supervisor.successor, keeps_sockets=keeps_sockets)
    if supervisor.is_draining_for_upgrade:
        supervisor.execute_new_code()
        # The call has returned, so the new code cannot be executed. Unless `bruce hold` keeps the sockets open, they
        # close when this process exits, so their files are removed.
        if not supervisor.offer_sockets():
            _abandon_sockets(resources)
        if not supervisor.read_shutdown_requests():
            return ExitCode.SETUP  # a failure, after which the service manager starts the daemon again
    return ExitCode.BOOT_LOOP if failure else ExitCode.OK


def _acquire_resources(config: Config, passed: InheritedSockets | None) -> Resources:
    """Acquire all resources at a start where no process of the daemon runs yet.

    `passed` has the sockets of the replaced code. It is None if the start is no upgrade: the daemon then inherits the
    sockets of the service manager and of `bruce hold`. It binds the configured sockets that it does not inherit. Raise
    BruceError if a resource is not available.
    """
    if config.input.unix_datagram.enable:
        check_datagram_size(config.input.max_datagram_size, allow_large=config.input.allow_large_datagrams)
        warn_of_short_queue()
    check_accounts(config.input)
    run_dir = Path(config.daemon.run_dir)
    run_lock = acquire_run_dir(run_dir)
    inherited = passed
    if inherited is None:
        inherited = sockets_from_manager()
        inherited.add(request_sockets(run_dir))
    check_owner(Path(config.spill_path), SPILL_SETTING, Path(config.slab_path))
    check_owner(Path(config.journal_path), JOURNAL_SETTING, Path(config.slab_path))
    journal = JournalSetup(Path(config.journal_path), is_kept=config.slab.sync != "off")
    slab, slab_lock = acquire_slab(
        Path(config.slab_path), config.slab.size, config.input.max_datagram_size, journal, Path(config.spill_path)
    )
    journal.apply(slab, is_empty=not count_held_by_topic(slab), partitioners=partitioners_of(config))
    rows = input_rows(config.input, slab)
    spills = SpillDirectory.for_slab(slab, config.spill_path)
    _remove_outdated_spills(spills)
    recover_inputs(slab, rows, spills)
    try:
        http, input_sockets = _open_sockets(config, inherited)
    except StartError:
        if not count_held_by_topic(slab):
            _remove_empty_slab(slab, config)
        raise
    return Resources(
        config,
        run_dir,
        slab,
        (run_lock, slab_lock),
        # `with_socket_file` makes the daemon remove the socket files when it ends. A start that fails before this point
        # leaves the files of the sockets that `bruce hold` keeps.
        InputSockets(*(bound and with_socket_file(bound) for bound in input_sockets)),
        with_socket_file(http),
        rows,
    )


def _take_over_resources(config: Config, handover: Handover) -> Resources:
    """Take over the resources of the replaced code while its processes still work.

    Raise BruceError if a resource is not available.
    """
    run_dir, slab = Path(config.daemon.run_dir), Slab(Path(config.slab_path))
    warn_of_other_size(slab, Geometry.for_size(config.slab.size, config.input.max_datagram_size))
    http, input_sockets = _open_sockets(config, handover.inherited_sockets)
    rows = input_rows(config.input, slab, replaced_code_has_datagram_input=handover.has_datagram_input)
    return Resources(config, run_dir, slab, handover.locks, input_sockets, http, rows)


def _open_sockets(config: Config, inherited: InheritedSockets) -> tuple[BoundSocket, InputSockets]:
    """Claim the inherited sockets of the status pages and the inputs, and bind the missing ones.

    Write the addresses of the status pages and of the TCP input to files in the run directory, for other programs.
    """
    setting = http_setting(config.http)
    http = setting.claim(inherited) or setting.bind()
    input_sockets = open_input_sockets(config.input, inherited)
    run_dir, address = Path(config.daemon.run_dir), config.http.address
    if isinstance(address, HostPort):
        address = HostPort(address.host, http.socket.getsockname()[1])  # with port 0 the kernel chooses the port
    write_address(run_dir / HTTP_ADDRESS, address)
    log.log(NOTICE, "Status pages are served at %s.", address)
    (run_dir / TCP_ADDRESS).unlink(missing_ok=True)
    if input_sockets.tcp is not None:
        host, port = input_sockets.tcp.socket.getsockname()[:2]
        write_address(run_dir / TCP_ADDRESS, HostPort(host, port))
    return http, input_sockets


def _remove_outdated_spills(spills: SpillDirectory) -> None:
    """Remove the spill files of a slab that no longer exists.

    Spill files hold messages of fenced attempts that exceed the attempts' part of the slab. A reboot clears a slab in
    memory, but not spill files on a disk.
    """
    lost_count = spills.remove_outdated()
    if lost_count:
        log.error(
            "Spill files in %s belong to a slab that no longer exists: %s of complete fenced attempts are lost.",
            spills.path,
            plural(lost_count, "message"),
        )


class _Supervisor:
    """The event loop of the supervisor, and the state machines that it drives."""

    def __init__(
        self, resources: Resources, row: ProcessRow, programs: Programs, handover: Handover | None, source: ConfigSource
    ) -> None:
        self._resources = resources
        self._row = row
        self._signals = SignalPipe()
        self._group = ProcessGroup(programs, resources, row)
        self._shutdown = Shutdown(self._group, resources.slab, resources.config, resources.input_sockets)
        self._reloads = Reloads(
            source, resources.config, self._group, self._shutdown.apply_config, lambda: self._is_ending
        )
        self._service_manager = ServiceManager()
        self._upgrade = Upgrade(resources.run_dir, resources.slab)
        self._takeover = Takeover(handover, resources.run_dir) if handover else None
        self._socket_keeper = SocketKeeperLink(resources.run_dir)
        self._deferred_signals: list[Signals] = []
        self._lost_socket_files: tuple[str, ...] = ()
        self._heartbeat_due = 0.0
        self._store_heartbeat: Callable[[], None]
        # This calls `_schedule_heartbeat` at once, which sets the two attributes above; so does each heartbeat.
        row.start_heartbeat(self._schedule_heartbeat, steady_ms)

    @property
    def config(self) -> Config:
        """Return the configuration in force, which reloads change."""
        return self._reloads.config

    def offer_sockets(self) -> bool:
        """Send the sockets to `bruce hold`, if it runs and does not have them.

        Return True if `bruce hold` keeps the sockets open after the daemon has ended. Do not send sockets of a service
        manager, which keeps them open itself.
        """
        own_sockets = ((setting, each) for setting, each in _bound_sockets(self._resources) if each.is_ours)
        return self._socket_keeper.offer(own_sockets)

    def _report_lost_socket_files(self) -> None:
        """Report the socket files that are gone, for example because a cleaner of temporary files removed them."""
        if self._is_ending:
            return  # the shutdown removes the files itself
        found = tuple(str(file) for _, each in _bound_sockets(self._resources) if (file := each.lost_file()))
        for path in sorted({*found} - {*self._lost_socket_files}):
            log.error(
                "The socket file %s is gone or was replaced: remove what may be in its place, and restart the daemon.",
                path,
            )
        if found or self._lost_socket_files:  # also if nothing has changed, because the status process may be a new one
            self._group.send_to_status(LostSocketFiles(found))
        self._lost_socket_files = found

    @property
    def _is_ending(self) -> bool:
        return self._shutdown.phase is not ShutdownPhase.RUNNING

    def _schedule_heartbeat(self, seconds: float, heartbeat: Callable[[], None]) -> None:
        self._heartbeat_due, self._store_heartbeat = time.monotonic() + seconds, heartbeat

    def run_event_loop(self) -> str | None:
        """Run the event loop until all processes have ended.

        Return the reason why the daemon cannot continue, or None after a shutdown or before an upgrade.
        """
        if self._takeover:
            # The takeover blocks this loop. After this notification, the service manager waits for a whole interval.
            self._service_manager.notify_alive(time.monotonic())
            spills = SpillDirectory.for_slab(self._resources.slab, self._resources.config.spill_path)
            self._takeover.carry_out(self._group, self._resources.slab, self._resources.input_rows, spills)
            self._remove_old_journal()
        while True:
            if time.monotonic() >= self._heartbeat_due:
                self._store_heartbeat()
                self.offer_sockets()  # `bruce hold` may have started since the last heartbeat
                self._report_lost_socket_files()
            self._group.spawn_or_kill_if_due()
            self._group.kill_hung()
            self._reloads.step()
            self._shutdown.step()
            self._step_upgrade()
            self._notify_manager()
            if self._shutdown.phase is ShutdownPhase.OVER:
                return self._group.failure
            self._handle_events()

    def kill_processes(self) -> None:
        """Kill all processes, because this one, at its exit, waits for them; they ignore SIGTERM."""
        for child in self._group.members:
            child.kill("cannot work without the supervisor")

    def _remove_old_journal(self) -> None:
        """Remove the replaced code's journal if the configuration now sets another directory, or no journal.

        The journal process of the replaced code has ended, so nothing writes to that journal any more.
        """
        config, slab = self._resources.config, self._resources.slab
        is_kept = config.slab.sync != "off"
        JournalSetup.change_directory(slab, Path(config.journal_path) if is_kept else None)
        if not is_kept:
            # After a power failure, a journal that is still on the disk would replace the slab.
            JournalSetup.remove(Path(config.journal_path), slab.path)
            slab.store_signed(lay.SUPER_JOURNALED_MS, 0)

    def _step_upgrade(self) -> None:
        if self._takeover:
            self._takeover.step(self._group)
        self._upgrade.step()
        if self._upgrade.state is UpgradeState.READY:
            self.execute_new_code()
        elif self.is_draining_for_upgrade and self._shutdown.phase is ShutdownPhase.RUNNING:
            self._shutdown.request(keeps_sockets=True)

    @property
    def is_draining_for_upgrade(self) -> bool:
        """Return True if the supervisor is to execute new code after all processes have ended."""
        return self._upgrade.state is UpgradeState.DRAINING

    @property
    def successor(self) -> Successor | None:
        """Return the code that the supervisor is to execute after all processes have ended, or None."""
        report = self._upgrade.report if self.is_draining_for_upgrade else None
        return Successor(report.version, Path(report.slab), report.layout) if report else None

    def execute_new_code(self) -> None:
        """Replace this process by the installed code with `execve`. Return only if the `execve` fails."""
        resources = self._resources
        processes = self._group.processes_to_pass()
        # If no processes are passed, the new code starts as without an upgrade, and acquires the locks itself.
        locks = resources.locks if processes else ()
        sockets = tuple(
            PassedSocket(setting, each.socket.fileno(), each.is_ours, each.queue_length)
            for setting, each in _bound_sockets(resources)
        )
        handover = Handover(__version__, self._upgrade.checked_at, sockets, locks, processes)
        self._service_manager.notify_alive(time.monotonic())
        self._service_manager.notify_reloading()
        try:
            execute(handover, self._service_manager.variables, lambda: (*self._deferred_signals, *self._signals.read()))
        except OSError as error:
            self._upgrade.refuse(f"it cannot be executed: {error.strerror}")

    def read_shutdown_requests(self) -> list[Signals]:
        """Return the requests for a shutdown that remain after a failed `execve`, which raises deferred ones again."""
        return [number for number in self._signals.read() if number in {Signals.SIGTERM, Signals.SIGINT}]

    def _notify_manager(self) -> None:
        self._service_manager.notify_alive(time.monotonic())
        if self.is_draining_for_upgrade:
            return  # for the service manager the daemon keeps running: the new code follows in the same process
        if self._is_ending:
            self._service_manager.notify_stopping()
        elif self._reloads.is_busy:
            self._service_manager.notify_reloading()
        elif self._group.is_complete:
            self._service_manager.notify_ready()

    def _handle_events(self) -> None:
        """Wait for events, at most until an action is due, and call the handlers of the events."""
        sources = {
            **self._group.sources(),
            **self._upgrade.sources(),
            self._signals.fileno(): self._on_signals,
        }
        for ready in wait(list(sources), self._timeout()):
            sources[cast("int", ready)]()  # all sources are descriptors; `wait` declares more types

    def _timeout(self) -> float:
        """Return the seconds until the earliest time at which the loop must act without an event."""
        times = (self._heartbeat_due, self._group.due, self._shutdown.due, self._upgrade.due, self._reloads.due)
        return max(0.0, min(due for due in times if due is not None) - time.monotonic())

    def _on_signals(self) -> None:
        for number in self._signals.read():
            match number:
                case Signals.SIGTERM | Signals.SIGINT:
                    self._row.add(Counter.GotShutdownRequest)
                    self._shut_down(number)
                case Signals.SIGUSR1:  # only counted: each write to the log reopens a log file that was moved
                    self._row.add(Counter.GotLogfileReopenRequest)
                case Signals.SIGUSR2:
                    self._request_upgrade()
                case Signals.SIGHUP:
                    self._reloads.request()

    def _shut_down(self, number: Signals) -> None:
        """Shut down; if the daemon is draining for an upgrade, pass the first request on to the new code instead.

        New messages wait in the sockets while the old processes drain. The new code must receive these messages before
        the daemon ends.
        """
        if self.is_draining_for_upgrade and not self._deferred_signals:
            log.log(NOTICE, "Shutdown requested: the new code receives the messages at the sockets, then shuts down.")
            self._deferred_signals.append(number)
            return
        if not self.is_draining_for_upgrade:
            self._upgrade.cancel()
        self._shutdown.request(keeps_sockets=self.offer_sockets())

    def _request_upgrade(self) -> None:
        self._upgrade.request()
        if self._is_ending and not self.is_draining_for_upgrade:
            self._upgrade.cancel()  # records for `bruce upgrade` that the daemon is shutting down


def _bound_sockets(resources: Resources) -> Iterator[tuple[str, BoundSocket]]:
    """Return all sockets that the daemon has bound or inherited, each with the name of its setting."""
    input_sockets = resources.input_sockets
    bound = {
        DATAGRAM_SETTING: input_sockets.datagrams,
        STREAM_SETTING: input_sockets.unix_stream,
        TCP_SETTING: input_sockets.tcp,
        HTTP_SETTING: resources.http,
    }
    return ((setting, each) for setting, each in bound.items() if each is not None)


def _clean_up(resources: Resources, failure: str | None, successor: Successor | None, *, keeps_sockets: bool) -> None:
    """Remove the daemon's files after all processes have ended, and report undelivered messages.

    `failure` is the reason why the daemon could not continue, or None. `successor` is the code that the supervisor
    executes next, or None. The slab, its spill files and its journal are removed only if every message was delivered or
    discarded, and there was no failure.
    """
    if not keeps_sockets:
        resources.input_sockets.remove_files()
        resources.http.remove_file()
    if failure:
        _report_error(resources, f"{failure}. The daemon has ended.")
    held = count_held_by_topic(resources.slab)
    balance = balance_line(count_books(resources.slab))
    if held:
        journal = Path(resources.config.journal_path) if resources.config.slab.sync != "off" else None
        for line in undelivered_lines(held, resources.slab, journal, successor):
            _report_error(resources, line)
        if journal:
            JournalSetup.close(resources.slab, journal, for_1_0_0=successor is not None and successor.layout == 1)
    elif not failure:
        _remove_empty_slab(resources.slab, resources.config)
    log.log(NOTICE, "bruce has ended: %s.", balance)


def _remove_empty_slab(slab: Slab, config: Config) -> None:
    """Remove a slab without held messages, its spill files and its journal; keep it if the journal stays."""
    SpillDirectory.for_slab(slab, config.spill_path).remove(slab)
    # The journal goes before the slab: the next start restores the messages of a journal whose slab is missing, also
    # those that were delivered after the last recording.
    if JournalSetup.remove(Path(config.journal_path), slab.path) and slab.is_at_path:
        try:
            slab.path.unlink()
        except OSError as error:
            remedy = creation_remedy(error, slab.path.parent)
            log.error("The empty slab %s cannot be removed: %s. %s.", slab.path, error.strerror, remedy)


def _abandon_sockets(resources: Resources) -> None:
    """Remove the files of sockets that close with this process, and report that waiting datagrams are lost."""
    resources.input_sockets.remove_files()
    resources.http.remove_file()
    datagrams = resources.input_sockets.datagrams
    if datagrams is not None and datagrams.is_ours and datagrams.poll(select.POLLIN):
        _report_error(resources, "Datagrams wait in the socket for the new code, and are lost with the socket.")


def _report_error(resources: Resources, text: str) -> None:
    """Write an error to the log, and to standard error if the log does not go there."""
    log.error("%s", text, extra={"about": text})
    if not is_on_stderr(resources.config.logging):
        sys.stderr.write(f"bruce: {text}\n")
