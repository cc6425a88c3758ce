"""Table of subcommands, and the entry point of `bruce`."""

from __future__ import annotations

import importlib
import os
import select
import signal
import sys
from contextlib import contextmanager, nullcontext
from signal import SIGINT, SIGPIPE, Signals
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from bruce_mp.errors import BruceError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TextIO

__all__ = ["BLOCKED_AT_START", "COMMANDS", "EXIT_SIGPIPE", "main", "run_with_sigpipe", "signals_blocked"]


class Command(NamedTuple):
    """A subcommand: the name of its module, and its line in the help."""

    module: str
    summary: str


COMMANDS: Final = {
    "run": Command("bruce_mp.cli.run", "run the daemon"),
    "hold": Command("bruce_mp.cli.hold", "keep the listening sockets open while the daemon restarts"),
    "reload": Command("bruce_mp.cli.reload", "reload the configuration of a running daemon"),
    "accept-cluster": Command("bruce_mp.cli.accept_cluster", "send the held messages to another Kafka cluster"),
    "check-config": Command("bruce_mp.cli.check_config", "check a configuration file"),
    "import-config": Command("bruce_mp.cli.import_config", "convert a configuration of Dory or Bruce"),
    "send": Command("bruce_mp.cli.send", "send messages to a daemon"),
    "upgrade": Command("bruce_mp.cli.upgrade", "upgrade a running daemon to the installed code"),
    "status": Command("bruce_mp.cli.status", "show the state of a daemon"),
    "top": Command("bruce_mp.cli.top.command", "show a daemon live in the terminal"),
    "check": Command("bruce_mp.cli.check", "check that a daemon accounts for every message"),
    "monitor": Command("bruce_mp.cli.monitor", "check a daemon for Nagios: exit status 0, 1, 2 or 3"),
    "replay": Command("bruce_mp.cli.replay", "send discarded or exported messages again"),
    "token": Command("bruce_mp.cli.token", "get a token for a login at the brokers"),
    "slab": Command("bruce_mp.cli.slab", "inspect a slab file, and export its messages"),
    "dev-broker": Command("bruce_mp.devbroker.process", "run an embedded Kafka broker for demos and tests"),
}


_STDERR: Final = 2


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else list(argv)
    _open_standard_descriptors()
    return run_with_sigpipe(lambda: _run(arguments))


def _open_standard_descriptors() -> None:
    """Open /dev/null as each closed standard descriptor.

    Otherwise the slab could become the standard error, and the Python of an upgrade's new code could write to it. A
    closed output is None in `sys`, and would fail with each text.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for descriptor, name in enumerate(("stdout", "stderr"), 1):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace"))


def _run(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] not in COMMANDS:
        summaries = {name: command.summary for name, command in COMMANDS.items()}
        # Imported here, because the processes of the daemon, which import this module, do not need argparse.
        importlib.import_module("bruce_mp.cli.usage").exit_without_command(summaries, arguments)
    with signals_blocked() if _is_service(arguments) else nullcontext():
        return _run_command(arguments)


def _is_service(arguments: Sequence[str]) -> bool:
    """Return True for a command that a service manager starts and sends signals to.

    `bruce run --check` is not such a command: it ends after the check.
    """
    return arguments[0] in {"run", "hold"} and "--check" not in arguments


def _run_command(arguments: Sequence[str]) -> int:
    try:
        command = importlib.import_module(COMMANDS[arguments[0]].module)
        return cast("Callable[[Sequence[str]], int]", command.main)(arguments[1:])
    except BruceError as error:
        sys.stderr.write(f"bruce: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + SIGINT  # the exit status that a shell reports for SIGINT


# --- signals before the daemon handles them --------------------------------------------------------------------------

BLOCKED_AT_START: Final = (Signals.SIGHUP, Signals.SIGUSR1, Signals.SIGUSR2)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block the signals of `BLOCKED_AT_START` inside a `with` statement, and restore the mask at its end.

    A service manager or a log rotation may send these signals right after a start, and their default action would end
    the process. So the caller blocks them before it imports the supervisor, and the supervisor's `SignalPipe` receives
    them later.
    SIGTERM and SIGINT are not blocked: they end a daemon at once while it starts or waits for a lock.

    Signals that still wait at the end are discarded, because the daemon has ended or did not start.
    """
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_AT_START)
    try:
        yield
    finally:
        while signal.sigtimedwait(BLOCKED_AT_START, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


# --- a closed or full standard output ---------------------------------------------------------------------------------

EXIT_SIGPIPE: Final = 128 + SIGPIPE
"""The exit status that a shell reports for SIGPIPE."""


class UnwritableOutputError(Exception):
    """Standard output cannot be written, for example because the disk is full."""


def run_with_sigpipe(command: Callable[[], int]) -> int:
    """Run a command, flush its output, and return its exit status.

    If the reader of the output has exited, as in `bruce status | head -1`, the command ends without a message, and the
    exit status is EXIT_SIGPIPE. SIGPIPE stays ignored, the interpreter's default, because a broken connection must end
    neither a daemon nor a reconnecting sender. A BrokenPipeError of a connection propagates.

    If the output cannot be written for another reason, such as a full disk, the command ends with one sentence on
    standard error. The exit status is the command's, but 1 instead of 0.
    """
    status = 0
    try:
        try:
            status = command()
        except BrokenPipeError:
            raise
        except OSError:
            _flush_output("\n")  # fails if the cause is the output, also if no text is left in the buffer
            raise
        finally:
            _flush_output()
    except UnwritableOutputError as error:
        sys.stderr.write(f"bruce: standard output cannot be written: {error}.\n")
        _redirect_to_null([sys.stdout])
        return status or ExitCode.SETUP
    except BrokenPipeError:
        readerless = [stream for stream in (sys.stdout, sys.stderr) if stream is not None and _has_no_reader(stream)]
        if not readerless:
            raise  # the error comes from a connection
        _redirect_to_null(readerless)
        return EXIT_SIGPIPE
    return status


def _flush_output(text: str = "") -> None:
    """Write the text and flush standard output.

    Raise BrokenPipeError if the output has no reader, UnwritableOutputError if it cannot be written for another reason.
    """
    try:
        if sys.stdout is not None:  # None if the descriptor is closed
            sys.stdout.write(text)
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UnwritableOutputError(error.strerror) from error


def _has_no_reader(stream: TextIO) -> bool:
    poll = select.poll()
    poll.register(stream.fileno(), 0)  # poll reports errors and hang-ups without a request for them
    return any(state & (select.POLLERR | select.POLLHUP) for _, state in poll.poll(0))


def _redirect_to_null(streams: list[TextIO]) -> None:
    """Redirect the streams to /dev/null, because the interpreter flushes them at exit and would fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(null, stream.fileno())
    os.close(null)
