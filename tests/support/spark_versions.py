"""Environments with other releases of PySpark, made once in the user's cache, and scripts that run in them."""

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

__all__ = ["RELEASES", "run_with"]

RELEASES: Final = {
    "3.5": ["pyspark==3.5.9", "pandas<3"],
    "4.0": ["pyspark==4.0.5", "pandas<3"],
    "4.1": ["pyspark==4.1.4"],
    "4.2": ["pyspark==4.2.1"],
}
"""What pip installs for each; the tests' own environment has the newest."""
SHARED: Final = ["numpy>=2", "pyarrow>=18"]
MAKE_S: Final = 900
RUN_S: Final = 600


def run_with(release: str, script: Path, given: Mapping[str, Any]) -> Any:
    """Run `script` with this release; it reads JSON from its input, and the last line of its output is JSON."""
    python = _environment(release) / "bin" / "python"
    prepare_environment()
    env = {**os.environ, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    env |= {"PYTHONPATH": python_path(), "SPARK_LOCAL_IP": "127.0.0.1"}
    env.pop("SPARK_HOME", None)
    command = [str(python), str(script)]
    done = subprocess.run(
        command, check=False, input=json.dumps(given), env=env, capture_output=True, text=True, timeout=RUN_S
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def _environment(release: str) -> Path:
    """Return the directory of the environment; a mark in it says that it is complete."""
    requirements = RELEASES[release]
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
