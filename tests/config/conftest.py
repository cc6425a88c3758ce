"""A fixture that loads a configuration from text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bruce_mp.config.load import load_config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bruce_mp.config.model import Config

KAFKA = '[kafka]\nbootstrap_servers = ["b1:9092"]\n'


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Config]:
    """Return `load(text, *overrides)`: it loads `bruce.toml` with `text` behind a sufficient [kafka] section."""

    def load_text(text: str = "", *overrides: str) -> Config:
        path = tmp_path / "bruce.toml"
        path.write_text(KAFKA + text)
        return load_config(path, overrides)

    return load_text
