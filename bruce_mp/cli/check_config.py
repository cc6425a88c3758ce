"""`bruce check-config`: validate a configuration file and print a summary of its settings.

Exit status: 0 for a valid configuration, 1 for an invalid one.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

from bruce_mp.cli.configuration import add_overrides
from bruce_mp.config.accounts import check_accounts
from bruce_mp.config.addresses import HostPort
from bruce_mp.config.load import load_config
from bruce_mp.config.risky_settings import risk_warnings
from bruce_mp.config.sizes import MIB, format_size
from bruce_mp.errors import ExitCode
from bruce_mp.network.credentials import exposed_files, missing_files
from bruce_mp.slab.file import Geometry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.config.model import Config
    from bruce_mp.config.sections import Kafka

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Validate the file and print a summary."""
    parser = ArgumentParser(prog="bruce check-config", description="Check a configuration file.")
    parser.add_argument("file", type=Path, metavar="FILE", help="the configuration")
    add_overrides(parser)
    args = parser.parse_args(argv)
    config = load_config(args.file, args.overrides)
    check_accounts(config.input)
    print(f"{args.file}: OK")
    for name, value in _summary(config).items():
        print(f"  {name:14}{value}")
    for remark in (*risk_warnings(config), *missing_files(config), *exposed_files(config)):
        print(f"Note: {remark}")
    return ExitCode.OK


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
    found = {}
    settings = config.input
    if settings.unix_datagram.enable:
        found["datagrams"] = f"{settings.unix_datagram.path}, up to {format_size(settings.max_datagram_size)} each"
    places = [settings.unix_stream.path] if settings.unix_stream.enable else []
    places += [str(HostPort(settings.tcp.host, settings.tcp.port))] if settings.tcp.enable else []
    if places:
        limit = format_size(settings.max_stream_size)
        found["streams"] = f"{', '.join(places)}, up to {limit} each, workers: {settings.streams.processes}"
    return found
