"""The alarm that shows where a test hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

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
    command = [sys.executable, "-c", HANGING.format(rearm_s=rearm_s)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert done.stderr.count("Timeout (") == alarms
    assert done.stderr.count('File "<string>", line 10 in <module>') == alarms
