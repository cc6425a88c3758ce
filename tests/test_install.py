"""An install where there is no compiler: it succeeds, works on the pure kernels, and says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = ("README.md", "bruce_mp", "conf", "deploy", "pyproject.toml", "pyspark_bruce", "setup.cfg", "setup.py")
LEFT_OUT: Final = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
TRIED: Final = ("look", "stamp")
"""The kernels whose compilation is tried: all are built alike, and Cython needs a minute for the large ones."""


def run(command: Sequence[str], directory: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip would install from the sources, built with a compiler that fails."""
    directory = tmp_path_factory.mktemp("install")
    sources, target = directory / "sources", directory / "target"
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, ignore=LEFT_OUT)
        else:
            sources.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, sources / name)
    for kernel in (sources / "bruce_mp" / "kernels" / "compiled").glob("*.pyx"):
        if kernel.stem not in TRIED:
            kernel.unlink()
    said = run(["setup.py", "--quiet", "build", "--build-lib", str(target)], sources, CC="/bin/false")
    assert all(f"bruce_mp.kernels.compiled.{name}" in said for name in TRIED), said
    return target


def test_it_has_no_compiled_kernels(installed: Path) -> None:
    assert (installed / "bruce_mp" / "kernels" / "pure" / "lanes.py").exists()
    assert not list(installed.rglob("*.so"))


def test_it_says_which_kernels_it_uses_and_what_that_costs(installed: Path) -> None:
    said = run(["-P", "-m", "bruce_mp", "--version"], installed.parent, PYTHONPATH=str(installed), BRUCE_KERNELS="")
    assert "pure Python kernels" in said
    assert "several times as much CPU" in said
    assert "install the package where there is a C compiler" in said


def test_it_works(installed: Path) -> None:
    program = (
        "import bruce_mp, bruce_mp.kernels as kernels; from bruce_mp.protocol.client_wire import encode_any_partition\n"
        "print(bruce_mp.__file__, kernels.CHOICE.compiled, kernels.take.__class__.__name__)"
    )
    place, compiled, kind = run(
        ["-P", "-c", program], installed.parent, PYTHONPATH=str(installed), BRUCE_KERNELS=""
    ).split()
    assert Path(place).is_relative_to(installed)
    assert (compiled, kind) == ("False", "function")


def test_what_an_older_release_had_is_not_installed(installed: Path) -> None:
    """pip builds in the checkout, where the last build's files lie."""
    gone = installed / "bruce_mp" / "gone.py"
    gone.write_text("")
    run(["setup.py", "--quiet", "build", "--build-lib", str(installed)], installed.parent / "sources", CC="/bin/false")
    assert not gone.exists()
    assert (installed / "bruce_mp" / "__init__.py").exists()
