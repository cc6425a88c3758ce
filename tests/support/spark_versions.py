"""Environments with other releases of PySpark, created once in the user's cache, and scripts that run in them."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from bruce_mp.spark.maven import cache_directory
from bruce_mp.spark.session import prepare_environment
from support.spark_session import python_path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["RELEASES", "run_with", "submit"]

RELEASES: Final = {
    "3.5": ["pyspark==3.5.9", "pandas<3"],
    "4.0": ["pyspark==4.0.5", "pandas<3"],
    "4.1": ["pyspark==4.1.4"],
    "4.2": ["pyspark==4.2.1"],
}
"""The requirements of each release; the tests' own environment has the newest."""
CONNECT: Final = ["pyspark[connect]==4.3.0", "pandas<3"]
SHARED: Final = ["numpy>=2", "pyarrow>=18"]
MAKE_S: Final = 900
RUN_S: Final = 600


def run_with(release: str, script: Path, given: Mapping[str, Any]) -> Any:
    """Run `script` with this release, or with `connect`; it reads JSON, and the last line of its output is JSON."""
    python = _environment(release) / "bin" / "python"
    return json.loads(_run_job([str(python), str(script)], python, python_path(), json.dumps(given)).splitlines()[-1])


def submit(release: str, directory: Path, *words: str) -> None:
    """Run `spark-submit` with a local cluster, from `directory`, where the package is not found."""
    python = _environment(release) / "bin" / "python"
    local = ["--master=local-cluster[1,1,640]", "--driver-memory=512m", "--conf=spark.executor.memory=640m"]
    settings = ["--conf=spark.driver.host=127.0.0.1", "--conf=spark.ui.enabled=false"]
    script = python.with_name("spark-submit")
    _run_job([str(script), *local, *settings, *words], python, "", "", directory)


def _run_job(command: list[str], python: Path, path: str, given: str, directory: Path | None = None) -> str:
    """Run a command with this Python and return its output."""
    prepare_environment()
    env = {**os.environ, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    env |= {"PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    env.pop("SPARK_HOME", None)
    done = subprocess.run(
        command, check=False, input=given, env=env, capture_output=True, text=True, timeout=RUN_S, cwd=directory
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def _environment(release: str) -> Path:
    """Return the directory of the environment; a mark in it says that it is complete."""
    requirements = CONNECT if release == "connect" else RELEASES[release]
    directory = cache_directory() / "spark" / f"python-{requirements[0].partition('==')[2]}"
    directory.parent.mkdir(parents=True, exist_ok=True)
    complete = directory / ".complete"
    with directory.with_name(f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            _run([sys.executable, "-m", "venv", "--clear", str(directory)])
            _run([str(directory / "bin" / "python"), "-m", "pip", "install", "-q", *requirements, *SHARED])
            complete.touch()
    return directory


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, timeout=MAKE_S, stdin=subprocess.DEVNULL)
