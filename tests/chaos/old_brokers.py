"""Chaos on brokers from before idempotence: nothing may be lost, and what is there twice was counted as possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from chaos.runs import Run
from support.chaos import AT_LEAST_ONCE
from support.chaos_sites import Harm

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["V0_10", "old_run"]

HARMS: Final = (Harm.BROKER, Harm.PROCESS)
"""No leader can be moved there; and a restart may remove the slab, and the count of possible duplicates with it."""


class Release(NamedTuple):
    """A release, what its brokers need to be told, and the codecs that it takes."""

    version: str
    config: Mapping[str, str]
    codecs: tuple[str, ...]


V0_10: Final = Release("0.10.2.2", {"unclean.leader.election.enable": "false"}, ("none", "gzip", "snappy", "lz4"))
"""By default it lets a replica lead that has not got everything, and forgets the rest."""


def old_run(seed: int, seconds: float, rate: float, harms: Collection[Harm] = HARMS) -> Run:
    return Run(seed, seconds, rate, harms, AT_LEAST_ONCE, V0_10.codecs)
