from __future__ import annotations

import os
import resource
import select
import socket
import threading
import time
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import psutil
import pytest
import zmq

from bruce_mp.ipc import loop as loop_module
from bruce_mp.ipc.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def run_for(loop: Loop, seconds: float) -> None:
    loop.call_later(seconds, loop.stop)
    loop.run()


def test_timers_fire_in_order_and_never_early(loop: Loop) -> None:
    fired: list[tuple[str, float]] = []
    start = time.monotonic()

    def note(name: str) -> None:
        fired.append((name, time.monotonic() - start))

    for name, delay in (("late", 0.03), ("early", 0.01), ("now", 0.0), ("early too", 0.01)):
        loop.call_at(start + delay, partial(note, name))
    loop.call_at(start + 0.05, loop.stop)
    loop.run()
    assert [name for name, _ in fired] == ["now", "early", "early too", "late"]
    assert all(at >= delay for (_, at), delay in zip(fired, (0.0, 0.01, 0.01, 0.03), strict=True))


def test_a_cancelled_timer_is_not_called(loop: Loop) -> None:
    called: list[str] = []
    first = loop.call_later(0.01, lambda: called.append("first"))
    second = loop.call_later(0.02, lambda: called.append("second"))
    loop.call_later(0.0, second.cancel)
    first.cancel()
    run_for(loop, 0.04)
    assert called == []


def test_a_timer_may_set_another(loop: Loop) -> None:
    called: list[int] = []

    def again() -> None:
        called.append(len(called))
        if len(called) == 3:
            loop.stop()
        else:
            loop.call_later(0.0, again)

    loop.call_later(0.0, again)
    loop.run()
    assert called == [0, 1, 2]


def test_an_idle_loop_sleeps(loop: Loop, pair: tuple[socket.socket, socket.socket]) -> None:
    rounds: list[None] = []
    loop.watch(pair[0], lambda _: None)
    loop.call_later(0.2, loop.stop)
    loop.run(lambda: rounds.append(None))
    assert len(rounds) <= 2


