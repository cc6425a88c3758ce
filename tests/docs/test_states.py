"""docs/states.md and the tables of states in docs/architecture.md are what the tables of the code say."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from bruce_mp.router import pause_protocol
from bruce_mp.router.pause_protocol import ScopeEvent
from bruce_mp.slab import states
from support.doc_pages import ROOT

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


@pytest.mark.process
def test_the_states_page_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "draw_states.py")]
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert (ROOT / "docs" / "states.md").read_text() == drawn, "run: scripts/draw_states.py > docs/states.md"


def test_the_architecture_lists_the_run_states() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (?:\w+) \| .*? \| ?([^|]*)\|$", ARCHITECTURE, re.MULTILINE)
    shown = {state: set(re.findall(r"`(\w+)`", after)) for state, after in rows}
    assert shown == {state.name: {after.name for after in goes_on} for state, goes_on in states.TRANSITIONS.items()}


def test_the_architecture_has_the_states_of_scopes() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| [^|]+ \| ([A-Z_, ]+) \|$", ARCHITECTURE, re.MULTILINE)
    left_by: dict[str, list[str]] = {}
    for (state, event), after in pause_protocol.TRANSITIONS.items():
        if event is not ScopeEvent.RESYNC and after is not state:
            left_by.setdefault(state.name, []).append(event.name)
    assert {state: events.split(", ") for state, events in rows} == left_by
