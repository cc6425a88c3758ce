"""The pages name only existing pages, headings, files, commands, options and settings."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.cli import main as bruce
from bruce_mp.cli.commands import COMMANDS
from bruce_mp.spark.cli import main as bruce_spark
from support.doc_pages import PAGES, ROOT, all_blocks, name_of, prose_of

if TYPE_CHECKING:
    from pathlib import Path

ALL_PAGES: Final = pytest.mark.parametrize("page", PAGES, ids=name_of)
CHANGELOG: Final = ROOT / "CHANGELOG.md"
SECURITY: Final = ROOT / "SECURITY.md"
PROGRAMS: Final = {"bruce": bruce, "bruce-spark": bruce_spark}
WITH_COMMANDS_BELOW: Final = {"bruce slab", *PROGRAMS}


def slug(heading: str) -> str:
    """The anchor that GitHub gives to a heading."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    return frozenset(slug(heading) for heading in re.findall(r"^#+ (.*)$", prose_of(page), re.MULTILINE))


@pytest.mark.parametrize("page", [*PAGES, CHANGELOG, SECURITY], ids=name_of)
def test_links_have_existing_targets(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)#?([^)\s:]*)\)", prose_of(page)):
        leads_to = (page.parent / target).resolve() if target else page
        assert leads_to.exists(), target
        assert not anchor or anchor in anchors(leads_to), f"{target}#{anchor}"


@ALL_PAGES
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`((?:bruce_mp|tests|scripts|docs|conf|deploy)/[\w./-]*)`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


@ALL_PAGES
def test_tests_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text())
    assert [name for path, name in named if f"def {name}(" not in (ROOT / path).read_text()] == []


def test_every_page_is_in_the_index() -> None:
    indexes = (ROOT / "docs" / "README.md", ROOT / "docs" / "decisions" / "README.md")
    linked = {
        (index.parent / target).resolve()
        for index in indexes
        for target in re.findall(r"\]\(([^)#:]+)", index.read_text())
    }
    assert set((ROOT / "docs").rglob("*.md")) - {indexes[0]} <= linked


# --- commands ---------------------------------------------------------------------------------------------------------
@cache
def options_of(command: str) -> frozenset[str]:
    program, *words = command.split()
    with redirect_stdout(StringIO()) as shown, pytest.raises(SystemExit, match=r"^0$"):
        PROGRAMS[program]([*words, "--help"])
    return frozenset(re.findall(r"--[a-z][a-z-]*", shown.getvalue()))


def command_of(words: list[str]) -> str:
    """The words that choose a command, without its arguments."""
    command = words[0]
    for word in words[1:]:
        if command not in WITH_COMMANDS_BELOW or not re.fullmatch(r"[a-z][a-z-]*", word):
            break
        command += f" {word}"
    return command


def lines_with_commands(path: Path) -> list[list[str]]:
    """Return the commands between backticks or on a separate line that begin with one of our programs."""
    text = path.read_text().replace("\\\n", " ")
    found = re.findall(r"(?:^|[`/=$#] ?)((?:bruce|bruce-spark) +[a-z-]+[^`\n]*)", text, re.MULTILINE)
    return [words for line in found if (words := line.split())[1] in COMMANDS or words[0] == "bruce-spark"]


FILES: Final = [
    *PAGES, CHANGELOG, *sorted((ROOT / "conf").iterdir()),
    *(path for path in sorted((ROOT / "deploy").rglob("*")) if path.is_file()),
]  # fmt: skip


@pytest.mark.parametrize("path", [path for path in FILES if lines_with_commands(path)], ids=name_of)
def test_commands_that_are_named_have_these_options(path: Path) -> None:
    for words in lines_with_commands(path):
        line = re.sub('"[^"]*"', "", " ".join(words))
        options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", line))
        assert options <= options_of(command_of(words)), words


def test_shown_commands_cover_every_subcommand() -> None:
    shown = {words[1] for path in FILES for words in lines_with_commands(path) if words[0] == "bruce"}
    assert shown >= COMMANDS.keys()


def test_blocks_have_a_language() -> None:
    assert [f"{block.page}:{block.line}" for block in all_blocks() if not block.language] == []


FORMULAS: Final = {
    "bytes per second of traffic x seconds of outage to survive x 2",
    "sent = delivered + discarded + missing",
}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "performance.md"], ids=name_of)
def test_shell_commands_are_fenced(page: Path) -> None:
    """Blocks that are only indented are not tried; the page left out is about commands that take minutes."""
    indented = re.findall(r"(?<=\n\n) {4}(\S.*)", prose_of(page))
    assert [line for line in indented if line not in FORMULAS] == []
