"""The messages of kafka-python, without its clients.

An import of a part of `kafka` runs `kafka/__init__.py`, which loads producer, consumer and admin client with their
networking: 6 MB in each process, all unused.  So this module registers `kafka` as a package without running its
`__init__`.  The first access to a name of the package runs `__init__`, so other code in the process can use
`kafka.KafkaConsumer`.

Separate because `kafka_api` need not know how the package is loaded.
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
    """Return the module `kafka.protocol.<group>`, and load it at the first call."""
    if _PACKAGE not in sys.modules:
        _register_package()
    return import_module(f"{_PACKAGE}.protocol.{group}")


def _register_package() -> None:
    spec = find_spec(_PACKAGE)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("kafka-python is not installed", name=_PACKAGE)
    package, loader = module_from_spec(spec), spec.loader

    def look_up(name: str) -> Any:
        """Run the package's `__init__` for a missing name (PEP 562)."""
        del package.__dict__["__getattr__"]
        loader.exec_module(package)
        return getattr(package, name)

    package.__dict__["__getattr__"] = look_up
    sys.modules[_PACKAGE] = package
