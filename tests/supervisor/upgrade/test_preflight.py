"""Tests of the check of the installed code, with a program of our own in its place."""

from __future__ import annotations

import select
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from bruce_mp.config.load import load_config
from bruce_mp.slab import layout as lay
from bruce_mp.supervisor.processes.programs import PROGRAMS
from bruce_mp.supervisor.upgrade.preflight import Preflight, PreflightReport, load_and_report

if TYPE_CHECKING:
    from pathlib import Path

WAIT_S = 20.0


@pytest.mark.parametrize(
    ("present", "reported"), [(1, 1), (2, 2), (99, lay.LAYOUT_VERSION), (None, lay.LAYOUT_VERSION)]
)
def test_the_report_has_the_layout_of_a_slab_that_this_code_reads(
    tmp_path: Path, present: int | None, reported: int
) -> None:
    path = tmp_path / "slab"
    if present is not None:
        path.write_bytes(lay.SUPER_MAGIC + present.to_bytes(4, "little"))
    file = tmp_path / "bruce.toml"
    file.write_text(f'kafka.bootstrap_servers = ["b:9092"]\nslab.path = "{path}"\n')
    assert load_and_report(load_config(file), PROGRAMS).layout == reported


@pytest.mark.process
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
