"""`python activated.py NAMES FIRST,SECOND,... COMMAND...` becomes COMMAND with sockets passed as by systemd.

FIRST, SECOND, ... are descriptors that this process inherited. They become 3, 4, ..., and the variables of
sd_listen_fds(3) describe them. NAMES are the names of the sockets, separated by colons. `activated` builds such a
command.
"""

from __future__ import annotations

import fcntl
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

FIRST = 3
ABOVE_ALL = 500  # more than any descriptor in use, so that no copy replaces another


def activated(command: list[str], sockets: Mapping[str, socket.socket]) -> list[str]:
    """Return the command with sockets, which it must inherit."""
    if not sockets:
        return command
    numbers = ",".join(str(each.fileno()) for each in sockets.values())
    return [sys.executable, "-I", "-S", __file__, ":".join(sockets), numbers, *command]


def main() -> None:
    names, numbers, *command = sys.argv[1:]
    copies = [fcntl.fcntl(int(number), fcntl.F_DUPFD, ABOVE_ALL) for number in numbers.split(",")]
    for place, descriptor in enumerate(copies, FIRST):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(copies)), LISTEN_FDNAMES=names)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
