"""`python run.py CONFIG INPUT ROUTER DISPATCHER STATUS`: the supervisor with other mains."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bruce_mp.config.load import load_config
from bruce_mp.errors import BruceError
from bruce_mp.supervisor import reload
from bruce_mp.supervisor.process import run
from bruce_mp.supervisor.processes import managed_process, watchdog
from bruce_mp.supervisor.processes.programs import PROGRAMS, Programs

HUNG_S = "FAKE_DAEMON_HUNG_S"
HUNG_BOOT_S = "FAKE_DAEMON_HUNG_BOOT_S"
RELOAD_S = "FAKE_DAEMON_RELOAD_S"
STOP_S = "FAKE_DAEMON_STOP_S"
"""Environment variables for the seconds after which a process is killed: one that hangs, hangs in its boot, does not
apply a new configuration, or does not exit.
"""


def main() -> int:
    config_path, *programs = [*sys.argv[1:], PROGRAMS.journal]
    watchdog.HUNG_S = float(os.environ.get(HUNG_S, watchdog.HUNG_S))
    watchdog.HUNG_BOOT_S = float(os.environ.get(HUNG_BOOT_S, watchdog.HUNG_BOOT_S))
    reload.CONFIRM_TIMEOUT_S = float(os.environ.get(RELOAD_S, reload.CONFIRM_TIMEOUT_S))
    managed_process.STOP_TIMEOUT_S = float(os.environ.get(STOP_S, managed_process.STOP_TIMEOUT_S))
    sys.path.insert(0, str(Path(__file__).parents[2]))
    try:
        return run(load_config(Path(config_path)), Path(config_path), programs=Programs(*programs))
    except BruceError as error:
        print(f"bruce: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
