"""`bruce upgrade` without a daemon that could answer."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bruce_mp.cli import upgrade
from bruce_mp.cli.upgrade import UpgradeError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.process
def test_a_daemon_that_has_just_ended_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(upgrade, "running_daemon", lambda _: ended.pid)
    with pytest.raises(UpgradeError, match=f"Process {ended.pid}, the daemon, has just ended. Start it"):
        upgrade._upgrade(tmp_path, 1.0)
