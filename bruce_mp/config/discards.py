"""The sections of discarded messages: file and topic; `config/sections.py` has the conventions."""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

from typing import Annotated

from bruce_mp.config import fields
from bruce_mp.config.fields import LIVE
from bruce_mp.config.section import Section
from bruce_mp.config.sizes import GIB, MIB

__all__ = ["DeadLetterSection", "DiscardLog"]


class DiscardLog(Section, frozen=True):
    """A file of all discarded messages; see `docs/delivery.md`."""

    enable: Annotated[bool, fields.switch("Write the file."), LIVE] = False
    path: Annotated[str, fields.path("The file; rotated files are in the same directory."), LIVE] = (
        "/var/log/bruce/discard.log"
    )
    max_file_size: Annotated[
        int, fields.size("Size at which the file is rotated; at least twice the largest message.", 0, 64 * GIB), LIVE
    ] = 64 * MIB
    max_archive_size: Annotated[
        int, fields.size("Total size of rotated files; the oldest are deleted.", 0, 64 * GIB), LIVE
    ] = 256 * MIB
    max_msg_prefix_size: (
        Annotated[int, fields.size("Bytes of each key and value to keep. Absent: all.", 0, GIB), LIVE] | None
    ) = None


class DeadLetterSection(Section, frozen=True):
    """A Kafka topic of all discarded messages; see `docs/delivery.md`."""

    topic: Annotated[
        str,
        fields.pattern("The topic. Empty: discarded messages go to no topic.", r"^[A-Za-z0-9._-]{0,249}$", "dead"),
        LIVE,
    ] = ""
