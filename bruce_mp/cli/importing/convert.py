"""Conversion of an old configuration file together with its command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.cli.importing.draft import Draft
from bruce_mp.cli.importing.flags import apply_options
from bruce_mp.cli.importing.old_xml import parse_xml
from bruce_mp.cli.importing.sections import Reader, read_sections
from bruce_mp.cli.importing.settings import SETTINGS
from bruce_mp.cli.importing.structure import check_structure
from bruce_mp.errors import ConfigError

if TYPE_CHECKING:
    from bruce_mp.cli.importing.flags import Options
    from bruce_mp.cli.importing.old_xml import Element
    from bruce_mp.cli.importing.settings import Setting

__all__ = ["convert"]

BROKER_PORTS: Final = {"doryConfig": 9002, "bruceConfig": 9092}
CLIENT_IDS: Final = {"doryConfig": "dory", "bruceConfig": "bruce"}
STATUS_PORT: Final = 9090
INPUTS: Final = ("unix_datagram", "unix_stream", "tcp")

ALL_ADDRESSES: Final = (
    "The old daemon served its pages on all addresses, as this does. They need no password: use 127.0.0.1 unless a "
    "monitor on another host needs them."
)
ATTEMPTS: Final = (
    "The old daemon discarded a message after 5 error responses by default. Ours keeps retrying while the cluster "
    "is the cause; max_failed_attempts = 5 restores the old limit."
)
PAUSES: Final = (
    "The old daemon paused everything for at least 5 s after an error. Ours pauses only the partitions concerned, and "
    "for less time: min_pause_delay_ms and pause_rate_limit_initial_ms."
)
TIMESTAMPS: Final = (
    "The old daemon sent no timestamps to Kafka, so its clients' timestamps had no effect. Every message gets the "
    'time of its arrival, as then. With "clamp" the clients\' timestamps count, where they are near the arrival.'
)
LOGGING: Final = "As the old daemon did without <logging>: to syslog only."
LOGGING_FLAGS: Final = "As the old daemon did: to syslog always, and to standard error with --log_echo."


def convert(data: bytes, file: str, options: Options | None) -> str:
    """Convert an old file, and the old command line if there was one, to TOML.

    Raise ConfigError with one line, including the place, for each value that cannot be converted.
    """
    root = parse_xml(data, file)
    if root.tag not in BROKER_PORTS:
        raise ConfigError(
            f"{file}:{root.line}: <{root.tag}> is neither <doryConfig> nor <bruceConfig>: give such a file."
        )
    draft = Draft()
    check_structure(root, file, draft)
    reader = Reader(draft, file)
    read_sections(reader, root, BROKER_PORTS[root.tag])
    for setting in SETTINGS:
        _copy_setting(reader, root, setting.place, setting)
    if options is not None:
        apply_options(options, draft)
    _set_old_defaults(draft, root, from_options=options is not None or root.tag == "bruceConfig")
    return draft.render(f"Made by `bruce import-config` from {file}; docs/configuration.md explains the settings.")


def _copy_setting(reader: Reader, root: Element, place: str, setting: Setting) -> None:
    path, _, attribute = place.partition("@")
    element = root.first(path) if path else None
    if element is None or attribute not in element.attributes:
        return
    key = tuple(setting.key.split("."))
    reader.set(key, element, attribute, setting.read)
    if setting.note and reader.draft.get(key) is not None:
        reader.draft.add_note(setting.note, key)


def _set_old_defaults(draft: Draft, root: Element, *, from_options: bool) -> None:
    """Set values explicitly where the old daemon's default differs from ours."""
    origin = "the old configuration"
    for name in INPUTS:
        key = ("input", name, "enable")
        if draft.get(key) is None and (name == "unix_datagram" or draft.get(key[:2]) is not None):
            draft.set(key, False, origin)
    if not any(draft.get(("input", name, "enable")) for name in INPUTS):
        draft.add_error(origin, _no_input(from_options))
    if not draft.get(("kafka", "client_id")):
        draft.set(("kafka", "client_id"), CLIENT_IDS[root.tag], origin)
    _status_pages(draft, origin)
    draft.set(("timestamps", "policy"), "arrival", origin)
    draft.add_note(TIMESTAMPS, ("timestamps", "policy"))
    if draft.get(("delivery", "max_failed_attempts")) is None:
        draft.add_note(ATTEMPTS)
    if draft.get(("delivery", "min_pause_delay_ms")) is None:
        draft.add_note(PAUSES)
    _logging(draft, origin, from_options=from_options)


def _no_input(from_options: bool) -> str:
    if from_options:
        return (
            "no input is enabled. The path of the socket was on the command line: give it with "
            '--command-line "--receive_socket_name PATH ...".'
        )
    return "no input is enabled: enable one in <inputSources>."


def _status_pages(draft: Draft, origin: str) -> None:
    host = "127.0.0.1" if draft.loopback_only else "0.0.0.0"  # noqa: S104 # the old daemon's default
    draft.set(("http", "listen"), f"{host}:{draft.status_port or STATUS_PORT}", origin)
    if not draft.loopback_only:
        draft.add_note(ALL_ADDRESSES, ("http", "listen"))


def _logging(draft: Draft, origin: str, *, from_options: bool) -> None:
    for name, value in (("stdout_stderr", False), ("syslog", True)):
        if draft.get(("logging", name)) is None:
            draft.set(("logging", name), value, origin)
            draft.add_note(LOGGING_FLAGS if from_options else LOGGING, ("logging",))
