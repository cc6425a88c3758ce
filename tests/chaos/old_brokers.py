"""Chaos on brokers without idempotence: no message is lost, and every duplicate was counted as possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from chaos.runs import Run
from support.chaos import AT_LEAST_ONCE
from support.chaos_sites import FaultKind

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["V0_10", "old_run"]

FAULT_KINDS: Final = (FaultKind.BROKER, FaultKind.PROCESS)
"""Faults for these brokers: their leaders cannot be moved, and a restart may remove the slab with its count of possible
duplicates.
"""


class Release(NamedTuple):
    """A release, the settings of its brokers, and its codecs."""

    version: str
    config: Mapping[str, str]
    codecs: tuple[str, ...]


V0_10: Final = Release("0.10.2.2", {"unclean.leader.election.enable": "false"}, ("none", "gzip", "snappy", "lz4"))
"""By default, this release elects a replica that lacks records, which are then lost."""


def old_run(seed: int, seconds: float, rate: float, fault_kinds: Collection[FaultKind] = FAULT_KINDS) -> Run:
    return Run(seed, seconds, rate, fault_kinds, AT_LEAST_ONCE, V0_10.codecs)
