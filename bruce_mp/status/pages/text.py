"""Text form of bytes and times on the pages.

Clients may send any bytes as a topic. Pages show topics as valid text that can be converted back to the bytes: each
byte of an unprintable character, or one that is not UTF-8, becomes `\\xNN`, and a backslash is doubled. The text of a
legal topic name is the name itself.
"""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Final

from bruce_mp.telemetry.clock import utc_text
from bruce_mp.telemetry.logs import printable

__all__ = ["base64_text", "bracketed", "stamp", "topic_bytes", "topic_text"]

_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-f]{2})|\\)")


def topic_text(topic: bytes) -> str:
    """Convert a topic to text. Different topics have different texts."""
    return printable(topic.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace"))


def topic_bytes(text: str) -> bytes:
    """Convert a text from `topic_text` back to the topic."""
    return _ESCAPE.sub(
        lambda match: bytes.fromhex(match[1].decode()) if match[1] else b"\\", text.encode("utf-8", "surrogateescape")
    )


def base64_text(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def bracketed(text: str) -> str:
    """Return `LEN[text]`; the length lets a program find the end of a text that contains a bracket."""
    return f"{len(text)}[{text}]"


def stamp(seconds: int) -> str:
    """Return a time as its seconds since the epoch, followed by its date and time of day in UTC."""
    return f"{seconds} {utc_text(seconds)}"
