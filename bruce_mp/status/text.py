"""Bytes and times as the pages show them.

A topic is whatever bytes a client sent.  Pages show it as text that is always valid and always reversible: a byte that
is not UTF-8 and a control character become `\\xNN`, a backslash becomes two.  Legal topic names stay as they are.
"""

from __future__ import annotations

import re
import time
from base64 import b64encode
from typing import Final

__all__ = ["base64_text", "bracketed", "stamp", "topic_bytes", "topic_text"]

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-f]{2})|\\)")


def topic_text(topic: bytes) -> str:
    """A topic as text; two topics never have the same."""
    text = topic.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def topic_bytes(text: str) -> bytes:
    """The reverse of `topic_text`."""
    return _ESCAPE.sub(
        lambda match: bytes.fromhex(match[1].decode()) if match[1] else b"\\", text.encode("utf-8", "surrogateescape")
    )


def base64_text(data: bytes) -> str:
    """Bytes in base64."""
    return b64encode(data).decode("ascii")


def bracketed(text: str) -> str:
    """`LEN[text]`, so that a program finds the end of a text that holds a bracket."""
    return f"{len(text)}[{text}]"


def stamp(seconds: int) -> str:
    """Seconds since the epoch, with the local time for people."""
    return f"{seconds} {time.ctime(seconds)}"
