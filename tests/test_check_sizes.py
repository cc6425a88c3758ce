"""The script that measures the code, measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parents[1] / "scripts" / "check_sizes.py"


def check(package: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, package], capture_output=True, text=True, timeout=60, check=False)


def figures(output: str) -> dict[str, int]:
    """Return the name and the measured size of each row of the table."""
    rows = [line.rsplit(maxsplit=2) for line in output.splitlines()[1:-1]]
    return {name: int(measured) for name, measured, _limit in rows}


def test_a_docstring_does_not_make_a_function_long(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text('def f() -> int:\n    """One.\n\n    Two.\n    """\n    return 1\n')
    done = check(tmp_path)
    assert done.returncode == 0
    assert figures(done.stdout) == {
        "function lines, p50": 2,
        "function lines, p90": 2,
        "function lines, p99": 2,
        "longest module": 6,
        "not annotated": 0,
    }


def test_percentiles_are_those_of_nearest_rank(tmp_path: Path) -> None:
    bodies = [f"def f{n}() -> None:\n" + "    pass\n" * n for n in range(1, 11)]
    (tmp_path / "m.py").write_text("".join(bodies))
    found = figures(check(tmp_path).stdout)
    assert (found["function lines, p50"], found["function lines, p90"], found["function lines, p99"]) == (6, 10, 11)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("def f() -> None:\n" + "    pass\n" * 7, "50 % of the functions should have at most 7 lines, not 8."),
        ("x = 1\n" * 501, "m.py has 501 lines; split it (at most 500)."),
        ("def f(x) -> None: ...\n", "m.py:1 f has an argument or a result without annotation."),
        ("def f(*x) -> None: ...\n", "m.py:1 f has an argument or a result without annotation."),
        ("async def f(x: int): ...\n", "m.py:1 f has an argument or a result without annotation."),
    ],
)
def test_an_exceeded_limit_is_named(tmp_path: Path, source: str, complaint: str) -> None:
    (tmp_path / "m.py").write_text(dedent(source))
    done = check(tmp_path)
    assert done.returncode == 1
    assert complaint in done.stderr


def test_self_needs_no_annotation(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("class C:\n    def f(self) -> None: ...\n")
    assert check(tmp_path).returncode == 0


@pytest.mark.parametrize("name", ["m.pyx", "m.pxd"])
def test_a_long_cython_module_is_reported(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("# a line\n" * 501)
    done = check(tmp_path)
    assert done.returncode == 1
    assert f"{name} has 501 lines; split it (at most 500)." in done.stderr
