"""The messages of kafka-python, without its clients.

Whoever imports a part of `kafka` gets `kafka/__init__.py` with it, which brings producer, consumer and admin client and
all of their networking: 6 MB in each process, of which nothing is used.  So `kafka` is entered as a package whose
`__init__` has not run.  It runs when somebody asks the package for a name: what else in this process wants
`kafka.KafkaConsumer` gets it.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any, Final

__all__ = ["messages"]

_PACKAGE: Final = "kafka"


@cache
def messages(group: str) -> Any:
    """The module `kafka.protocol.<group>`; it is loaded when it is first asked for."""
    if _PACKAGE not in sys.modules:
        _enter()
    return import_module(f"{_PACKAGE}.protocol.{group}")


def _enter() -> None:
    spec = find_spec(_PACKAGE)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("kafka-python is not installed", name=_PACKAGE)
    package, loader = module_from_spec(spec), spec.loader

    def look_up(name: str) -> Any:
        """What the package lacks may be in its `__init__` (PEP 562)."""
        del package.__dict__["__getattr__"]
        loader.exec_module(package)
        return getattr(package, name)

    package.__dict__["__getattr__"] = look_up
    sys.modules[_PACKAGE] = package
