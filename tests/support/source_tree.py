"""The modules of bruce_mp as syntax trees, with their imports: for rules about the source as a whole."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Module", "classes", "cycles", "importers", "imports", "modules"]

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Module:
    """One module; `name` is dotted."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


@cache
def modules() -> Mapping[str, Module]:
    """Parse all modules of the package, by dotted name."""
    return {found.name: found for path in sorted((ROOT / "bruce_mp").rglob("*.py")) for found in [_module(path)]}


def _module(path: Path) -> Module:
    text = path.read_text()
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(name, path, text, ast.parse(text))


@cache
def imports() -> Mapping[str, frozenset[str]]:
    """Return the modules of the package that each module imports: anywhere, for types too, and by name."""
    return {name: frozenset(_imports(module)) - {name} for name, module in modules().items()}


def _imports(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        for name in _named(node):
            if name in modules():
                yield name


def _named(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [each.name for each in names]
        case ast.ImportFrom(module=str(package), names=names):
            found = [f"{package}.{each.name}" for each in names]
            return [name if name in modules() else package for name in found]
        case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=[first, *_]):
            return [first.value] if isinstance(first, ast.Constant) and isinstance(first.value, str) else []
    return []


def importers(name: str) -> set[str]:
    """Return the modules that import a module."""
    return {each for each, targets in imports().items() if name in targets}


def classes() -> Mapping[str, list[str]]:
    """Return the modules that define each class, by the class's name; a module occurs once for each definition."""
    found: dict[str, list[str]] = {}
    for module in modules().values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(module.name)
    return found


def cycles(graph: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Return the groups of modules that reach each other, sorted."""
    reached = {name: _reached(graph, name) for name in graph}
    groups = {frozenset(each for each in reached[name] if name in reached[each]) for name in graph}
    return sorted(sorted(group) for group in groups if group)


def _reached(graph: Mapping[str, frozenset[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        fresh = graph[waiting.pop()] - found
        found |= fresh
        waiting += fresh
    return found
