"""`bruce check-config`: validate a configuration file and print a summary of its settings.

`--connect` also checks the brokers, and the free space and kernel limits of this host.

Exit status: 0 for a valid configuration, 1 for an invalid one, or if a check of `--connect` failed.
"""

from __future__ import annotations

import errno
import os
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.cli.options import add_overrides, command_parser
from bruce_mp.config.accounts import check_accounts
from bruce_mp.config.addresses import HostPort, UnixPath
from bruce_mp.config.load import load_config
from bruce_mp.config.risky_settings import risk_warnings
from bruce_mp.config.sizes import MIB, format_size
from bruce_mp.errors import ExitCode, creation_remedy
from bruce_mp.network.credentials import exposed_file_warnings, unreadable_file_warnings
from bruce_mp.slab.file import Geometry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bruce_mp.config.model import Config
    from bruce_mp.config.sections import Kafka

__all__ = ["directory_warnings", "main"]

_TITLE_WIDTH: Final = len("run directory ")
"""Width of the longest title in the summary, including a space."""
_LEVEL_WIDTH: Final = len("warning  ")
"""Width of the longest `CheckLevel`, including two spaces."""


def main(argv: Sequence[str]) -> int:
    parser = command_parser(
        "check-config", "Validate a configuration file and print a summary of its settings.", __doc__
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the configuration file")
    parser.add_argument(
        "--connect", action="store_true", help="also check the brokers, and this host's free space and kernel limits"
    )
    add_overrides(parser)
    args = parser.parse_args(argv)
    config = load_config(args.file, args.overrides)
    check_accounts(config.input)
    print(f"{args.file}: OK")
    for title, text in _summary(config).items():
        print(f"  {title:{_TITLE_WIDTH}}{text}")
    file_warnings = (*unreadable_file_warnings(config), *exposed_file_warnings(config))
    for warning in (*risk_warnings(config), *file_warnings, *directory_warnings(config)):
        print(f"Note: {warning}")
    return _check_brokers_and_host(config) if args.connect else ExitCode.OK


def _check_brokers_and_host(config: Config) -> ExitCode:
    """Check the brokers and this host, and print each finding as soon as it is known. Return the exit status."""
    # Imported here, because a check without --connect needs neither TLS nor the network.
    from bruce_mp.cli.connection_check import CheckLevel, broker_findings  # noqa: PLC0415
    from bruce_mp.cli.host_check import host_findings  # noqa: PLC0415

    status = ExitCode.OK
    for finding in chain(broker_findings(config), host_findings(config)):
        print(f"{finding.level:{_LEVEL_WIDTH}}{finding.subject}: {finding.text}", flush=True)
        if finding.level is CheckLevel.FAILED:
            status = ExitCode.SETUP
    print("Not checked: clocks, because brokers do not tell their time.")
    return status


def directory_warnings(config: Config) -> Iterator[str]:
    """Yield a sentence for each directory in which the current user cannot create the daemon's files."""
    settings_by_directory: dict[Path, list[str]] = {}
    for setting, directory in _required_directories(config):
        settings_by_directory.setdefault(directory, []).append(setting)
    for directory, settings in settings_by_directory.items():
        try:
            _check_writable(directory)
        except OSError as error:
            fault = f"{', '.join(settings)}: the current user cannot create files in {directory}: {error.strerror}."
            yield f"{fault} {creation_remedy(error, directory)}."


def _check_writable(directory: Path) -> None:
    """Raise OSError if the directory is missing, or the current user cannot create files in it."""
    directory.stat()
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _required_directories(config: Config) -> Iterator[tuple[str, Path]]:
    """Yield each setting that names a file or directory of the daemon, and the directory that must exist for it."""
    run_dir = Path(config.daemon.run_dir)
    yield "daemon.run_dir", _required_directory(run_dir, run_dir)
    yield "slab.path", _required_directory(Path(config.slab_path).parent, run_dir)
    for name, section in (("unix_datagram", config.input.unix_datagram), ("unix_stream", config.input.unix_stream)):
        if section.enable:
            yield f"input.{name}.path", _required_directory(Path(section.path).parent, run_dir)
    if isinstance(config.http.address, UnixPath):
        yield "http.listen", _required_directory(Path(config.http.address.path).parent, run_dir)
    if config.logging.file.enable:
        yield "logging.file.path", Path(config.logging.file.path).parent
    if config.discard_log.enable:
        # The daemon creates missing parent directories of this file, so it needs only the nearest existing parent.
        parents = Path(config.discard_log.path).parents
        yield "discard_log.path", next(parent for parent in parents if os.access(parent, os.F_OK))


def _required_directory(directory: Path, run_dir: Path) -> Path:
    """Return `directory`; but if it is the run directory and is missing, its parent, as the daemon creates it there."""
    return run_dir.parent if directory == run_dir and not os.access(run_dir, os.F_OK) else directory


def _summary(config: Config) -> dict[str, str]:
    geometry = Geometry.for_size(config.slab.size, config.input.max_datagram_size)
    file_mib = -(-geometry.file_size // MIB)  # rounded up
    return {
        "brokers": ", ".join(config.kafka.bootstrap_servers) + _describe_security(config.kafka),
        **_input_lines(config),
        "slab": f"{config.slab_path}, {format_size(config.slab.size)} for messages, {file_mib} MiB in all",
        "run directory": config.daemon.run_dir,
        "status pages": config.http.listen,
    }


def _describe_security(kafka: Kafka) -> str:
    """Return a suffix for the line "brokers", such as ", with TLS and PLAIN", or "" without TLS and login."""
    protections = " and ".join(filter(None, ("TLS" if kafka.tls.enable else None, kafka.sasl.mechanism)))
    return f", with {protections}" if protections else ""


def _input_lines(config: Config) -> dict[str, str]:
    lines = {}
    inputs = config.input
    if inputs.unix_datagram.enable:
        lines["datagrams"] = f"{inputs.unix_datagram.path}, up to {format_size(inputs.max_datagram_size)} each"
    addresses = [inputs.unix_stream.path] if inputs.unix_stream.enable else []
    addresses += [str(HostPort(inputs.tcp.host, inputs.tcp.port))] if inputs.tcp.enable else []
    if addresses:
        limit = format_size(inputs.max_stream_size)
        lines["streams"] = f"{', '.join(addresses)}, messages up to {limit}, workers: {inputs.streams.worker_count}"
    return lines
