"""Check relations between settings: names that need a definition, and settings that must agree.

Each check is a generator of problems; `CHECKS` lists the checks. A check expects that each setting by itself has a
valid value.
"""

from __future__ import annotations

import re
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.config.addresses import HostPort, UnixPath, is_loopback
from bruce_mp.config.problems import Problem, dotted
from bruce_mp.config.sections import BatchLimits
from bruce_mp.config.sizes import format_size
from bruce_mp.config.topics import BUILT_IN_LIMITS, find_limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from bruce_mp.config.model import Config
    from bruce_mp.config.problems import Key
    from bruce_mp.config.sections import Batching, BatchingRule, Compression, DefaultBatching, RateLimit

__all__ = ["check"]

_LEVELS: Final = {"gzip": (0, 9), "lz4": (0, 16), "zstd": (1, 22)}
"""The lowest and the highest compression level of each codec that has levels."""
_ALL_ADDRESSES: Final = {"0.0.0.0", "::"}  # noqa: S104  # compared, not bound
_FIRST_RELEASE_WITH_LOGIN: Final = (0, 10)  # of Kafka's brokers
_EXTENSION_NAME: Final = re.compile("(?!auth$)[A-Za-z]+")  # RFC 7628, section 3.1


class _LoginSettings(NamedTuple):
    """The settings of a login mechanism: all of `required`, any of `optional`, one of `secrets` if there are any."""

    required: tuple[str, ...]
    secrets: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    def uses(self, name: str) -> bool:
        return any(name in names for names in self)


_PASSWORD_LOGIN: Final = _LoginSettings(("username",), ("password_file", "password_env"))
_LOGINS: Final = {
    "PLAIN": _PASSWORD_LOGIN,
    "SCRAM-SHA-256": _PASSWORD_LOGIN,
    "SCRAM-SHA-512": _PASSWORD_LOGIN,
    "OAUTHBEARER": _LoginSettings((), ("token_file", "token_command"), ("extensions",)),
    "GSSAPI": _LoginSettings(("kerberos_principal", "kerberos_keytab_file")),
}
_ALL_LOGIN_SETTINGS: Final = sorted({name for login in _LOGINS.values() for names in login for name in names})


def check(config: Config) -> Iterator[Problem]:
    """Yield the problems that all checks find."""
    for check_relation in CHECKS:
        yield from check_relation(config)


def _check_batch_limits(config: Config) -> Iterator[Problem]:
    for name, limits in config.batching.configs.items():
        if limits == BatchLimits():
            path = ("batching", "configs", name)
            yield Problem(path, f"{dotted(path)} has no limit: give at least one of time_ms, messages and bytes.")


def _check_batching_rules(config: Config) -> Iterator[Problem]:
    batching = config.batching
    if batching.combined.enable:
        yield from _undefined_limits(batching, ("batching", "combined", "config"), batching.combined.config)
    yield from _problems_of_rule(batching, ("batching", "default"), batching.default)
    for topic, rule in batching.topics.items():
        yield from _problems_of_rule(batching, ("batching", "topics", topic), rule)


def _problems_of_rule(batching: Batching, path: Key, rule: DefaultBatching | BatchingRule) -> Iterator[Problem]:
    """Yield a problem if a rule that needs limits does not name existing ones, or if another rule names limits."""
    path = (*path, "config")
    if rule.action == "per_topic":
        yield from _undefined_limits(batching, path, rule.config)
    elif rule.config is not None:
        remedy = f'the action "{rule.action}" takes no limits; remove it, or use the action "per_topic"'
        yield Problem.not_allowed(path, rule.config, remedy)


def _undefined_limits(batching: Batching, path: Key, name: str | None) -> Iterator[Problem]:
    if find_limits(batching, name) is None:
        yield from _undefined_name(path, name, batching.configs.keys() | BUILT_IN_LIMITS.keys(), "batching.configs")


def _undefined_name(path: Key, name: str | None, defined: Iterable[str], table: str) -> Iterator[Problem]:
    """Yield a problem unless `name`, the value of setting `path`, is one of the sections `defined` in `table`."""
    if name is not None and name in defined:
        return
    names = ", ".join(sorted(defined)) or "none yet"
    wanted = f"the name of a [{table}.NAME] section (defined: {names})"
    if name is None:
        yield Problem(path, f"{dotted(path)} is missing: give {wanted}.")
    else:
        yield Problem.not_allowed(path, name, f"give {wanted}")


