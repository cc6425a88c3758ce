"""A main that is ready at once, records its control messages, and ends as the real ones do."""

from __future__ import annotations

import os
import select
import socket
from typing import TYPE_CHECKING

import msgspec

from bruce_mp.ipc.control_messages import ConfigApplied, Control, ControlMessage, Drain, NewConfig, Ready, Stop
from bruce_mp.slab.rows import ProcessRow

if TYPE_CHECKING:
    from bruce_mp.ipc.start import Start
    from bruce_mp.slab.file import Slab


def main(start: Start, slab: Slab, control: Control) -> None:
    ProcessRow(slab, start.row).begin(os.getpid(), 0)
    said = _listen(start)
    control.send(Ready())
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(said, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == said.fileno():
                control.send(msgspec.msgpack.decode(said.recv(65536), type=ControlMessage))
            elif ends(start, message := control.receive()):
                return
            elif isinstance(message, NewConfig):
                control.send(ConfigApplied(message.number))


def _listen(start: Start) -> socket.socket:
    path = start.run_dir / f"{start.name}.say"
    path.unlink(missing_ok=True)
    said = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    said.bind(str(path))
    return said


def ends(start: Start, message: ControlMessage | None) -> bool:
    """Record a control message; return True if it ends the process."""
    broker = f" as broker {start.broker.node} at {start.broker.host}" if start.broker else ""
    with (start.run_dir / f"{start.name}.heard").open("a") as heard:
        heard.write(f"{message}{broker}\n")
    return message is None or isinstance(message, Stop) or (isinstance(message, Drain) and start.name == "input")
