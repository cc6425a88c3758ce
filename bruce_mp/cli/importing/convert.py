"""Conversion of an old configuration file together with its command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.cli.importing.command_line import apply_options
from bruce_mp.cli.importing.draft import Draft
from bruce_mp.cli.importing.old_defaults import set_old_defaults
from bruce_mp.cli.importing.old_xml import parse_xml
from bruce_mp.cli.importing.sections import AttributeReader, read_sections
from bruce_mp.cli.importing.settings import SETTINGS
from bruce_mp.cli.importing.structure import check_structure
from bruce_mp.errors import ConfigError

if TYPE_CHECKING:
    from bruce_mp.cli.importing.command_line import CommandLineOptions
    from bruce_mp.cli.importing.old_xml import Element
    from bruce_mp.cli.importing.settings import Setting

__all__ = ["convert"]

DEFAULT_BROKER_PORTS: Final = {"doryConfig": 9002, "bruceConfig": 9092}
"""The port that an old daemon used for a broker without a port, by the root element of the daemon's file."""
REQUIRED_SETTINGS: Final = {
    "input.unix_datagram": "path",
    "input.unix_stream": "path",
    "input.tcp": "port",
    "discard_log": "path",
    "msg_debug": "path",
    "logging.file": "path",
}
"""For some sections, the setting that the section needs: without it, the old daemons disabled the section."""


def convert(data: bytes, file: str, options: CommandLineOptions | None) -> str:
    """Convert an old configuration to TOML; `data` is its XML, `options` has the options of its command line, if any.

    `file` is the file's name for errors. Raise ConfigError; its text has a line for each invalid value.
    """
    root = parse_xml(data, file)
    if root.tag not in DEFAULT_BROKER_PORTS:
        raise ConfigError(
            f"{file}:{root.line}: the root element is <{root.tag}>: give a configuration file of Dory (<doryConfig>) "
            "or of Bruce (<bruceConfig>)."
        )
    draft = Draft()
    check_structure(root, file, draft)
    reader = AttributeReader(draft, file)
    read_sections(reader, root, DEFAULT_BROKER_PORTS[root.tag])
    for setting in SETTINGS:
        _copy_setting(reader, root, setting)
    if options is not None:
        apply_options(options, draft)
    _disable_incomplete_sections(draft)
    # Bruce, and Dory before 2019, took settings from command-line options; their files have no <inputSources>.
    set_old_defaults(draft, root, is_option_based=root.first("inputSources") is None)
    return draft.render(f"Made by `bruce import-config` from {file}; docs/configuration.md explains the settings.")


def _copy_setting(reader: AttributeReader, root: Element, setting: Setting) -> None:
    """Copy a setting of the table from the file to the draft, if the file has it."""
    path, _, attribute = setting.xml_path.partition("@")
    element = root.first(path) if path else None
    if element is None or attribute not in element.attributes:
        return
    key = tuple(setting.key.split("."))
    reader.copy(key, element, attribute, setting.parse_xml)
    if setting.note and reader.draft.get(key) is not None:
        reader.draft.add_note(setting.note, key)


def _disable_incomplete_sections(draft: Draft) -> None:
    """Disable each section that lacks its path or port, and remove the invalid path of a disabled section."""
    for section, name in REQUIRED_SETTINGS.items():
        key = tuple(section.split("."))
        value, is_enabled = draft.get((*key, name)), draft.get((*key, "enable"))
        is_missing = value in {None, ""}
        if is_missing and is_enabled:
            draft.set((*key, "enable"), False)
            draft.add_note(f"It had no {name}, so the old daemon did not use it.", (*key, "enable"))
        # The old daemons did not check the path of a disabled section; here a relative path would be an error.
        if is_missing or (name == "path" and not is_enabled and not value.startswith("/")):
            draft.remove((*key, name))