def _check_named_configs(config: Config) -> Iterator[Problem]:
    yield from _undefined_configs("compression", config.compression)
    yield from _undefined_configs("rate_limit", config.rate_limit)


def _undefined_configs(section_name: str, section: Compression | RateLimit) -> Iterator[Problem]:
    defined, table = section.configs.keys(), f"{section_name}.configs"
    if section.default is not None:
        yield from _undefined_name((section_name, "default"), section.default, defined, table)
    for topic, config in section.topics.items():
        yield from _undefined_name((section_name, "topics", topic), config, defined, table)


def _check_compression_levels(config: Config) -> Iterator[Problem]:
    for name, codec in config.compression.configs.items():
        path = ("compression", "configs", name, "level")
        if codec.level is None:
            continue
        if codec.type not in _LEVELS:
            yield Problem.not_allowed(path, codec.level, f'"{codec.type}" has no levels; remove it')
            continue
        low, high = _LEVELS[codec.type]
        if not low <= codec.level <= high:
            yield Problem.not_allowed(path, codec.level, f"give an integer from {low} to {high} for {codec.type}")


def _check_tls(config: Config) -> Iterator[Problem]:
    tls = config.kafka.tls
    if tls.certificate_file is None:
        for name in ("key_file", "key_password_file", "key_password_env"):
            if (value := getattr(tls, name)) is not None:
                yield Problem.not_allowed(("kafka", "tls", name), value, "give kafka.tls.certificate_file as well")
    yield from _at_most_one_source(("kafka", "tls"), tls.key_password_file, tls.key_password_env, "key_password")


def _at_most_one_source(path: Key, file: str | None, variable: str | None, secret: str) -> Iterator[Problem]:
    """Yield a problem if both a file and an environment variable are given for a secret of the section `path`."""
    if file is not None and variable is not None:
        yield Problem.not_allowed(
            (*path, f"{secret}_env"), variable, f"{secret}_file is also given; remove one of them"
        )


def _check_sasl(config: Config) -> Iterator[Problem]:
    sasl, path = config.kafka.sasl, ("kafka", "sasl")
    if sasl.mechanism is None:
        return
    login = _LOGINS[sasl.mechanism]
    for name in _ALL_LOGIN_SETTINGS:
        value = getattr(sasl, name)
        if value and not login.uses(name):
            yield Problem.not_allowed((*path, name), value, f'"{sasl.mechanism}" does not use it; remove it')
        if value is None and name in login.required:
            yield Problem((*path, name), f"kafka.sasl.{name} is missing: {sasl.mechanism} needs it.")
    yield from _exactly_one(path, {name: getattr(sasl, name) for name in login.secrets})
    for name in sasl.extensions:
        if not _EXTENSION_NAME.fullmatch(name):
            problem = "is not the name of an extension: give letters only, and not auth"
            yield Problem((*path, "extensions", name), f"kafka.sasl.extensions.{name} {problem}.")
    if config.kafka.broker_version is not None:
        yield from _broker_without_login(config.kafka.broker_version)


def _exactly_one(path: Key, sources: Mapping[str, object]) -> Iterator[Problem]:
    """Yield a problem if none or several of the settings in `sources` have values. `sources` may be empty."""
    names = " or ".join(f"kafka.sasl.{name}" for name in sources)
    given = [name for name, value in sources.items() if value is not None]
    if sources and not given:
        yield Problem((*path, next(iter(sources))), f"The login has no credentials: give {names}.")
    elif len(given) > 1:
        yield Problem((*path, given[0]), f"Only one of {names} can be used: remove the other.")


def _broker_without_login(version: str) -> Iterator[Problem]:
    if tuple(map(int, version.split("."))) < _FIRST_RELEASE_WITH_LOGIN:
        yield Problem.not_allowed(
            ("kafka", "broker_version"), version, "this release has no login; remove kafka.sasl.mechanism"
        )


