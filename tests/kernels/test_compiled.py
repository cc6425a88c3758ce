"""Agreement of the compiled kernels with the rest: offsets, names and the choice of a variant."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from bruce_mp.slab import layout as lay
from support.variants import KERNELS

DIRECTORY: Final = Path(import_module("bruce_mp.kernels.compiled").__file__ or "").parent
STATES: Final = {"OPEN", "FILLED", "DELIVERED", "DISCARDED", "SPLIT"}


def offsets() -> dict[str, int]:
    text = (DIRECTORY / "layout.pxd").read_text()
    return {name: int(value, 0) for name, value in re.findall(r"^    (\w+) = (\w+)$", text, re.MULTILINE)}


def in_layout(name: str) -> int:
    if name in STATES:
        return lay.RunState[name]
    state = name.removeprefix("CHUNK_")
    return lay.ChunkState[state] if state in lay.ChunkState.__members__ else int(getattr(lay, name))


def test_offsets_are_those_of_the_layout() -> None:
    found = offsets()
    assert found == {name: in_layout(name) for name in found}
    assert len(found) > 50


def test_each_pure_file_has_a_compiled_file_of_the_same_name() -> None:
    assert {path.stem for path in DIRECTORY.glob("*.pyx")} == {*KERNELS, "stamp"}
    assert {path.stem for path in DIRECTORY.with_name("pure").glob("*.py")} == {*KERNELS, "__init__"}


def imported(branch: list[ast.stmt], variant: str) -> set[tuple[str, str]]:
    """Return the names that the imports of a branch take from a variant, each with its module."""
    imports = [statement for statement in branch if isinstance(statement, ast.ImportFrom)]
    assert len(imports) == len(branch)
    prefix = f"bruce_mp.kernels.{variant}."
    assert all((statement.module or "").startswith(prefix) for statement in imports)
    return {((each.module or "").removeprefix(prefix), alias.name) for each in imports for alias in each.names}


def test_the_interface_takes_each_kernel_of_both_variants_from_files_of_the_same_name() -> None:
    tree = ast.parse(DIRECTORY.parent.joinpath("__init__.py").read_text())
    [choice] = [statement for statement in tree.body if isinstance(statement, ast.If)]
    assert imported(choice.body, "pure") == imported(choice.orelse, "compiled")


def chosen(wish: str) -> subprocess.CompletedProcess[str]:
    program = "from bruce_mp import kernels; print(kernels.CHOICE.compiled, kernels.claim.__class__.__name__)"
    environment = os.environ | {"BRUCE_KERNELS": wish}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.process
def test_the_environment_variable_selects_the_variant() -> None:
    pure, compiled = ["False", "function"], ["True", "cython_function_or_method"]
    assert chosen("pure").stdout.split() == pure
    without_wish = chosen("").stdout.split()  # `CHOICE` may be a wish for the pure kernels, despite compiled ones
    if without_wish == compiled:
        assert chosen("compiled").stdout.split() == compiled
    else:
        assert without_wish == pure
        assert "BRUCE_KERNELS" in chosen("compiled").stderr
