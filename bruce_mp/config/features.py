"""Settings that deserve a word before the daemon starts: those it does not act on yet, and those with a catch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bruce_mp.config.model import Config

__all__ = ["remarks", "unused_settings"]


def unused_settings(config: Config) -> list[str]:
    """Features that are switched on but not in this version, as `key = value`; to start would be to ignore them."""
    switches = {
        "input.unix_stream.enable": config.input.unix_stream.enable,
        "input.tcp.enable": config.input.tcp.enable,
    }
    return [f"{key} = true" for key, switched_on in switches.items() if switched_on]


def remarks(config: Config) -> list[str]:
    """Warnings for the log: what is allowed, but may not be what was meant."""
    found = []
    if config.kafka.required_acks == 0:
        found.append(
            "kafka.required_acks = 0: delivery is at most once. A message counts as delivered once it is written to "
            "the broker's connection; what is lost after that is not noticed."
        )
    if config.input.unix_datagram.path.startswith(config.daemon.run_dir.rstrip("/") + "/"):
        found.append(
            f'input.unix_datagram.path = "{config.input.unix_datagram.path}" is in daemon.run_dir, which has mode '
            "0700: only programs of the daemon's own user can send."
        )
    return found