def _check_input_enabled(config: Config) -> Iterator[Problem]:
    inputs = (config.input.unix_datagram, config.input.unix_stream, config.input.tcp)
    if not any(section.enable for section in inputs):
        path = ("input", "unix_datagram", "enable")
        yield Problem(path, "No input is enabled: set input.unix_datagram.enable, or that of another input, to true.")


def _check_loopback(config: Config) -> Iterator[Problem]:
    tcp = config.input.tcp
    if tcp.enable and tcp.loopback_only and not is_loopback(tcp.host):
        remedy = "other hosts could reach this address; give 127.0.0.1, or set input.tcp.loopback_only to false"
        yield Problem.not_allowed(("input", "tcp", "host"), tcp.host, remedy)


def _check_distinct_sockets(config: Config) -> Iterator[Problem]:
    setting_by_path: dict[str, str] = {}
    for path, socket_path in _socket_paths(config):
        if socket_path in setting_by_path:
            yield Problem.not_allowed(
                path, socket_path, f"{setting_by_path[socket_path]} uses this path; give another path"
            )
        setting_by_path[socket_path] = dotted(path)


def _socket_paths(config: Config) -> Iterator[tuple[Key, str]]:
    """Yield the key and the value of each enabled setting for the path of a socket."""
    if config.input.unix_datagram.enable:
        yield ("input", "unix_datagram", "path"), config.input.unix_datagram.path
    if config.input.unix_stream.enable:
        yield ("input", "unix_stream", "path"), config.input.unix_stream.path
    if isinstance(config.http.address, UnixPath):
        yield ("http", "listen"), config.http.address.path


def _check_http(config: Config) -> Iterator[Problem]:
    http = config.http
    yield from _at_most_one_source(("http",), http.token_file, http.token_env, "token")
    if isinstance(http.address, HostPort):
        for name, value in (("mode", http.mode), ("user", http.user), ("group", http.group)):
            if value is not None:
                shown = f"{value:04o}" if isinstance(value, int) else value
                remedy = 'only a UNIX socket has one; remove it, or listen on "unix:/path"'
                yield Problem.not_allowed(("http", name), shown, remedy)


def _check_distinct_ports(config: Config) -> Iterator[Problem]:
    tcp, http = config.input.tcp, config.http.address
    if not tcp.enable or not tcp.port or not isinstance(http, HostPort):
        return
    hosts = {tcp.host, http.host}
    # A socket at one of _ALL_ADDRESSES also takes the port of each single address.
    is_same_host = len(hosts) == 1 or hosts == {"localhost", "127.0.0.1"} or not hosts.isdisjoint(_ALL_ADDRESSES)
    if is_same_host and tcp.port == http.port:
        yield Problem.not_allowed(("input", "tcp", "port"), tcp.port, "http.listen uses this port; give another port")


def _check_discard_log_size(config: Config) -> Iterator[Problem]:
    minimum = 2 * max(config.input.max_datagram_size, config.input.max_stream_size)
    size = config.discard_log.max_file_size
    if config.discard_log.enable and size < minimum:
        remedy = f"give at least {format_size(minimum)}, twice the largest message that the inputs accept"
        yield Problem.not_allowed(("discard_log", "max_file_size"), format_size(size), remedy)


def _check_log_mode(config: Config) -> Iterator[Problem]:
    file = config.logging.file
    if file.enable and file.mode is not None and not file.mode & stat.S_IWUSR:
        remedy = "the daemon's user could not write the file; give a mode such as 0640"
        yield Problem.not_allowed(("logging", "file", "mode"), f"{file.mode:04o}", remedy)


def _check_dead_letters(config: Config) -> Iterator[Problem]:
    inputs = config.input
    if config.discards.topic and not (inputs.unix_datagram.enable or inputs.unix_stream.enable):
        remedy = "dead letters need a UNIX socket; enable input.unix_datagram or input.unix_stream"
        yield Problem.not_allowed(("discards", "topic"), config.discards.topic, remedy)


CHECKS: Final = (
    _check_batch_limits,
    _check_batching_rules,
    _check_named_configs,
    _check_compression_levels,
    _check_tls,
    _check_sasl,
    _check_input_enabled,
    _check_loopback,
    _check_distinct_sockets,
    _check_distinct_ports,
    _check_http,
    _check_discard_log_size,
    _check_log_mode,
    _check_dead_letters,
)
