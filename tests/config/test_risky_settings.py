"""Warnings about settings with a catch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.config.risky_settings import risk_warnings

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.config.model import Config

    Load = Callable[..., Config]


def test_the_defaults_cause_no_remark(load: Load) -> None:
    assert risk_warnings(load()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("required_acks = 0\n", "delivery is at most once"),
        ('[input.tcp]\nenable = true\nhost = "0.0.0.0"\nloopback_only = false\n', "other hosts can connect"),
        (
            '[input.unix_stream]\nenable = true\npath = "/run/bruce/in"\n',
            "only programs of the daemon's own user can send",
        ),
        ('[input.unix_stream]\npath = "/run/other"\n', "input.unix_stream.enable = false"),
        ("[input.tcp]\nport = 9001\n", "input.tcp.enable = false"),
        ('[logging.file]\npath = "/x/log"\n', "logging.file.enable = false: the other settings of [logging.file] have"),
        ('[input.unix_datagram]\npath = "/run/bruce/in"\n', "only programs of the daemon's own user can send"),
    ],
)
def test_a_risky_setting_causes_a_remark(load: Load, text: str, words: str) -> None:
    (remark,) = risk_warnings(load(text))
    assert words in remark
