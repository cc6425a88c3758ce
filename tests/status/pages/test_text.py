"""Bytes as text."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.status.pages.text import bracketed, topic_text


def topic_bytes(text: str) -> bytes:
    """The inverse, as docs/status.md defines it."""
    return re.sub(
        rb"\\(?:x([0-9a-f]{2})|\\)",
        lambda match: bytes.fromhex(match[1].decode()) if match[1] else b"\\",
        text.encode(),
    )


def test_the_documented_inverse_of_topic_text_works() -> None:
    shown = inspect.getsource(topic_bytes).replace('    """The inverse, as docs/status.md defines it."""\n', "")
    assert f"```python\n{shown}```" in (Path(__file__).parents[3] / "docs" / "status.md").read_text()


@pytest.mark.parametrize(
    ("topic", "text"),
    [
        (b"clicks.eu-1_x", "clicks.eu-1_x"),
        ("größe".encode(), "größe"),
        (b'say "hi" <b>', 'say "hi" <b>'),
        (b"\xff\xfe", r"\xff\xfe"),
        (b"a\\b", r"a\\b"),
        (b"\\xff", r"\\xff"),
        (b"line\nline\x00\x7f", r"line\x0aline\x00\x7f"),
        (b"\xe2\x82", r"\xe2\x82"),
        ("\x9b31m\u202ea\u2028".encode(), r"\xc2\x9b31m\xe2\x80\xaea\xe2\x80\xa8"),
        (b"", ""),
    ],
)
def test_topic_text_escapes_unprintable_bytes(topic: bytes, text: str) -> None:
    assert topic_text(topic) == text


@given(
    st.binary(max_size=60)
    | st.text(max_size=20).map(str.encode)
    | st.lists(st.sampled_from([b"\\", b"x", b"f", b"0", b"\xff"])).map(b"".join)
)
def test_topic_text_is_reversible(topic: bytes) -> None:
    text = topic_text(topic)
    assert topic_bytes(text) == topic
    assert text.isprintable()


def test_bracketed_text_states_its_length() -> None:
    assert bracketed("a]b") == "3[a]b]"
