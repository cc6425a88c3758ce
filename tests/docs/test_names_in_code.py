"""The architecture and the glossary name files, functions and terms that the code has."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from support.doc_pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ARCHITECTURE: Final = (ROOT / "docs" / "architecture.md").read_text()
GLOSSARY: Final = (ROOT / "docs" / "glossary.md").read_text()
MAX_TERMS: Final = 40


class Named(NamedTuple):
    """A name that the page puts behind a file; an empty name is the file alone."""

    path: str
    name: str


class Term(NamedTuple):
    term: str
    meaning: str
    path: str


def section(heading: str) -> str:
    _, _, text = ARCHITECTURE.partition(f"\n## {heading}\n")
    return text.partition("\n## ")[0]


def named_in(text: str) -> Iterator[Named]:
    """Each name in backticks behind the file that it belongs to; states are in capitals."""
    path = ""
    for quoted in re.findall(r"`([^`]+)`", text):
        if quoted.startswith("bruce_mp/"):
            path = quoted
            yield Named(path, "")
        elif path and re.fullmatch(r"_?[A-Za-z]\w*(\.\w+)?", quoted) and not quoted.isupper():
            yield Named(path, quoted)


def decision_rows() -> list[str]:
    """Return the rows of all tables of the section."""
    lines = section("Where things are decided").splitlines()
    return [line for line in lines if line.startswith("| ") and not line.startswith("| behaviour |")]


def decisions() -> list[str]:
    """Return the cells that name code."""
    return [cell for row in decision_rows() for cell in row.strip("| ").split(" | ")[1:]]


def steps() -> list[str]:
    return re.split(r"\n(?=\d+\. )", section("The way of one message"))[1:]


def names() -> list[Named]:
    return [named for text in [*decisions(), *steps()] for named in named_in(text)]


@cache
def definitions(path: Path) -> frozenset[str]:
    """Functions, classes, `Class.method` and constants of a module; of a compiled one, its lines' definitions."""
    if path.suffix == ".pyx":
        return frozenset(re.findall(r"^ *(?:cdef |cpdef )?(?:class|def) (\w+)", path.read_text(), re.MULTILINE))
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{below.name}" for below in node.body if isinstance(below, ast.FunctionDef)}
    return frozenset(found)


def is_defined(named: Named) -> bool:
    path = ROOT / named.path
    return path.is_file() and named.name in definitions(path) if named.name else path.exists()


def test_files_and_functions_of_the_architecture_exist() -> None:
    assert sorted({named for named in names() if not is_defined(named)}) == []


def test_each_decision_names_a_function() -> None:
    assert len(decision_rows()) > 60
    assert [row for row in decision_rows() if not any(named.name for named in named_in(row))] == []


def test_each_step_of_a_message_names_a_function() -> None:
    assert len(steps()) > 10
    assert [step for step in steps() if not any(named.name for named in named_in(step))] == []


@pytest.mark.parametrize(
    "named", [Named("bruce_mp/no_such_file.py", "main"), Named("bruce_mp/pipeline/corruption.py", "main")]
)
def test_names_that_do_not_exist_are_seen(named: Named) -> None:
    assert not is_defined(named)


def terms() -> list[Term]:
    rows = re.findall(r"^\| ([a-z][a-z ]*) \| (.+) \| `([^`]+)` \|$", GLOSSARY, re.MULTILINE)
    return [Term(*row) for row in rows]


def test_the_glossary_has_at_most_40_terms_each_once() -> None:
    listed = [term.term for term in terms()]
    assert len(listed) == len(set(listed)) == len(re.findall(r"^\| [a-z].*`bruce_mp/", GLOSSARY, re.MULTILINE))
    assert 20 < len(listed) <= MAX_TERMS


def test_each_meaning_is_one_sentence() -> None:
    assert [term.meaning for term in terms() if not re.fullmatch(r"[A-Z][^.]*(\.\w[^.]*)*\.", term.meaning)] == []


def test_each_term_is_in_the_file_that_defines_it() -> None:
    assert [term for term in terms() if not is_in_its_file(term)] == []


def is_in_its_file(term: Term) -> bool:
    path = ROOT / term.path
    return path.is_file() and all(word in path.read_text().lower() for word in term.term.split())
