"""The command `scripts/bench`: its help, and its messages for missing tools."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from bench.__main__ import main
from bench.cases import GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterable

SCRIPT: Final = Path(__file__).parents[2] / "scripts" / "bench"
PROGRAMS: Final = re.findall(r"\$\{1:-\} == (\w+)", SCRIPT.read_text())


def said(arguments: Iterable[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in an environment with only Python, and return its output."""
    script, python = directory / "scripts" / "bench", directory / ".venv" / "bin" / "python"
    for path in (script, python):
        path.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, script)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    return subprocess.run([script, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_the_help_names_every_group_and_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(PROGRAMS) == 4
    with pytest.raises(SystemExit):
        main(["--help"])
    words = set(re.findall(r"\w+", capsys.readouterr().out))
    assert words >= {*PROGRAMS, *GROUPS}


@pytest.mark.process
@pytest.mark.parametrize("program", ["outage", "spark"])
def test_a_missing_dependency_is_reported_in_one_sentence(program: str, tmp_path: Path) -> None:
    done = said([program, "--help"], tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"scripts/bench {program}: ")
    assert done.stderr.count("\n") == 1
