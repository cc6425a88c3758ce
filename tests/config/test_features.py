"""What is said before the daemon starts: features that are not there yet, and settings with a catch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.config.features import remarks, unused_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.config.model import Config

    Load = Callable[..., Config]


def test_the_defaults_need_no_word(load: Load) -> None:
    assert unused_settings(load()) == []
    assert remarks(load()) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[input.unix_stream]\nenable = true\n", "input.unix_stream.enable = true"),
        ("[input.tcp]\nenable = true\n", "input.tcp.enable = true"),
    ],
)
def test_features_that_are_not_there_yet_are_named(load: Load, text: str, named: str) -> None:
    assert unused_settings(load(text)) == [named]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("required_acks = 0\n", "delivery is at most once"),
        ('[input.unix_datagram]\npath = "/run/bruce/in"\n', "only programs of the daemon's own user can send"),
    ],
)
def test_settings_with_a_catch(load: Load, text: str, words: str) -> None:
    (remark,) = remarks(load(text))
    assert words in remark
