"""The sender and the plain receiver, in both languages; the cost of a process; the sent messages."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from bench import cost
from bench.cases import Case
from bench.corpus import datagrams, write_datagrams
from bench.plain import run_plain
from bench.tools import SendError, Tools, make_tools, run_sender
from bruce_mp.protocol.client.messages import Message, parse_message

if TYPE_CHECKING:
    from pathlib import Path

TOPICS = Case("any", 100, 1).site.topic_names


@pytest.fixture(params=["C", "Python"], scope="module")
def tools(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tools:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "Python":
            patch.setattr(shutil, "which", lambda _: None)
        elif not shutil.which("cc"):
            pytest.fail("There is no C compiler; on Debian and Ubuntu: apt install gcc")
        made = make_tools(tmp_path_factory.mktemp("tools"))
    assert made.language == request.param
    return made


@pytest.mark.process
@pytest.mark.parametrize("case", [Case("one", 100, 5000), Case("many", 1024, 1000, senders=7)])
def test_the_plain_receiver_gets_every_message(tools: Tools, case: Case, tmp_path: Path) -> None:
    write_datagrams(tmp_path / "datagrams", TOPICS, case.size)
    run = run_plain(tools, case, tmp_path, tmp_path / "datagrams")
    assert run.messages == case.messages
    assert 0 < run.cpu_s < run.seconds


@pytest.mark.process
def test_a_paced_sender_keeps_its_rate(tools: Tools, tmp_path: Path) -> None:
    write_datagrams(tmp_path / "datagrams", TOPICS, 100)
    run = run_plain(tools, Case("paced", 100, 500, senders=2, rate=1000), tmp_path, tmp_path / "datagrams")
    assert run.seconds > 0.45


@pytest.mark.process
def test_a_paced_sender_dates_its_messages(tools: Tools, tmp_path: Path) -> None:
    write_datagrams(tmp_path / "datagrams", TOPICS, 100)
    time.sleep(0.02)
    before_ms = time.time_ns() // 1_000_000
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "in"))
        run_sender(tools, Case("paced", 100, 5, rate=1000), f"datagram:{tmp_path}/in", tmp_path / "datagrams")
        parsed = [parse_message(receiver.recv(200)) for _ in range(5)]
    assert all(isinstance(message, Message) and message.timestamp_ms >= before_ms for message in parsed)


@pytest.mark.process
def test_the_plain_receiver_counts_the_messages_of_streams(tools: Tools, tmp_path: Path) -> None:
    case = replace(Case("streams", 50, 3000, senders=3, transport="unix", per_write=32), largest=3000, floor="unix")
    write_datagrams(tmp_path / "datagrams", TOPICS, case.size, largest=case.largest)
    run = run_plain(tools, case, tmp_path, tmp_path / "datagrams")
    assert (run.messages, run.cpu_s > 0) == (3000, True)


def test_mixed_sizes_reach_from_the_smallest_to_the_largest() -> None:
    sizes = {len(message) for message in datagrams(TOPICS, 50, largest=3000)}
    assert min(sizes) >= 50
    assert max(sizes) <= 3000
    assert len(sizes) > 300


@pytest.mark.process
def test_run_plain_fails_when_the_receiver_exits(tools: Tools, tmp_path: Path) -> None:
    write_datagrams(tmp_path / "datagrams", TOPICS, 100)
    code = (
        "import socket, sys; path = sys.argv[1].partition(':')[2]; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)"
        "; s.bind(path); print('READY')"
    )
    quitter = replace(tools, receive=(sys.executable, "-c", code))
    with pytest.raises(SendError):
        run_plain(quitter, Case("gone", 100, 1000), tmp_path, tmp_path / "datagrams")


@pytest.mark.process
def test_run_sender_fails_without_a_receiver(tools: Tools, tmp_path: Path) -> None:
    write_datagrams(tmp_path / "datagrams", TOPICS, 100)
    with pytest.raises(SendError, match="The sender ended with 1"):
        run_sender(tools, Case("nobody", 100, 10), f"datagram:{tmp_path}/nobody", tmp_path / "datagrams")


@pytest.mark.parametrize("size", [100, 1024, 10_240])
def test_datagrams_are_valid_messages_of_the_given_size_in_topic_rotation(size: int) -> None:
    some = datagrams(TOPICS, size)
    assert {len(datagram) for datagram in some} == {size}
    parsed = [parse_message(datagram) for datagram in islice(some, 20)]
    assert [message.topic.decode() for message in parsed if isinstance(message, Message)] == [*TOPICS, *TOPICS]


def test_cpu_seconds_equal_the_process_clock() -> None:
    before, own = cost.cpu_seconds(os.getpid()), time.process_time()
    sum(number * number for number in range(200_000))
    spent = time.process_time() - own
    assert cost.cpu_seconds(os.getpid()) - before == pytest.approx(spent, rel=0.1)


def test_sleeping_counts_as_wakeups() -> None:
    before = cost.usage_of({"me": os.getpid()})["me"].wakeups
    for _ in range(40):
        time.sleep(0.001)  # one that ends before the kernel has switched is no wake-up
    assert cost.usage_of({"me": os.getpid()})["me"].wakeups >= before + 20


def test_memory_of_separates_the_slab_from_process_memory(tmp_path: Path) -> None:
    memory = cost.memory_of({"me": os.getpid()}, tmp_path / "slab")
    assert memory.slab == 0
    assert memory.processes["me"] > 1_000_000
