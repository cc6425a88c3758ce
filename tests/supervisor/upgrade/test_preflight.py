"""Tests of the check of the installed code, with a program of our own in its place."""

from __future__ import annotations

import select
import sys

import msgspec
import pytest

from bruce_mp.supervisor.upgrade.preflight import Preflight, PreflightReport

WAIT_S = 20.0

pytestmark = pytest.mark.process


def test_a_report_with_a_long_path_is_read_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    report = PreflightReport("1.0", 1, f"/{'s' * 3000}", "/run/bruce")
    program = f"import sys; sys.stdout.buffer.write({msgspec.json.encode(report)!r})"
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", program])
    preflight = Preflight()
    try:
        assert select.select([preflight], [], [], WAIT_S)[0]
        assert preflight.read_report() == report
    finally:
        preflight.close()
