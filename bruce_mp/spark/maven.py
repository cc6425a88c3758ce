"""Fetch jars from the Maven repository with Maven, or with `jgo` if Maven is missing or fails.

Maven uses the mirrors and proxies that the machine configures for it; `jgo` is a pip package.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["cache_directory", "ensure_jars"]

_MAVEN_TIMEOUT_S: Final = 900  # a first download of all jars over a slow line
_CONNECTION_TIMEOUT_S: Final = 60
_MAX_OUTPUT_CHARS: Final = 2000
"""How many characters of Maven's output an error shows: the last ones, because the cause comes last."""
_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>bruce</groupId><artifactId>jars</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY: Final = (
    "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>{exclusions}</dependency>"
)
_WITHOUT_DEPENDENCIES: Final = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)


def cache_directory() -> Path:
    """Return the directory for jars and scripts: `$BRUCE_TEST_CACHE`, or `bruce-mp` in the user's cache directory."""
    if overridden := os.environ.get("BRUCE_TEST_CACHE"):
        return Path(overridden)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bruce-mp"


def ensure_jars(directory: Path, coordinates: Sequence[str], *, with_dependencies: bool = True) -> Path:
    """Fetch the jars of `coordinates` (`group:artifact:version`) into a folder `jars` in `directory`, unless it exists.

    Return `directory`. Raise `StartError` if the fetch fails. A lock allows one fetch at a time. `directory` gets its
    name after the fetch, so a killed fetch leaves no incomplete `directory`.
    """
    if not directory.is_dir():
        with _locked(directory.with_name(f"{directory.name}.lock")):
            if not directory.is_dir():
                _fetch(directory, coordinates, with_dependencies)
    return directory


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(directory: Path, coordinates: Sequence[str], with_dependencies: bool) -> None:
    staging = directory.with_name(f"{directory.name}.part")
    shutil.rmtree(staging, ignore_errors=True)  # left by a killed fetch, because the lock excludes another fetch
    (staging / "jars").mkdir(parents=True)
    failures = []
    for name, fetcher in _fetchers():
        try:
            fetcher(coordinates, staging, with_dependencies)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            failures.append(f"{name}: {_describe(error)}")
        else:
            staging.rename(directory)
            return
    raise StartError(
        f"{', '.join(coordinates)}: could not be fetched from the Maven repository. Check the network (and the proxy), "
        f"`pip install jgo` where there is no Maven, or copy the directory {directory} from a machine that has it.\n"
        + "\n".join(failures)
    )


def _describe(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"exit code {error.returncode}\n{str(error.stdout)[-_MAX_OUTPUT_CHARS:]}"
    return f"{type(error).__name__}: {error}"


def _fetchers() -> Iterator[tuple[str, Callable[[Sequence[str], Path, bool], None]]]:
    """Yield the name of each client to try, and the function that fetches jars with it."""
    if shutil.which("mvn"):
        yield "Maven", _fetch_with_maven
    yield "jgo", _fetch_with_jgo


def _fetch_with_maven(coordinates: Sequence[str], staging: Path, with_dependencies: bool) -> None:
    exclusions = "" if with_dependencies else _WITHOUT_DEPENDENCIES
    dependencies = "".join(_DEPENDENCY.format(*each.split(":"), exclusions=exclusions) for each in coordinates)
    pom = staging / "pom.xml"
    pom.write_text(_POM.format(dependencies=dependencies))
    subprocess.run(  # noqa: S603 - a fixed command
        [
            str(shutil.which("mvn")), "-q", "-B", "-f", str(pom), "dependency:copy-dependencies",
            "-DincludeScope=runtime", f"-DoutputDirectory={staging / 'jars'}",
        ],
        check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=_MAVEN_TIMEOUT_S,
    )  # fmt: skip


def _fetch_with_jgo(coordinates: Sequence[str], staging: Path, with_dependencies: bool) -> None:
    """Fetch into a new local repository, because in an old one jgo takes a half-written file as complete."""
    try:
        from jgo.maven import Dependency, MavenContext, PythonResolver  # noqa: PLC0415 - slow, rarely needed
    except ImportError as error:
        raise OSError("it is not installed") from error
    with tempfile.TemporaryDirectory(dir=staging) as repository:
        context = MavenContext(PythonResolver(), repo_cache=Path(repository), timeout=_CONNECTION_TIMEOUT_S)
        requested = [
            context.project(group, artifact).at_version(version).artifact()
            for group, artifact, version in (each.split(":") for each in coordinates)
        ]
        artifacts = list(requested)
        if with_dependencies:
            roots, transitive = context.resolver.resolve([Dependency(artifact) for artifact in requested])
            needed = [*roots, *(each for each in transitive if each.scope in {"compile", "runtime"})]
            artifacts = [dependency.artifact for dependency in needed]
        for artifact in artifacts:
            shutil.copy(artifact.resolve(), staging / "jars")
