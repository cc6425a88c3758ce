"""Warnings about valid settings that risk losses, expose the daemon, or have no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.config.addresses import HostPort, is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.config.model import Config

__all__ = ["risk_warnings"]


def risk_warnings(config: Config) -> list[str]:
    """Return the warnings, as texts for the log."""
    return list(_warnings(config))


def _warnings(config: Config) -> Iterator[str]:
    inputs, http = config.input, config.http
    if config.kafka.required_acks == 0:
        yield (
            "kafka.required_acks = 0: delivery is at most once. A message counts as delivered once it is written to "
            "the broker's connection; later losses go unnoticed."
        )
    optional_sections = (
        ("input.unix_stream", inputs.unix_stream),
        ("input.tcp", inputs.tcp),
        ("logging.file", config.logging.file),
    )
    for name, section in optional_sections:
        if not section.enable and section != type(section)():  # disabled, but not all settings are defaults
            yield f"{name}.enable = false: the other settings of [{name}] have no effect."
    for name, socket in (("unix_datagram", inputs.unix_datagram), ("unix_stream", inputs.unix_stream)):
        if socket.enable and socket.path.startswith(config.daemon.run_dir.rstrip("/") + "/"):
            yield (
                f'input.{name}.path = "{socket.path}" is in daemon.run_dir, which has mode 0700: only programs of the '
                "daemon's own user can send."
            )
    if inputs.tcp.enable and not is_loopback(inputs.tcp.host):
        yield f'input.tcp.host = "{inputs.tcp.host}": other hosts can connect and send without a login.'
    if isinstance(http.address, HostPort) and not is_loopback(http.address.host):
        and_changes = "" if http.token_file or http.token_env else " and request the changes that they offer"
        yield f'http.listen = "{http.listen}": other hosts can read the status pages{and_changes} without a login.'
    yield from _broker_security_warnings(config)


def _broker_security_warnings(config: Config) -> Iterator[str]:
    tls, sasl = config.kafka.tls, config.kafka.sasl
    if not tls.enable and (tls.ca_file or tls.certificate_file):
        yield "kafka.tls.enable = false: the connections are not encrypted, although certificates are configured."
    if not tls.enable and sasl.mechanism in {"PLAIN", "OAUTHBEARER"}:
        secret = "password" if sasl.mechanism == "PLAIN" else "token"
        yield (
            f'kafka.sasl.mechanism = "{sasl.mechanism}" without kafka.tls.enable: a listener on the network '
            f"to the brokers can read the {secret}."
        )
    if tls.enable and not tls.verify_host_name:
        yield (
            "kafka.tls.verify_host_name = false: any holder of a certificate from the authority can pose as a broker, "
            "and read all messages."
        )
