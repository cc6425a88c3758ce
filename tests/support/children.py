"""Processes that run a function of a test, and end with the block that started them."""

from __future__ import annotations

from contextlib import contextmanager
from multiprocessing import get_context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.context import ForkProcess


@contextmanager
def child(target: Callable[..., None], *arguments: object) -> Iterator[ForkProcess]:
    """Fork a process that calls `target(*arguments)`; the end of the block kills it if it still runs."""
    process = get_context("fork").Process(target=target, args=arguments)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
