"""Rules for the repository as a whole, independent of the code's behaviour."""

from __future__ import annotations

import ast
import re
import subprocess
from configparser import ConfigParser
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest

import bruce_mp
from support.source_tree import classes, cycles, importers, imports, modules

ROOT: Final = Path(__file__).parents[1]

TOP_LEVEL: Final = {
    ".ci", ".dockerignore", ".editorconfig", ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "CONTRIBUTING.md",
    "LICENSE", "MANIFEST.in", "README.md", "SECURITY.md", "bruce_mp", "clients", "conf", "deploy", "docs",
    "pyproject.toml", "pyspark_bruce", "scripts", "setup.cfg", "setup.py", "tests",
}  # fmt: skip
SOON: Final = {"conf", "deploy", "docs"}
"""May be empty, and git knows no empty directories."""

MACHINE_PATHS: Final = (
    r"/(?:work|root)/",  # not-a-path
    r"/home/[a-z]",  # not-a-path
)
"""Places that exist on one developer's machine only."""


SMALL_LINES: Final = 60
KERNELS: Final = "bruce_mp.kernels.pure."
"""Each kernel has a module of its own, with a compiled module of the same name."""
GIVEN_NAMES: Final = ("bruce_mp.devbroker.", "bruce_mp.spark.")
"""Packages in which Kafka or Spark may give a class its name."""


@cache
def files() -> tuple[Path, ...]:
    """All files that git tracks, or would."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return tuple(path for name in listing.split("\0") if name and (path := ROOT / name).is_file())


def lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()


@pytest.mark.process
def test_git_lists_this_very_file() -> None:
    assert Path(__file__) in files()


@pytest.mark.process
def test_the_top_level_has_only_expected_files() -> None:
    found = {path.relative_to(ROOT).parts[0] for path in files()}
    assert found <= TOP_LEVEL
    assert found >= TOP_LEVEL - SOON


@pytest.mark.process
@pytest.mark.parametrize("pattern", MACHINE_PATHS)
def test_no_file_names_a_path_of_one_machine(pattern: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files()
        for number, line in enumerate(lines(path), 1)
        if re.search(rf"(?<![\w.]){pattern}", line) and "not-a-path" not in line
    ]
    assert not found


def test_ci_runs_the_test_command_of_the_readme() -> None:
    command = "scripts/test"
    assert re.search(rf"^\s*(\$ )?{command}\b", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert f"{command} --interpreters || exit" in lines(ROOT / ".ci/run")


@pytest.mark.parametrize(
    "script",
    [
        ".ci/run",
        "scripts/test",
        "scripts/demo",
        "scripts/bench",
        "scripts/build-kernels",
        "scripts/build-wheels",
        "scripts/release",
        "scripts/check_sizes.py",
    ],
)
def test_scripts_are_executable(script: str) -> None:
    assert (ROOT / script).stat().st_mode & 0o111 == 0o111


def test_the_version_is_written_in_one_place() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert config["metadata"]["version"] == "attr: bruce_mp.__version__"
    assert version("bruce-mp") == bruce_mp.__version__
    assert "[project]" not in (ROOT / "pyproject.toml").read_text()


def test_the_licence_matches_the_metadata() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert config["metadata"]["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_changelog_has_an_unreleased_section() -> None:
    assert "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text()


def test_the_pages_of_promises_and_tests_name_existing_files() -> None:
    pages = [(ROOT / page).read_text() for page in ("README.md", "docs/delivery.md", "docs/testing.md")]
    named = set(re.findall(r"`([a-z0-9_/]+/test_\w+\.py)`", "".join(pages)))
    assert len(named) > 20
    assert not {name for name in named if not (ROOT / "tests" / name).is_file()}


REACH_THROUGH: Final = re.compile(r"\b_core\.\w+\.\w")


def test_processes_call_only_methods_of_their_cores() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "bruce_mp").rglob("*.py"))
        for number, line in enumerate(lines(path), 1)
        if REACH_THROUGH.search(line)
    ]
    assert not found


def test_no_modules_import_each_other() -> None:
    assert cycles(imports()) == []


def test_a_cycle_of_imports_is_found() -> None:
    graph = {name: frozenset(targets) for name, targets in {"a": "bc", "b": "c", "c": "b", "d": "a"}.items()}
    assert cycles(graph) == [["b", "c"]]


def test_a_small_module_of_one_user_states_its_reason() -> None:
    unexplained = [
        module.name
        for module in modules().values()
        if not module.is_package and not module.name.startswith(KERNELS)
        if len(module.text.splitlines()) < SMALL_LINES
        if len(importers(module.name) - {module.name.rpartition(".")[0]}) == len(importers(module.name)) == 1
        if not re.search(r"^Separate because ", ast.get_docstring(module.tree) or "", re.MULTILINE)
    ]
    assert not unexplained, "join each of these modules with its user, or state the reason in its head"


def test_a_package_says_in_its_head_what_it_holds() -> None:
    packages = [module for module in modules().values() if module.is_package]
    assert len(packages) > 20
    assert not [module.name for module in packages if not ast.get_docstring(module.tree)]


def test_a_class_has_a_name_of_its_own() -> None:
    ours = {name: [each for each in places if not each.startswith(GIVEN_NAMES)] for name, places in classes().items()}
    assert len(ours) > 500
    assert not {name: places for name, places in ours.items() if len(places) > 1}
