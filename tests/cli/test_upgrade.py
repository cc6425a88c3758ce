"""`bruce upgrade` without a daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bruce_mp.cli import upgrade
from bruce_mp.cli.upgrade import UpgradeError
from bruce_mp.supervisor.upgrade.upgrade_note import UpgradeNote, UpgradeStage, write_note

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.process
def test_a_daemon_that_has_just_ended_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(upgrade, "running_daemon", lambda _: ended.pid)
    with pytest.raises(UpgradeError, match=f"Process {ended.pid}, the daemon, has just ended. Start it"):
        upgrade._upgrade(tmp_path, 1.0)


def test_a_second_request_during_an_upgrade_reports_its_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_note(tmp_path, UpgradeNote(7, UpgradeStage.CHECKING, "1.0.0"))
    done = UpgradeNote(7, UpgradeStage.DONE, "1.0.0", "1.0.1")
    monkeypatch.setattr(upgrade, "running_daemon", lambda _: os.getpid())
    monkeypatch.setattr(os, "kill", lambda *_: write_note(tmp_path, done))
    assert upgrade._upgrade(tmp_path, 5.0) == done
    with pytest.raises(UpgradeError, match="has not reported the outcome"):
        upgrade._upgrade(tmp_path, 0.1)  # the same note is now that of an earlier upgrade
