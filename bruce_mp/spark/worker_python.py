"""Check on the driver that the Python of Spark's tasks has this package.

Without the package, a task fails with a long traceback that does not name the Python of the task. Only the tasks of a
local master are checked, because the driver cannot see the interpreters of other hosts.
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
"""Exit status of the probe in a Python without the package."""
_PROBE_TIMEOUT_S: Final = 30


def check_worker_python(spark: SparkSession) -> None:
    """Raise `WorkerPythonError` if the tasks of a local master run in a Python without this package."""
    try:
        context = spark.sparkContext
        is_checkable = (context.master or "").startswith("local")
    except (AttributeError, NotImplementedError):  # Spark Connect
        return
    # The files of --py-files or addPyFile may be this package.
    has_added_files = bool(getattr(context, "_python_includes", None))
    found = shutil.which(context.pythonExec)
    if is_checkable and not has_added_files and found and found != sys.executable and _lacks_package(found):
        raise WorkerPythonError(
            f"Spark's Python {found} has no bruce_mp: before the session starts, activate the environment of "
            f"{sys.executable}, or set PYSPARK_PYTHON to this file."
        )


@cache
def _lacks_package(python: str) -> bool:
    """Return True if the interpreter `python` can be run, but does not find this package.

    The probe has this process' environment, as Spark's workers have.
    """
    try:
        command = [python, "-c", _PROBE]
        probe = subprocess.run(command, capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False)  # noqa: S603 - as Spark
    except (OSError, subprocess.TimeoutExpired):
        return False
    return probe.returncode == _MISSING_STATUS
