"""Generate the parts of the page docs/reference.md that come from the code: docstrings, and the help of commands."""

from __future__ import annotations

from dataclasses import is_dataclass
from inspect import isabstract
from typing import TYPE_CHECKING, Final

from bruce_mp import client, errors, spark
from bruce_mp.client import log_handler
from scripts.render_man import all_commands

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

__all__ = ["reference"]

ALSO_RAISED: Final = ("LocalProtocolError", "BruceError")
"""Errors of `bruce_mp.errors` that the client raises, or that are bases of its errors."""
WITH_INHERITED_MEMBERS: Final = "StreamClient"
"""Class with a reference that includes the members of its private base, which is also the base of `TcpClient`."""
PUBLIC: Final = {getattr(client, name) for name in client.__all__} | {getattr(errors, name) for name in ALSO_RAISED}
"""Classes with a place in the reference, to which subclasses can link."""


def reference() -> str:
    """Return the reference as Markdown."""
    return "\n\n".join(["", *_python_client(), *_spark(), *_commands()])


def _commands() -> Iterator[str]:
    yield "## Commands"
    for command in all_commands():
        yield f"### {command.parser.prog}\n\n```text\n{command.parser.format_help()}```"


def _python_client() -> Iterator[str]:
    yield "## Python client"
    raised = [name for name in client.__all__ if name.endswith("Error")]
    others = [name for name in client.__all__ if name not in raised]
    clients = sorted((name for name in others if name.endswith("Client")), key=_ancestor_count)
    yield from (_documented(client, name) for name in clients)
    yield from (_documented(log_handler, name) for name in log_handler.__all__)
    yield from (_documented(client, name) for name in others if name not in clients)
    yield "### Errors"
    yield from (_documented(client, name) for name in sorted(raised, key=_ancestor_count))
    yield from (_documented(errors, name) for name in ALSO_RAISED)


def _ancestor_count(name: str) -> int:
    """Return the number of a class and its ancestors. As a sort key, it puts a base before its subclasses."""
    return len(getattr(client, name).__mro__)


def _spark() -> Iterator[str]:
    yield "## Spark"
    yield from (_documented(spark, name) for name in spark.__all__)


def _documented(module: ModuleType, name: str) -> str:
    """Return the directive that shows the docstrings of a class or function."""
    documented = getattr(module, name)
    if not isinstance(documented, type):
        return f"```{{eval-rst}}\n.. autofunction:: {module.__name__}.{name}\n```"
    options = [":members:"]
    if documented.__base__ in PUBLIC:
        options.append(":show-inheritance:")
    if name == WITH_INHERITED_MEMBERS:
        options.append(":inherited-members: Client")
    created_by_users = not (isabstract(documented) or is_dataclass(documented))
    signature = "" if created_by_users else "()"
    listed = "\n   ".join(options)
    return f"```{{eval-rst}}\n.. autoclass:: {module.__name__}.{name}{signature}\n   {listed}\n```"
