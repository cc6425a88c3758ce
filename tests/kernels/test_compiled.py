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

from bruce_mp.kernels import CHOICE
from bruce_mp.kernels.choice import COMPILED
from bruce_mp.slab import layout as lay

DIRECTORY: Final = Path(import_module("bruce_mp.kernels.compiled").__file__ or "").parent
STATES: Final = {"OPEN", "FILLED", "DELIVERED", "DISCARDED", "SPLIT"}


def offsets() -> dict[str, int]:
    text = (DIRECTORY / "layout.pxd").read_text()
    return {name: int(value, 0) for name, value in re.findall(r"^    (\w+) = (\w+)$", text, re.MULTILINE)}


@pytest.mark.parametrize(("name", "value"), offsets().items())
def test_offsets_are_those_of_the_layout(name: str, value: int) -> None:
    if name in STATES:
        assert value == lay.RunState[name]
    elif name.removeprefix("CHUNK_") in lay.ChunkState.__members__:
        assert value == lay.ChunkState[name.removeprefix("CHUNK_")]
    else:
        assert value == getattr(lay, name)


def test_every_source_is_listed_and_has_a_stub() -> None:
    assert {path.stem for path in DIRECTORY.glob("*.pyx")} == {*COMPILED, "stamp"}
    assert {path.stem for path in DIRECTORY.glob("*.pyi")} == {*COMPILED, "stamp"}


@pytest.mark.parametrize("name", COMPILED)
def test_stubs_name_pure_kernels(name: str) -> None:
    """A stub has only imports, so mypy checks both variants against the same types."""
    stub = ast.parse((DIRECTORY / f"{name}.pyi").read_text())
    for statement in stub.body:
        assert isinstance(statement, ast.ImportFrom)
        module = import_module(statement.module or "")
        assert all(hasattr(module, imported.name) for imported in statement.names)


def chosen(wish: str) -> subprocess.CompletedProcess[str]:
    program = "from bruce_mp import kernels; print(kernels.CHOICE.compiled, kernels.claim.__class__.__name__)"
    environment = os.environ | {"BRUCE_KERNELS": wish}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.process
def test_the_environment_chooses() -> None:
    assert chosen("pure").stdout.split() == ["False", "function"]
    if CHOICE.compiled:
        assert chosen("compiled").stdout.split() == ["True", "cython_function_or_method"]
    else:
        assert "BRUCE_KERNELS" in chosen("compiled").stderr
