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
    from bruce_mp.cli.importing.command_line import Options
    from bruce_mp.cli.importing.old_xml import Element
    from bruce_mp.cli.importing.settings import Setting

__all__ = ["convert"]

BROKER_PORTS: Final = {"doryConfig": 9002, "bruceConfig": 9092}
"""The port that the old daemons used for a broker without one, by the root element of their files."""
PATHS_AND_PORTS: Final = {
    "input.unix_datagram": "path",
    "input.unix_stream": "path",
    "input.tcp": "port",
    "discard_log": "path",
    "msg_debug": "path",
    "logging.file": "path",
}
"""The sections that the old daemons disabled if a certain setting was missing, with the name of that setting."""


def convert(data: bytes, file: str, options: Options | None) -> str:
    """Convert the content `data` of an old file, and the options of the old command line if there was one, to TOML.

    Raise ConfigError with one line, including the place, for each value that cannot be converted.
    """
    root = parse_xml(data, file)
    if root.tag not in BROKER_PORTS:
        raise ConfigError(
            f"{file}:{root.line}: <{root.tag}> is neither <doryConfig> nor <bruceConfig>: give such a file."
        )
    draft = Draft()
    check_structure(root, file, draft)
    reader = AttributeReader(draft, file)
    read_sections(reader, root, BROKER_PORTS[root.tag])
    for setting in SETTINGS:
        _copy_setting(reader, root, setting)
    if options is not None:
        apply_options(options, draft)
    _disable_without_path_or_port(draft)
    # Files of Bruce, and those of Dory from before 2019, have no <inputSources>: they go with command-line options.
    set_old_defaults(draft, root, from_options=root.first("inputSources") is None)
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


def _disable_without_path_or_port(draft: Draft) -> None:
    """Disable each section that lacks its path or port, and remove the invalid path of a disabled section."""
    for section, name in PATHS_AND_PORTS.items():
        key = tuple(section.split("."))
        value, is_enabled = draft.get((*key, name)), draft.get((*key, "enable"))
        is_missing = value in {None, ""}
        if is_missing and is_enabled:
            draft.set((*key, "enable"), False)
            draft.add_note(f"It had no {name}, so the old daemon did not use it.", (*key, "enable"))
        # The old daemons did not check the path of a disabled section; here a relative one would be an error.
        if is_missing or (name == "path" and not is_enabled and not value.startswith("/")):
            draft.remove((*key, name))
