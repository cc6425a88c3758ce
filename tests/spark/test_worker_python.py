"""The check on the driver that the Python of Spark's tasks has this package."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from bruce_mp.spark import register, write
from bruce_mp.spark.errors import WorkerPythonError
from bruce_mp.spark.worker_python import check_worker_python

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.process


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """Return the path of a Python that finds only the standard library."""
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    return str(python)


def session(python: str, *, master: str = "local[2]", files: list[str] | None = None) -> Any:
    context = SimpleNamespace(pythonExec=python, master=master, _python_includes=files or [])
    return SimpleNamespace(sparkContext=context)


def test_register_and_write_name_a_python_without_the_package(
    bare: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        rf"^\[BRUCE_PYTHON\] Spark's Python {bare} has no bruce_mp: .*{sys.executable}, or set PYSPARK_PYTHON to this"
    )
    with pytest.raises(WorkerPythonError, match=text):
        register(session(bare))
    frame: Any = SimpleNamespace(schema=SimpleNamespace(fields=[]), sparkSession=session(bare))
    with pytest.raises(WorkerPythonError, match=text):
        write(frame, "/s", topic="t")
    monkeypatch.setenv("PATH", str(tmp_path))  # the usual name is found in PATH
    with pytest.raises(WorkerPythonError, match=text):
        check_worker_python(session("python3"))


@pytest.mark.parametrize(
    "changed",
    [{"master": "spark://host:7077"}, {"files": ["bruce_mp.zip"]}, {"python": sys.executable}, {"python": "no"}],
)
def test_other_sessions_are_accepted(bare: str, changed: dict[str, Any]) -> None:
    check_worker_python(session(**{"python": bare, **changed}))


def test_a_session_of_spark_connect_is_accepted() -> None:
    connect: Any = object()
    check_worker_python(connect)


def test_another_interpreter_with_the_package_is_accepted(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    check_worker_python(session(str(python)))
