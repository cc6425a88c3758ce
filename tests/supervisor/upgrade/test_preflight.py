"""Tests of the check of the installed code, with a program of our own in its place."""

from __future__ import annotations

import errno
import os
import select
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from bruce_mp.config.load import load_config
from bruce_mp.errors import SlabError
from bruce_mp.slab import layout as lay
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.spill import SpillDirectory, SpillFile
from bruce_mp.supervisor.processes.programs import PROGRAMS
from bruce_mp.supervisor.upgrade.preflight import Preflight, PreflightReport, load_and_report
from support.slabs import new_slab

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.config.model import Config

WAIT_S = 20.0


def config_of(directory: Path, slab: Path) -> Config:
    file = directory / "bruce.toml"
    file.write_text(f'kafka.bootstrap_servers = ["b:9092"]\nslab.path = "{slab}"\n')
    return load_config(file)


@pytest.mark.parametrize(
    ("present", "reported"), [(1, 1), (2, 2), (99, lay.LAYOUT_VERSION), (None, lay.LAYOUT_VERSION)]
)
def test_the_report_has_the_layout_of_a_slab_that_this_code_reads(
    tmp_path: Path, present: int | None, reported: int
) -> None:
    path = tmp_path / "slab"
    if present is not None:
        path.write_bytes(lay.SUPER_MAGIC + present.to_bytes(4, "little"))
    assert load_and_report(config_of(tmp_path, path), PROGRAMS).layout == reported


def test_code_that_may_not_read_the_spill_files_would_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the new code ends the old inputs before it fails."""

    def deny(path: Path) -> SpillFile:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with new_slab() as slab:
        config = config_of(tmp_path, slab.path)
        directory = SpillDirectory.for_slab(slab, config.spill_path)
        directory.create(lay.STREAM_ROWS[0], 1, keeps_timestamps=False).close()
        with monkeypatch.context() as patch:
            patch.setattr(SpillFile, "open", deny)
            load_and_report(config, PROGRAMS)
            ProcessRow(slab, lay.STREAM_ROWS[0]).add(lay.SPILL_IN, 3)
            with pytest.raises(SlabError, match="may hold messages, cannot be read"):
                load_and_report(config, PROGRAMS)
        load_and_report(config, PROGRAMS)


def test_code_that_expects_the_spill_files_elsewhere_would_not_start(tmp_path: Path) -> None:
    with new_slab() as slab:
        config = config_of(tmp_path, slab.path)
        SpillDirectory.for_slab(slab, tmp_path / "earlier").record(slab)
        load_and_report(config, PROGRAMS)
        ProcessRow(slab, lay.STREAM_ROWS[0]).add(lay.SPILL_IN, 3)
        with pytest.raises(SlabError, match=f"has messages in spill files in {tmp_path}/earlier, but"):
            load_and_report(config, PROGRAMS)


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
