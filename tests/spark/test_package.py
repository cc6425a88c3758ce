"""The contents of an installed package: Spark finds the data source only through `pyspark_bruce`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.process

ROOT: Final = Path(__file__).resolve().parents[2]


def test_the_spark_package_is_installed(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert (tmp_path / "pyspark_bruce" / "__init__.py").is_file()
    assert (tmp_path / "bruce_mp" / "spark" / "pipelines" / "backfill.py").is_file()


def test_the_package_imports_without_spark(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError('not here')")
    code = "import pyspark_bruce; assert pyspark_bruce.__all__ == [], pyspark_bruce.__all__"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
