"""Defaults of the old daemons that differ from ours: for each, the draft gets the old default or a note."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.cli.importing.draft import OLD_CONFIGURATION
from bruce_mp.config.inputs import Input
from bruce_mp.config.sections import DiscardLog, MsgDebug, SlabSection
from bruce_mp.config.sizes import format_size, parse_size

if TYPE_CHECKING:
    from bruce_mp.cli.importing.draft import Draft
    from bruce_mp.cli.importing.old_xml import Element

__all__ = ["set_old_defaults"]

CLIENT_IDS: Final = {"doryConfig": "dory", "bruceConfig": "bruce"}
DEFAULT_STATUS_PORT: Final = 9090
INPUT_NAMES: Final = ("unix_datagram", "unix_stream", "tcp")

ALL_ADDRESSES_NOTE: Final = (
    "The old daemon served its pages on all addresses, and so does this daemon. They need no password: use 127.0.0.1 "
    "unless a monitor on another host needs them. A monitor that names this host otherwise than `uname -n` needs that "
    "name in http.allowed_hosts."
)
ATTEMPTS_NOTE: Final = (
    "The old daemon discarded a message after 5 error responses by default. Ours keeps retrying while the cluster "
    "is the cause; max_failed_attempts = 5 restores the old limit."
)
PAUSES_NOTE: Final = (
    "The old daemon paused everything for at least 5 s after an error. Ours pauses only the partitions concerned, and "
    "for less time. The old defaults of [delivery] were min_pause_delay_ms = 5000, pause_rate_limit_initial_ms = 5000 "
    "and pause_rate_limit_max_double = 4."
)
MSG_DEBUG_NOTE: Final = (
    "Even without --debug_dir, the old daemon copied messages to the directory debug in the home directory of bruce or "
    "dory as soon as /msg_debug chose topics. Set msg_debug.enable and msg_debug.path to allow it here."
)
TIMESTAMPS_NOTE: Final = (
    "The old daemon sent no timestamps to Kafka, so its clients' timestamps had no effect. As then, every message gets "
    'the time of its arrival. With "clamp", a client\'s timestamp counts if it is near the arrival.'
)
LOGGING_NOTE: Final = "The defaults of the old daemon, which logged only to syslog if there was no <logging>."
LOGGING_FLAGS_NOTE: Final = "The old daemon always logged to syslog, and with --log_echo to standard error as well."


class OldDefault(NamedTuple):
    """The old default of the setting `key`; None means that the old default equals ours.

    `in_file` is the default of a Dory that takes all options from its file, `with_options` that of a daemon with
    command-line options. `ours` is our default as a text for notes.
    """

    key: tuple[str, str]
    in_file: object
    with_options: object
    ours: str


OLD_DEFAULTS: Final = (
    OldDefault(("slab", "size"), None, "256m", format_size(SlabSection().size)),
    OldDefault(("discard_log", "max_file_size"), "1m", "1m", format_size(DiscardLog().max_file_size)),
    OldDefault(("discard_log", "max_archive_size"), "32m", "8m", format_size(DiscardLog().max_archive_size)),
    OldDefault(("discard_log", "max_msg_prefix_size"), None, 256, "the whole key and value"),
    OldDefault(("msg_debug", "byte_limit"), "2m", None, format_size(MsgDebug().byte_limit)),
)
_PAUSE_SETTINGS: Final = ("min_pause_delay_ms", "pause_rate_limit_initial_ms", "pause_rate_limit_max_double")


def set_old_defaults(draft: Draft, root: Element, *, is_option_based: bool) -> None:
    """Set each missing setting for which the old daemon's default differs from ours, and add notes.

    `is_option_based` is True if the old daemon took its settings from command-line options, False if from its file.
    """
    # The old daemons disabled an input without `enable`. Our daemon would enable the datagram input, so the draft
    # always gets the value for that input. Our daemon disables the other inputs by default, so the draft gets their
    # value only if it has a section for them.
    for name in INPUT_NAMES:
        key = ("input", name, "enable")
        if draft.get(key) is None and (name == "unix_datagram" or draft.get(key[:2]) is not None):
            draft.set(key, False)
    if not any(draft.get(("input", name, "enable")) for name in INPUT_NAMES):
        draft.add_error(OLD_CONFIGURATION, _no_input_text(is_option_based=is_option_based))
    if not draft.get(("kafka", "client_id")):
        draft.set(("kafka", "client_id"), CLIENT_IDS[root.tag])
    _set_status_pages(draft)
    draft.set(("timestamps", "policy"), "arrival")
    draft.add_note(TIMESTAMPS_NOTE, ("timestamps", "policy"))
    if draft.get(("delivery", "max_failed_attempts")) is None:
        draft.add_note(ATTEMPTS_NOTE)
    if any(draft.get(("delivery", name)) is None for name in _PAUSE_SETTINGS):
        draft.add_note(PAUSES_NOTE)
    if is_option_based and draft.get(("msg_debug", "enable")) is None:
        draft.add_note(MSG_DEBUG_NOTE)
    _set_sizes(draft, is_option_based=is_option_based)
    _raise_discard_file_size(draft)
    _set_logging(draft, is_option_based=is_option_based)


def _set_sizes(draft: Draft, *, is_option_based: bool) -> None:
    for default in OLD_DEFAULTS:
        value = default.with_options if is_option_based else default.in_file
        section = default.key[0]
        is_used = section == "slab" or draft.get((section, "enable"))
        if is_used and value is not None and draft.get(default.key) is None:
            draft.set(default.key, value)
            draft.add_note(f"The old daemon's default; ours is {default.ours}.", default.key)


def _raise_discard_file_size(draft: Draft) -> None:
    """Raise the size of the discard file to the smallest size that our daemon allows."""
    key, inputs = ("discard_log", "max_file_size"), Input()
    defaults = {"max_datagram_size": inputs.max_datagram_size, "max_stream_size": inputs.max_stream_size}
    minimum = 2 * max(parse_size(draft.get(("input", name)) or default) for name, default in defaults.items())
    if draft.get(("discard_log", "enable")) and parse_size(draft.get(key)) < minimum:
        note = f"Raised from {draft.get(key)}: a file has room for twice the largest message that the inputs accept."
        draft.set(key, format_size(minimum))
        draft.add_note(note, key)


def _no_input_text(*, is_option_based: bool) -> str:
    if is_option_based:
        return (
            "no input is enabled. The path of the socket was on the command line: give it with "
            '--command-line "--receive_socket_name PATH ...".'
        )
    return "no input is enabled: enable one in <inputSources>."


def _set_status_pages(draft: Draft) -> None:
    host = "127.0.0.1" if draft.loopback_only else "0.0.0.0"  # noqa: S104 # the old daemon's default
    port = DEFAULT_STATUS_PORT if draft.status_port is None else draft.status_port
    draft.set(("http", "listen"), f"{host}:{port}")
    if not draft.loopback_only:
        draft.add_note(ALL_ADDRESSES_NOTE, ("http", "listen"))


def _set_logging(draft: Draft, *, is_option_based: bool) -> None:
    for name, value in (("stdout_stderr", False), ("syslog", True)):
        if draft.get(("logging", name)) is None:
            draft.set(("logging", name), value)
            draft.add_note(LOGGING_FLAGS_NOTE if is_option_based else LOGGING_NOTE, ("logging",))
