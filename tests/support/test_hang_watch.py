"""The alarm that shows where a test hangs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pytest

from support.processes import run_program

TESTS: Final = Path(__file__).parents[1]
HANGING: Final = """
import time
from support import hang_watch
hang_watch.HANG_S = 1.5
hang_watch.REARM_S = {rearm_s}
watch = hang_watch.HangWatch()
watch.start()
for _ in range(10):
    watch.rearm_if_due()
    time.sleep(0.2)
"""


@pytest.mark.process
@pytest.mark.parametrize(("rearm_s", "alarms"), [(100, 1), (0, 0)], ids=["hangs", "goes on"])
def test_only_a_hang_shows_its_stack(rearm_s: float, alarms: int) -> None:
    program = HANGING.format(rearm_s=rearm_s)
    shown = run_program(sys.executable, "-c", program, time_limit_s=60, PYTHONPATH=str(TESTS))
    assert shown.count("Timeout (") == alarms
    assert shown.count('File "<string>", line 10 in <module>') == alarms
