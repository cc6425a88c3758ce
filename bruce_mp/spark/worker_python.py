"""Check on the driver that the Python of Spark's tasks has this package.

If the package is missing, a task fails with a long traceback that does not name the task's Python. Only the tasks of a
local master are checked, because the driver cannot run the interpreters of other hosts.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Final

from bruce_mp.spark.errors import WorkerPythonError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_worker_python"]

_PROBE: Final = "import importlib.util, sys; sys.exit(3 if importlib.util.find_spec('bruce_mp') is None else 0)"
_MISSING_STATUS: Final = 3
_PROBE_TIMEOUT_S: Final = 30


def check_worker_python(spark: SparkSession) -> None:
    """Raise `WorkerPythonError` if the tasks of a local master run in a Python without this package."""
    try:
        context = spark.sparkContext
        is_checkable = (context.master or "").startswith("local")
    except (AttributeError, NotImplementedError):  # Spark Connect
        return
    # Files of --py-files or addPyFile, among which may be this package.
    has_added_files = bool(getattr(context, "_python_includes", None))
    python = shutil.which(context.pythonExec)
    if is_checkable and not has_added_files and python and python != sys.executable and _lacks_package(python):
        raise WorkerPythonError(
            f"Spark's Python {python} has no bruce_mp: before the session starts, activate the environment of "
            f"{sys.executable}, or set PYSPARK_PYTHON to this file."
        )


@cache
def _lacks_package(python: str) -> bool:
    """Return True if the interpreter `python` runs in the driver's environment, but does not find this package."""
    try:
        command = [python, "-c", _PROBE]
        probe = subprocess.run(command, capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False)  # noqa: S603 - as Spark
    except (OSError, subprocess.TimeoutExpired):
        return False
    return probe.returncode == _MISSING_STATUS