def test_the_after_round_callback_runs_after_each_round(loop: Loop, pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    seen: list[str] = []

    def on_ready(_: int) -> None:
        seen.append(ours.recv(1).decode())
        loop.stop()

    loop.watch(ours, on_ready)
    theirs.send(b"x")
    loop.run(lambda: seen.append("after"))
    assert seen == ["x", "after"]


def test_a_source_unwatched_in_a_callback_is_not_called(loop: Loop) -> None:
    """Both are ready in the same round; the first callback unregisters the other source."""
    with closing(Pipes(2)) as pipes:
        called: list[int] = []

        def on_ready(number: int, _: int) -> None:
            called.append(number)
            loop.unwatch(pipes.readers[1 - number])
            loop.stop()

        for number, reader in enumerate(pipes.readers):
            loop.watch(reader, partial(on_ready, number))
        pipes.fill()
        loop.run()
        assert len(called) == 1


def test_a_reused_descriptor_gets_no_event_of_its_predecessor(loop: Loop) -> None:
    """Both are ready in the same round; the first callback replaces the other's descriptor by one that is not ready."""
    with closing(Pipes(2)) as pipes:
        calls: list[str] = []

        def on_ready(number: int, _: int) -> None:
            calls.append("first")
            for reader in pipes.readers:
                loop.unwatch(reader)
            pipes.renew(1 - number)
            loop.watch(pipes.readers[1 - number], lambda _: calls.append("new"))
            loop.call_later(0.02, loop.stop)

        for number, reader in enumerate(pipes.readers):
            loop.watch(reader, partial(on_ready, number))
        pipes.fill()
        loop.run()
        assert calls == ["first"]


def test_the_events_of_a_source_can_be_changed(loop: Loop, pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    seen: list[int] = []

    def on_ready(events: int) -> None:
        seen.append(events)
        loop.stop()

    loop.watch(ours, on_ready, select.POLLOUT)
    loop.run()
    loop.watch(ours, on_ready, select.POLLIN)
    theirs.send(b"x")
    loop.run()
    assert seen == [select.POLLOUT, select.POLLIN]


def test_unwatching_an_unknown_source_is_no_error(loop: Loop) -> None:
    loop.unwatch(0)


def test_zeromq_sockets_and_descriptors_are_served_by_one_loop(
    loop: Loop, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    seen: set[str] = set()

    def note(name: str, _: bytes) -> None:
        seen.add(name)
        if len(seen) == 2:
            loop.stop()

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
        pull.bind("inproc://loop")
        push.connect("inproc://loop")
        loop.watch(pull, lambda _: note("zeromq", pull.recv()))
        loop.watch(ours, lambda _: note("descriptor", ours.recv(1)))
        push.send(b"x")
        theirs.send(b"x")
        loop.run()
    assert seen == {"zeromq", "descriptor"}


@pytest.fixture
def link() -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
        pull.bind("inproc://link")
        push.connect("inproc://link")
        yield pull, push


def test_a_callback_that_leaves_frames_is_called_again(
    loop: Loop, link: tuple[zmq.Socket[bytes], zmq.Socket[bytes]]
) -> None:
    """ZeroMQ's descriptor reports only the first of the frames."""
    pull, push = link
    frames: list[bytes] = []

    def receive_one(_: int) -> bool:
        frames.append(pull.recv())
        if len(frames) == 3:
            loop.stop()
        return len(frames) < 3

    for number in range(3):
        push.send(b"%d" % number)
    loop.watch(pull, receive_one)
    loop.call_later(10, loop.stop)
    loop.run()
    assert frames == [b"0", b"1", b"2"]


def test_a_source_that_ends_its_watch_is_not_called_again(loop: Loop) -> None:
    with closing(Pipes(1)) as pipes:
        called: list[None] = []

        def on_ready(_: int) -> bool:
            called.append(None)
            loop.unwatch(pipes.readers[0])
            return True

        loop.watch(pipes.readers[0], on_ready)
        pipes.fill()
        run_for(loop, 0.02)
        assert len(called) == 1


def test_a_callback_is_called_again_while_it_returns_true(
    loop: Loop, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    rounds: list[int] = []

    def on_ready(_: int) -> bool:
        if not rounds:
            ours.recv(1)  # so that nothing makes the descriptor ready again
        rounds.append(len(rounds))
        return len(rounds) < 3

    loop.watch(ours, on_ready)
    theirs.send(b"x")
    run_for(loop, 0.05)
    assert rounds == [0, 1, 2]


def test_a_lenient_timer_shares_the_next_round_after_its_delay(loop: Loop) -> None:
    called: list[str] = []
    loop.call_about(0.04, lambda: called.append("lenient"))
    loop.call_later(0.01, lambda: called.append("before"))
    loop.call_later(0.045, lambda: called.append("shared"))
    run_for(loop, 0.1)
    assert called == ["before", "shared", "lenient"]


def test_a_lenient_timer_needs_no_other_round(loop: Loop) -> None:
    called: list[float] = []
    start = time.monotonic()
    loop.call_about(0.04, lambda: called.append(time.monotonic() - start))
    cancelled = loop.call_about(0.01, lambda: called.append(0.0))
    cancelled.cancel()
    run_for(loop, 0.06)
    assert len(called) == 1
    assert called[0] >= 0.04


class Pipes:
    """Pipes, by descriptor."""

    def __init__(self, count: int) -> None:
        both = [os.pipe() for _ in range(count)]
        self.readers = [reader for reader, _ in both]
        self.writers = [writer for _, writer in both]

    def fill(self) -> None:
        for writer in self.writers:
            os.write(writer, b"x")

    def renew(self, number: int) -> None:
        """Replace a pipe by an empty one with the same descriptors."""
        old = self.readers[number], self.writers[number]
        for descriptor in old:
            os.close(descriptor)
        for descriptor, wanted in zip(os.pipe(), old, strict=True):
            if descriptor != wanted:
                os.dup2(descriptor, wanted)
                os.close(descriptor)

    def close(self) -> None:
        for descriptor in (*self.readers, *self.writers):
            os.close(descriptor)


def test_a_function_in_a_thread_reports_through_the_loop(loop: Loop) -> None:
    released = threading.Event()
    got: list[tuple[int, int]] = []

    def on_result(thread_id: int) -> None:
        got.append((thread_id, threading.get_ident()))
        loop.stop()

    before = psutil.Process().num_fds()
    loop.call_in_thread("slow", lambda: threading.get_ident() if released.wait(10) else 0, on_result)
    loop.call_later(0, loop.stop)
    loop.run()
    assert got == []  # the loop serves while the function waits
    released.set()
    loop.run()
    ((worker, caller),) = got
    assert worker not in {0, caller}
    assert caller == threading.get_ident()
    assert psutil.Process().num_fds() == before


def test_a_function_in_a_thread_needs_no_free_descriptor(loop: Loop) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    got: list[str] = []

    def on_result(result: str) -> None:
        got.append(result)
        loop.stop()

    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        loop.call_in_thread("poor", lambda: "result", on_result)
        loop.call_later(20, loop.stop)
        loop.run()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert got == ["result"]


def test_results_of_threads_that_end_together_all_arrive(loop: Loop) -> None:
    together = threading.Barrier(20)
    got: list[int] = []

    def on_result(number: int) -> None:
        got.append(number)
        if len(got) == 20:
            loop.stop()

    for _ in range(20):
        loop.call_in_thread("one", lambda: together.wait(10), on_result)
    loop.call_later(20, loop.stop)
    loop.run()
    assert sorted(got) == list(range(20))


def test_a_thread_that_cannot_start_is_tried_again(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop_module, "_THREAD_RETRY_S", 0.01)
    start, failures = threading.Thread.start, iter([RuntimeError("can't start new thread")])

    def fail_once(thread: threading.Thread) -> None:
        for error in failures:
            raise error
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    got: list[int] = []
    loop.call_in_thread("late", lambda: 7, got.append)
    loop.call_later(20, loop.stop)
    loop.run(lambda: loop.stop() if got else None)
    assert got == [7]
    assert "The thread late cannot be started, and is tried again: can't start new thread." in caplog.text


def test_the_loop_raises_the_exception_of_a_function_in_a_thread(loop: Loop) -> None:
    def fail() -> None:
        raise NotImplementedError

    loop.call_in_thread("failing", fail, lambda _: loop.stop())
    loop.call_later(20, loop.stop)
    with pytest.raises(NotImplementedError):
        loop.run()
