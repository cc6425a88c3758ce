#!/usr/bin/env python3
"""Draw the state machines of the code as the page docs/states.md. A test fails if the page is out of date.

scripts/draw_states.py > docs/states.md
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.protocol.kafka import connection_events
from bruce_mp.router import pause_protocol
from bruce_mp.slab import states
from bruce_mp.slab.layout import RunState
from bruce_mp.supervisor.processes import lifecycle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from enum import Enum

INTRODUCTION: Final = """\
# The state machines

`scripts/draw_states.py` draws these machines from the tables in the code. [Architecture](architecture.md) defines the
states. "[*]" marks the beginning and the end of a machine.
"""


class Arrow(NamedTuple):
    """A transition from a state to the next, with its label."""

    source: Enum
    target: Enum
    label: str


class Machine(NamedTuple):
    """One state machine, which has a section of the page."""

    title: str
    text: str
    first_states: Sequence[Enum]
    arrows: Sequence[Arrow]


MACHINES: Final = (
    Machine(
        "A run or a record",
        "`TRANSITIONS` in `bruce_mp/slab/states.py`. Each arrow names the process that stores the next state.",
        [RunState.OPEN],
        [
            Arrow(state, after, role.value)
            for state, following in states.TRANSITIONS.items()
            for after, role in following.items()
        ],
    ),
    Machine(
        "A partition or a dispatcher, as the router sees it",
        "`TRANSITIONS` in `bruce_mp/router/pause_protocol.py`. A partition begins in FLOWING, a dispatcher in SYNCING; "
        "only a dispatcher gets RESYNC.",
        [pause_protocol.ScopeState.FLOWING, pause_protocol.ScopeState.SYNCING],
        [Arrow(state, after, event.value) for (state, event), after in pause_protocol.TRANSITIONS.items()],
    ),
    Machine(
        "A connection to a broker",
        "`TRANSITIONS` in `bruce_mp/protocol/kafka/connection_events.py`.",
        [connection_events.ConnectionState.DISCONNECTED],
        [Arrow(state, after, step.value) for (state, step), after in connection_events.TRANSITIONS.items()],
    ),
    Machine(
        "A process, as the supervisor sees it",
        "`TRANSITIONS` in `bruce_mp/supervisor/processes/lifecycle.py`.",
        [lifecycle.ProcessState.WAITING],
        [
            Arrow(state, after, event.name.lower())
            for state, following in lifecycle.TRANSITIONS.items()
            for event, after in following.items()
        ],
    ),
)


def render() -> str:
    return "\n".join([INTRODUCTION, *(line for machine in MACHINES for line in _section(machine))])


def _section(machine: Machine) -> Iterator[str]:
    yield f"## {machine.title}\n\n{machine.text}\n\n```mermaid\nstateDiagram-v2"
    yield from (f"    [*] --> {state.name}" for state in machine.first_states)
    yield from _arrow_lines(machine.arrows)
    yield from (f"    {state} --> [*]" for state in _last_states(machine.arrows))
    yield "```\n"


def _arrow_lines(arrows: Sequence[Arrow]) -> Iterator[str]:
    """Yield one line for each pair of states, labeled with the labels of all arrows from the one to the other."""
    labels: dict[tuple[str, str], list[str]] = {}
    for arrow in arrows:
        labels.setdefault((arrow.source.name, arrow.target.name), []).append(arrow.label)
    yield from (f"    {source} --> {target}: {', '.join(texts)}" for (source, target), texts in labels.items())


def _last_states(arrows: Sequence[Arrow]) -> list[str]:
    """Return the names of the states from which no arrow leads to another state."""
    with_exit = {arrow.source for arrow in arrows if arrow.target is not arrow.source}
    return list(dict.fromkeys(arrow.target.name for arrow in arrows if arrow.target not in with_exit))


if __name__ == "__main__":
    sys.stdout.write(render())
