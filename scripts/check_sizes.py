#!/usr/bin/env python3
"""Measure the functions and modules of bruce_mp, print a table, and fail if they exceed the limits below.

    scripts/check_sizes.py [PACKAGE_DIRECTORY]

The limits come from code bases with small functions and modules of one subject (h11, wsproto, trio). The length of a
function is the number of lines from its `def` to its last line, without the docstring. The lines of a nested function
count for it and for the enclosing function. In Cython sources, only the length of the module is measured.
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
"""Pairs of a percentage and a number of lines: that percentage of the functions must have at most so many lines."""
MODULE_LIMIT: Final = 500  # lines
SUFFIXES: Final = (".py", ".pyx", ".pxd")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Measured:
    """A function or a module with its length."""

    location: str
    line_count: int
    is_annotated: bool = True
    """False for a function of which an argument or the result has no type annotation."""


def measure_module(path: Path) -> Measured:
    return Measured(str(path), len(path.read_text().splitlines()))


def measure_functions(path: Path) -> Iterator[Measured]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Function):
            yield Measured(f"{path}:{node.lineno} {node.name}", _line_count(node), _is_annotated(node))


def _line_count(function: Function) -> int:
    return (function.end_lineno or 0) - function.lineno + 1 - _docstring_line_count(function)


def _docstring_line_count(function: Function) -> int:
    first_statement = function.body[0]
    if ast.get_docstring(function, clean=False) is None:
        return 0
    return (first_statement.end_lineno or 0) - first_statement.lineno + 1


def _is_annotated(function: Function) -> bool:
    signature = function.args
    named = [*signature.posonlyargs, *signature.args, *signature.kwonlyargs]
    others = [argument for argument in (signature.vararg, signature.kwarg) if argument is not None]
    missing = [each.arg for each in (*named, *others) if each.annotation is None and each.arg not in {"self", "cls"}]
    return function.returns is not None and not missing


def percentile(ordered: Sequence[int], percent: int) -> int:
    """Return the smallest value that at least `percent` % of the sorted values do not exceed; 0 for no values."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0


def find_excesses(functions: Sequence[Measured], modules: Sequence[Measured]) -> Iterator[str]:
    lengths = sorted(function.line_count for function in functions)
    for percent, limit in PERCENTILE_LIMITS:
        if (found := percentile(lengths, percent)) > limit:
            yield f"{percent} % of the functions should have at most {limit} lines, not {found}. {_longest(functions)}"
    for module in modules:
        if module.line_count > MODULE_LIMIT:
            yield f"{module.location} has {module.line_count} lines; split it (at most {MODULE_LIMIT})."
    for function in functions:
        if not function.is_annotated:
            yield f"{function.location} has an argument or a result without annotation."


def _longest(functions: Sequence[Measured]) -> str:
    longest = sorted(functions, key=lambda function: function.line_count, reverse=True)[:10]
    return "The longest: " + ", ".join(f"{function.location} ({function.line_count})" for function in longest)


def format_table(functions: Sequence[Measured], modules: Sequence[Measured]) -> Iterator[str]:
    lengths = sorted(function.line_count for function in functions)
    yield f"{'':24} {'measured':>8} {'limit':>6}"
    for percent, limit in PERCENTILE_LIMITS:
        yield f"{f'function lines, p{percent}':24} {percentile(lengths, percent):8} {limit:6}"
    yield f"{'longest module':24} {max((module.line_count for module in modules), default=0):8} {MODULE_LIMIT:6}"
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
