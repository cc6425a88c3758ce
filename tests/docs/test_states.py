"""docs/states.md has the transitions of the code, and docs/architecture.md each state of messages and scopes."""

from __future__ import annotations

import re
import sys

import pytest

from bruce_mp.router import pause_protocol
from bruce_mp.slab import states
from support.doc_pages import ROOT
from support.processes import run_program

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


@pytest.mark.process
def test_the_states_page_is_up_to_date() -> None:
    drawn = run_program(sys.executable, ROOT / "scripts" / "draw_states.py", time_limit_s=60)
    assert (ROOT / "docs" / "states.md").read_text() == drawn, "run: scripts/draw_states.py > docs/states.md"


def test_the_architecture_lists_each_state_once() -> None:
    cells = re.findall(r"^\| ((?:`[A-Z_]+`(?:, )?)+) \|", ARCHITECTURE, re.MULTILINE)
    scopes = {state.name for state, _ in pause_protocol.TRANSITIONS}
    assert sorted(re.findall(r"\w+", " ".join(cells))) == sorted({state.name for state in states.TRANSITIONS} | scopes)
