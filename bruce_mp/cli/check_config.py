"""`bruce check-config`: validate a configuration file and print a summary of its settings.

With `--connect` it also asks the brokers, and looks at this host.

Exit status: 0 for a valid configuration, 1 for an invalid one, or if a check of `--connect` failed.
"""

from __future__ import annotations

import errno
import os
from argparse import ArgumentParser
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from bruce_mp.cli.overrides import add_overrides
from bruce_mp.config.accounts import check_accounts
from bruce_mp.config.addresses import HostPort, UnixPath
from bruce_mp.config.load import load_config
from bruce_mp.config.risky_settings import risk_warnings
from bruce_mp.config.sizes import MIB, format_size
from bruce_mp.errors import ExitCode, creation_remedy
from bruce_mp.network.credentials import exposed_files, unreadable_files
from bruce_mp.slab.file import Geometry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bruce_mp.config.model import Config
    from bruce_mp.config.sections import Kafka

__all__ = ["directory_warnings", "main"]


def main(argv: Sequence[str]) -> int:
    """Validate the file and print a summary."""
    parser = ArgumentParser(prog="bruce check-config", description="Check a configuration file.")
    parser.add_argument("file", type=Path, metavar="FILE", help="the configuration")
    parser.add_argument("--connect", action="store_true", help="also ask the brokers, and check this host's limits")
    add_overrides(parser)
    args = parser.parse_args(argv)
    config = load_config(args.file, args.overrides)
    check_accounts(config.input)
    print(f"{args.file}: OK")
    for name, value in _summary(config).items():
        print(f"  {name:14}{value}")
    files = (*unreadable_files(config), *exposed_files(config))
    for warning in (*risk_warnings(config), *files, *directory_warnings(config)):
        print(f"Note: {warning}")
    return _connect(config) if args.connect else ExitCode.OK


def _connect(config: Config) -> ExitCode:
    """Print a line for each check, as it ends."""
    # Imported here, because a check without --connect needs neither TLS nor the network.
    from bruce_mp.cli.connection_check import CheckLevel, broker_findings  # noqa: PLC0415
    from bruce_mp.cli.host_check import host_findings  # noqa: PLC0415

    status = ExitCode.OK
    for finding in chain(broker_findings(config), host_findings(config)):
        print(f"{finding.level:9}{finding.subject}: {finding.text}", flush=True)
        if finding.level is CheckLevel.FAILED:
            status = ExitCode.SETUP
    print("Not checked: clocks, because brokers do not tell their time.")
    return status


def directory_warnings(config: Config) -> Iterator[str]:
    """Yield a sentence for each directory in which the present user cannot create the daemon's files."""
    settings: dict[Path, list[str]] = {}
    for setting, directory in _directories(config):
        settings.setdefault(directory, []).append(setting)
    for directory, names in settings.items():
        try:
            _check_writable(directory)
        except OSError as error:
            reason = f"{', '.join(names)}: the present user cannot create files in {directory}: {error.strerror}."
            yield f"{reason} {creation_remedy(error, directory)}."


def _check_writable(directory: Path) -> None:
    directory.stat()
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _directories(config: Config) -> Iterator[tuple[str, Path]]:
    """Yield each setting with a path that the daemon creates, and the directory that has to exist before."""
    run_dir = Path(config.daemon.run_dir)
    yield "daemon.run_dir", run_dir if os.access(run_dir, os.F_OK) else run_dir.parent
    yield "slab.path", Path(config.slab_path).parent
    for name, each in (("unix_datagram", config.input.unix_datagram), ("unix_stream", config.input.unix_stream)):
        if each.enable:
            yield f"input.{name}.path", Path(each.path).parent
    if isinstance(config.http.address, UnixPath):
        yield "http.listen", Path(config.http.address.path).parent
    if config.logging.file.enable:
        yield "logging.file.path", Path(config.logging.file.path).parent
    if config.discard_log.enable:
        yield "discard_log.path", _nearest_directory(Path(config.discard_log.path).parent)


def _nearest_directory(path: Path) -> Path:
    """Return `path` or the nearest directory above it that exists, in which the daemon creates the others."""
    return next(each for each in (path, *path.parents) if os.access(each, os.F_OK))


def _summary(config: Config) -> dict[str, str]:
    return {
        "brokers": ", ".join(config.kafka.bootstrap_servers) + _security(config.kafka),
        **_inputs(config),
        "slab": f"{config.slab_path}, {format_size(config.slab.size)} for messages, {_file_mib(config)} MiB in all",
        "run directory": config.daemon.run_dir,
        "status pages": config.http.listen,
    }


def _security(kafka: Kafka) -> str:
    protections = ("TLS" if kafka.tls.enable else None, kafka.sasl.mechanism)
    joined = " and ".join(filter(None, protections))
    return f" by {joined}" if joined else ""


def _file_mib(config: Config) -> int:
    """Return the size of the slab file in MiB, including tables and landing zone."""
    return -(-Geometry.for_size(config.slab.size, config.input.max_datagram_size).file_size // MIB)


def _inputs(config: Config) -> dict[str, str]:
    """Describe the enabled inputs."""
    lines = {}
    settings = config.input
    if settings.unix_datagram.enable:
        lines["datagrams"] = f"{settings.unix_datagram.path}, up to {format_size(settings.max_datagram_size)} each"
    addresses = [settings.unix_stream.path] if settings.unix_stream.enable else []
    addresses += [str(HostPort(settings.tcp.host, settings.tcp.port))] if settings.tcp.enable else []
    if addresses:
        limit = format_size(settings.max_stream_size)
        lines["streams"] = f"{', '.join(addresses)}, up to {limit} each, workers: {settings.streams.processes}"
    return lines
