"""The compiled kernels of the clients mirror the pure ones, file by file."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from bruce_mp import kernels
from bruce_mp.client import kernels as client_kernels

PACKAGE: Final = Path(import_module("bruce_mp.client.kernels").__file__ or "").parent


def test_each_pure_file_has_a_compiled_file_of_the_same_name() -> None:
    pure = {path.stem for path in PACKAGE.glob("pure/*.py")} - {"__init__"}
    compiled = {path.stem for path in PACKAGE.glob("compiled/*.pyx")}
    assert compiled == pure | {"stamp"}  # the stamp of the build has no pure twin


def test_the_clients_have_compiled_kernels_if_the_daemon_has_them() -> None:
    assert client_kernels.CHOICE == kernels.CHOICE


@pytest.mark.process
@pytest.mark.parametrize("variant", ["pure", "compiled"] if kernels.CHOICE.compiled else ["pure"])
def test_the_clients_use_the_chosen_variant(variant: str) -> None:
    program = (
        "from bruce_mp.client import datagram, stream\n"
        "print(stream.SendBuffer.__module__, datagram.DatagramSender.__module__)"
    )
    environment = os.environ | {"BRUCE_KERNELS": variant}
    shown = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True, timeout=60
    )
    prefix = f"bruce_mp.client.kernels.{variant}"
    assert shown.stdout.split() == [f"{prefix}.send_buffer", f"{prefix}.datagram_sender"]


@pytest.mark.process
def test_a_zip_of_the_package_has_the_pure_variant(tmp_path: Path) -> None:
    """This is the case of `spark-submit --py-files`: an extension module cannot be loaded from a zip."""
    root = PACKAGE.parents[2]
    with zipfile.ZipFile(tmp_path / "bruce_mp.zip", "w") as packed:
        for path in (root / "bruce_mp").rglob("*.py"):
            packed.write(path, path.relative_to(root))
    program = "from bruce_mp.client import stream\nprint(stream.__file__, stream.SendBuffer.__module__)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "bruce_mp.zip"), "BRUCE_KERNELS": ""}
    shown = subprocess.run(
        [sys.executable, "-c", program],
        env=environment, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    origin, module = shown.stdout.split()
    assert origin.startswith(f"{tmp_path}/bruce_mp.zip/")
    assert module == "bruce_mp.client.kernels.pure.send_buffer"
