"""Without a compiler an install succeeds, works on the pure kernels, and says so."""

from __future__ import annotations

import shutil
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from support.processes import run_program

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.process

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = (
    "LICENSE", "MANIFEST.in", "README.md", "bruce_mp", "conf", "deploy", "pyproject.toml", "pyspark_bruce", "scripts",
    "setup.cfg", "setup.py",
)  # fmt: skip
LEFT_OUT: Final = shutil.ignore_patterns("*.so", "__pycache__")
TRIED: Final = ("inspect", "stamp")
"""The kernels that the tests compile: all build alike, and Cython needs a minute for the large ones."""


def run(command: Sequence[str], directory: Path, **environment: str) -> str:
    return run_program(sys.executable, *command, time_limit_s=120, directory=directory, **environment)


def build(target: Path, sources: Path, kernels: str = "") -> str:
    """Build with a compiler that fails."""
    command = ["setup.py", "--quiet", "build", "--build-lib", str(target)]
    return run(command, sources, CC="/bin/false", BRUCE_KERNELS=kernels)


def copy_sources(sources: Path) -> None:
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, ignore=LEFT_OUT)
        else:
            sources.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, sources / name)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the package from the sources with a compiler that fails."""
    directory = tmp_path_factory.mktemp("install")
    sources, target = directory / "sources", directory / "target"
    copy_sources(sources)
    for kernel in (sources / "bruce_mp" / "kernels" / "compiled").glob("*.pyx"):
        if kernel.stem not in TRIED:
            kernel.unlink()
    said = build(target, sources)
    assert all(f"bruce_mp.kernels.compiled.{name}" in said for name in TRIED), said
    return target


def test_a_source_distribution_has_all_sources_of_the_kernels(tmp_path: Path) -> None:
    copy_sources(tmp_path / "sources")
    run(["setup.py", "--quiet", "sdist", "--dist-dir", str(tmp_path)], tmp_path / "sources")
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as packed:
        held = {Path(*Path(name).parts[1:]) for name in packed.getnames()}
    sources = {path.relative_to(ROOT) for path in (ROOT / "bruce_mp").rglob("kernels/compiled/*.p[xy][xd]")}
    assert any(path.suffix == ".pxd" for path in sources)
    assert not sources - held


def test_a_pure_installation_has_no_compiled_kernels(installed: Path) -> None:
    assert (installed / "bruce_mp" / "kernels" / "pure" / "lanes.py").exists()
    assert not list(installed.rglob("*.so"))


def test_a_kernel_that_cannot_be_compiled_is_an_error_when_kernels_are_required(
    installed: Path, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match="command '/bin/false' failed"):
        build(tmp_path, installed.parent / "sources", "compiled")


def test_the_version_names_the_kernels_and_their_cost(installed: Path) -> None:
    said = run(["-P", "-m", "bruce_mp", "--version"], installed.parent, PYTHONPATH=str(installed), BRUCE_KERNELS="")
    assert "pure Python kernels" in said
    assert "several times as much CPU" in said
    assert "install the package where there is a C compiler" in said


def test_a_pure_installation_works(installed: Path) -> None:
    program = (
        "import bruce_mp, bruce_mp.kernels as kernels\n"
        "from bruce_mp.protocol.client.messages import encode\n"
        "print(bruce_mp.__file__, kernels.CHOICE.compiled, kernels.claim.__class__.__name__)"
    )
    place, compiled, kind = run(
        ["-P", "-c", program], installed.parent, PYTHONPATH=str(installed), BRUCE_KERNELS=""
    ).split()
    assert Path(place).is_relative_to(installed)
    assert (compiled, kind) == ("False", "function")


def test_files_of_an_older_build_are_not_installed(installed: Path) -> None:
    """pip builds in the checkout, where the last build's files lie."""
    gone = installed / "bruce_mp" / "gone.py"
    gone.write_text("")
    build(installed, installed.parent / "sources")
    assert not gone.exists()
    assert (installed / "bruce_mp" / "__init__.py").exists()
