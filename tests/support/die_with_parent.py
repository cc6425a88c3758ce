"""`python die_with_parent.py PARENT COMMAND...` becomes COMMAND, which the kernel kills when PARENT ends.

So a killed test run, which cannot clean up, leaves no process behind. This is a wrapper and not a `preexec_fn`, because
Python must not run between fork and exec in a process with threads. The setting survives `exec`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == int(parent):  # otherwise the parent ended before the call
        os.execv(command[0], command)


if __name__ == "__main__":
    main()
