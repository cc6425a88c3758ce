"""The manual pages: complete, accepted by the programs that show them, and part of the packages."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp import cli
from bruce_mp.cli.commands import COMMANDS
from bruce_mp.spark import cli as spark_cli
from support.processes import run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

pytestmark = pytest.mark.process

ROOT: Final = Path(__file__).parents[2]
OF_THE_PACKAGES: Final = {"bruce.1", *(f"bruce-{name}.1" for name in COMMANDS)}
CHECKERS: Final = {"groff": ("-man", "-ww", "-z", "-rCHECKSTYLE=3"), "mandoc": ("-Tlint",)}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("man1")
    run_program(sys.executable, ROOT / "scripts" / "render_man.py", directory, time_limit_s=60)
    return directory


def test_each_command_has_a_page(pages: Path) -> None:
    assert {path.name for path in pages.iterdir()} == {*OF_THE_PACKAGES, "bruce-spark.1"}


@pytest.mark.parametrize(
    ("main", "page", "words"),
    [
        *((spark_cli.main, "bruce-spark", name) for name in ("backfill", "replay", "audit", "fleet", "ledger")),
        *((cli.main, f"bruce-{name}", name) for name in COMMANDS),
        (cli.main, "bruce-slab", "slab export"),
        (cli.main, "bruce-token", "token oidc"),
    ],
)
def test_a_page_has_the_options_of_the_help(
    pages: Path, capsys: pytest.CaptureFixture[str], main: Callable[[Sequence[str]], int], page: str, words: str
) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main([*words.split(), "--help"])
    options = set(re.findall(r"^  (--[a-z][a-z-]*)", capsys.readouterr().out, re.MULTILINE))
    text = (pages / f"{page}.1").read_text().replace("\\-", "-")
    assert options - set(re.findall(r"\\fB(--[a-z][a-z-]*)", text)) == set()


def test_a_page_has_the_exit_statuses_of_its_command(pages: Path) -> None:
    text = (pages / "bruce-check.1").read_text()
    assert ".SH EXIT STATUS\n0 if the books balance, 3 if they do not, 4 if " in text


@pytest.mark.parametrize("program", CHECKERS)
def test_the_pages_have_no_faults(pages: Path, program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    for page in pages.iterdir():
        assert run_program(program, *CHECKERS[program], page, time_limit_s=60) == ""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("build", "program", "listing"),
    [("debian/build", "dpkg-deb", "dpkg-deb --contents"), ("rpm/build", "rpmbuild", "rpm -qlp")],
)
def test_a_package_has_the_pages_of_its_commands(tmp_path: Path, build: str, program: str, listing: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    run_program(ROOT / "deploy" / build, tmp_path, time_limit_s=400, PYTHON=sys.executable)
    [package] = tmp_path.iterdir()
    listed = run_program(*listing.split(), package, time_limit_s=60)
    found = re.findall(r"/usr/share/man/man1/(.+)\.gz$", listed, re.MULTILINE)
    assert set(found) == OF_THE_PACKAGES
