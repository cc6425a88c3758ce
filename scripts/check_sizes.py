#!/usr/bin/env python3
"""Measure the functions and modules of bruce_mp, print a table, and fail if they exceed our limits.

    scripts/check_sizes.py [PACKAGE_DIRECTORY]

The limits come from exemplary code bases (h11, wsproto, trio): small functions, modules with one subject. The length of
a function is counted from its `def` line to its last line, without its docstring. A nested function counts for itself
and for the enclosing function. Of Cython sources only the length of the module is measured.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PERCENTILE_LIMITS: Final = ((50, 7), (90, 25), (99, 60))
"""(percentile, most lines of a function at this percentile)"""
MODULE_LIMIT: Final = 500
SUFFIXES: Final = (".py", ".pyx", ".pxd")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Measured:
    """A function or module. `is_annotated`: all arguments and the result of the function have types."""

    location: str
    lines: int
    is_annotated: bool = True


def measure_module(path: Path) -> Measured:
    return Measured(str(path), len(path.read_text().splitlines()))


def measure_functions(path: Path) -> Iterator[Measured]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Function):
            yield Measured(f"{path}:{node.lineno} {node.name}", _line_count(node), _is_annotated(node))


def _line_count(function: Function) -> int:
    return (function.end_lineno or 0) - function.lineno + 1 - _docstring_lines(function)


def _docstring_lines(function: Function) -> int:
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is None:
        return 0
    return (first.end_lineno or 0) - first.lineno + 1


def _is_annotated(function: Function) -> bool:
    signature = function.args
    named = [*signature.posonlyargs, *signature.args, *signature.kwonlyargs]
    others = [argument for argument in (signature.vararg, signature.kwarg) if argument is not None]
    missing = [each.arg for each in (*named, *others) if each.annotation is None and each.arg not in {"self", "cls"}]
    return function.returns is not None and not missing


def percentile(ordered: Sequence[int], percent: int) -> int:
    """Return the smallest value that `percent` of 100 values do not exceed (nearest rank); 0 for no values."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0


def find_excesses(functions: Sequence[Measured], modules: Sequence[Measured]) -> Iterator[str]:
    lengths = sorted(function.lines for function in functions)
    for percent, limit in PERCENTILE_LIMITS:
        if (found := percentile(lengths, percent)) > limit:
            yield f"{percent} % of the functions should have at most {limit} lines, not {found}. {_longest(functions)}"
    for module in modules:
        if module.lines > MODULE_LIMIT:
            yield f"{module.location} has {module.lines} lines; split it (at most {MODULE_LIMIT})."
    for function in functions:
        if not function.is_annotated:
            yield f"{function.location} has an argument or a result without annotation."


def _longest(functions: Sequence[Measured]) -> str:
    longest = sorted(functions, key=lambda function: function.lines, reverse=True)[:10]
    return "The longest: " + ", ".join(f"{function.location} ({function.lines})" for function in longest)


def format_table(functions: Sequence[Measured], modules: Sequence[Measured]) -> Iterator[str]:
    lengths = sorted(function.lines for function in functions)
    yield f"{'':24} {'measured':>8} {'limit':>6}"
    for percent, limit in PERCENTILE_LIMITS:
        yield f"{f'function lines, p{percent}':24} {percentile(lengths, percent):8} {limit:6}"
    yield f"{'longest module':24} {max((module.lines for module in modules), default=0):8} {MODULE_LIMIT:6}"
    yield f"{'not annotated':24} {sum(not function.is_annotated for function in functions):8} {0:6}"
    yield f"{len(functions)} functions in {len(modules)} modules"


def main(arguments: Sequence[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).parents[1] / "bruce_mp"
    paths = sorted(path for path in root.rglob("*") if path.suffix in SUFFIXES)
    modules = [measure_module(path) for path in paths]
    functions = [function for path in paths if path.suffix == ".py" for function in measure_functions(path)]
    print("\n".join(format_table(functions, modules)))
    excesses = list(find_excesses(functions, modules))
    for excess in excesses:
        print(excess, file=sys.stderr)
    return 1 if excesses else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
