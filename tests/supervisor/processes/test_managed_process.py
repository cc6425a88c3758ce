"""Messages to a process before it may begin."""

from __future__ import annotations

from multiprocessing import Pipe
from typing import TYPE_CHECKING

import pytest

from bruce_mp.config.model import Config
from bruce_mp.config.sections import Kafka
from bruce_mp.ipc.control_messages import Begin, Control, ControlMessage, Drain, PeerDied, Stop
from bruce_mp.ipc.start import Start
from bruce_mp.supervisor.processes.managed_process import ManagedProcess
from support.slabs import new_slab

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

CONFIG = Config(kafka=Kafka(bootstrap_servers=("b1:9092",)))


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[ManagedProcess, Connection]]:
    """A process that loads its program, and its end of the control pipe."""
    ours, theirs = Pipe()
    with new_slab() as slab, ours, theirs:
        child = ManagedProcess("nobody", Start("router", 1, CONFIG, tmp_path), slab, (), 0.0)
        child.may_begin = False
        child.connection = ours
        yield child, theirs


def messages(theirs: Connection) -> list[ControlMessage | None]:
    found = []
    while theirs.poll():
        found.append(Control(theirs).receive())
    return found


def test_a_delayed_process_receives_begin_first(ends: tuple[ManagedProcess, Connection]) -> None:
    """Any other message would end the process, for example when the daemon shuts down during a takeover."""
    child, theirs = ends
    child.send(PeerDied("input"))
    child.drain()
    assert messages(theirs) == []
    child.begin()
    assert messages(theirs) == [Begin(), Drain()]
    child.begin()
    child.send(PeerDied("input"))
    assert messages(theirs) == [PeerDied("input")]


def test_a_delayed_process_can_be_stopped(ends: tuple[ManagedProcess, Connection]) -> None:
    child, theirs = ends
    child.send(Stop())
    assert messages(theirs) == [Stop()]
