"""The site of the documentation: complete, searchable, and without a network.  A broken link is an error.

A build takes seconds, so a site with four broken links on a page serves all tests but those with a browser.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from bruce_mp import client, spark
from bruce_mp.cli.commands import COMMANDS
from support.doc_pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.browser import Browser

pytestmark = pytest.mark.process
of_the_site = pytest.mark.browser
"""A build takes long: the tests of the site run where the one with the browser runs, and share its build."""

COPIED: Final = ("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md", "clients", "docs", "scripts")
LINKED: Final = (".venv", "LICENSE", "bruce_mp", "deploy", "tests")
BROKEN: Final = {
    "[a](missing.md)": "'missing.md'",
    "[a](delivery.md#missing)": "'missing'",
    "[a](#missing)": "'missing'",
    "[a](../deploy/missing.yml)": "'../deploy/missing.yml'",
}
LOADS: Final = {"audio": "src", "iframe": "src", "img": "src", "link": "href", "script": "src", "source": "src"}


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [str(root / "scripts" / "docs"), str(site)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


class FaultySite(NamedTuple):
    """A site with the links of BROKEN at the end of a page, and what its build said."""

    files: Path
    first_line: int
    built: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    done = build(ROOT, directory)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> FaultySite:
    """Build the site with broken links. It has all pages, because a fault does not end the build."""
    root = tmp_path_factory.mktemp("faulty")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("node_modules", "target"))
        else:
            shutil.copy(ROOT / name, root)
    for name in LINKED:
        (root / name).symlink_to(ROOT / name)
    page = root / "docs" / "metrics.md"
    text = page.read_text()
    page.write_text("\n\n".join([text, *BROKEN]))
    return FaultySite(root / "site", text.count("\n") + 3, build(root, root / "site"))


class Attributes(HTMLParser):
    """The tags of a page with their attributes."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))


def loaded_by(site: Path) -> Iterator[str]:
    """Yield the addresses that pages and style sheets load."""
    for page in site.rglob("*.html"):
        for tag, attributes in Attributes(page).found:
            if tag in LOADS:
                yield attributes.get(LOADS[tag], "")
    for sheet in site.rglob("*.css"):
        yield from re.findall(r"(?:url\(|@import )[\"']?([^\"')]*)", sheet.read_text())


def test_pages_load_nothing_from_another_host(faulty: FaultySite) -> None:
    loaded = set(loaded_by(faulty.files))
    assert any("site.css" in address for address in loaded)
    assert [address for address in loaded if re.match(r"(?!data:)\w+:|//", address)] == []


def test_the_navigation_has_every_page(faulty: FaultySite) -> None:
    links = {
        attributes.get("href", "") for tag, attributes in Attributes(faulty.files / "README.html").found if tag == "a"
    }
    pages = {page.relative_to(ROOT).with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    assert {str(page) for page in pages} <= links


def test_the_navigation_begins_with_operators(faulty: FaultySite) -> None:
    captions = re.findall(r'class="caption-text">([^<]*)<', (faulty.files / "README.html").read_text())
    assert captions == [f"For {reader}" for reader in ("operators", "programmers", "data engineers", "contributors")]


def test_the_reference_has_the_public_names_and_all_commands(faulty: FaultySite) -> None:
    text = (faulty.files / "docs" / "reference.html").read_text()
    names = {f"bruce_mp.client.{name}" for name in client.__all__} | {
        f"bruce_mp.spark.{name}" for name in spark.__all__
    }
    ids = set(re.findall(r'id="([^"]*)"', text))
    shown = {name.rpartition(".")[2] for name in ids}
    assert {name.rpartition(".")[2] for name in names} <= shown
    assert {"flush", "send", "attempt"} <= shown
    assert {f"bruce-{name}" for name in COMMANDS} <= ids


def test_the_diagrams_are_pictures(faulty: FaultySite) -> None:
    drawn = (faulty.files / "docs" / "states.html").read_text().count('<img class="diagram"')
    assert drawn == (ROOT / "docs" / "states.md").read_text().count("```mermaid")


def test_a_broken_link_is_an_error_with_its_place_and_nothing_else_is(faulty: FaultySite) -> None:
    assert faulty.built.returncode == 1
    errors = faulty.built.stderr
    faults = re.findall(r"docs/metrics\.md:(\d+): .* not found.*?('[^']*') \[", errors)
    assert faults == [(str(faulty.first_line + 2 * n), fault) for n, fault in enumerate(BROKEN.values())], errors
    assert errors.count("WARNING") == len(BROKEN)


def test_the_search_works_from_files(site: Path, browser: Browser) -> None:
    browser.open(f"{(site / 'search.html').as_uri()}?q=doorbell")
    browser.wait(lambda: "Pipes as doorbells" in browser.texts("ul.search li a"), "a result")
    assert browser.run("return performance.getEntriesByType('resource').map((each) => each.name)") == []
    assert browser.console_errors() == []
