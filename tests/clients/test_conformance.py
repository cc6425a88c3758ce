"""Each client library against the same vectors, a scripted daemon, and a real one that is killed and upgraded."""

from __future__ import annotations

import ctypes
import errno
import time
from contextlib import ExitStack
from socket import AF_UNIX, socket
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

import pytest

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.errors import DiscardReason
from bruce_mp.protocol.client.barrier import BarrierStatus
from bruce_mp.protocol.client.messages import Message, parse_message
from support.as_user import denied_connections
from support.client_programs import CLIENTS, LANGUAGES, SHORT, ConformanceProgram, build, param, run_tool
from support.client_vectors import expand, is_same, read_vectors
from support.processes import time_limit, wait_until
from support.read_back import records_in, values_in
from support.stream_daemon import StreamDaemon
from support.stream_inputs import ONE_WORKER, daemon_in

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from support.daemon import Daemon

pytestmark = pytest.mark.process

WITH_FORKS: Final = [name for name, language in LANGUAGES.items() if language.has_forks]
BRUCE_TIMED_OUT: Final = -8
PROGRESS_S: Final = 60
MOST_PENDING: Final = 500
"""Messages of a client without an outcome; the buffer has room for them while the daemon is away."""


# --- vectors ---------------------------------------------------------------------------------------------------------


def field_word(field: Any) -> str:
    data = expand(field)
    return "-" if data is None else f"={data.hex()}"


def encode_command(vector: dict[str, Any]) -> str:
    headers = [(expand(name) or b"", expand(value)) for name, value in vector["headers"]]
    pairs = ",".join(f"{name.hex()}:{'-' if value is None else value.hex()}" for name, value in headers)
    key = vector["partition_key"]
    fields = (*(field_word(vector[name]) for name in ("topic", "key", "value")), vector["timestamp_ms"])
    return " ".join(map(str, ("encode", *fields, "." if key is None else key, int(vector["keep_empty"]), pairs or "-")))


def test_a_client_encodes_each_vector(program: ConformanceProgram) -> None:
    wrong = []
    for vector in read_vectors()["messages"]:
        status, answer = program.ask(encode_command(vector))
        is_right = answer == vector.get("error") if status == "error" else is_same(vector, bytes.fromhex(answer))
        if not is_right:
            wrong.append((vector["name"], status, answer[:200]))
    assert not wrong


def test_a_client_hashes_keys_as_kafka_does(program: ConformanceProgram) -> None:
    vectors = read_vectors()["hashes"]
    answers = [program.ask(f"hash {each['partitioner']} ={each['key']}")[1] for each in vectors]
    assert answers == [str(each["partition_key"]) for each in vectors]


def test_a_message_has_the_present_time_by_default(program: ConformanceProgram) -> None:
    before = time.time_ns() // 1_000_000
    message = parse_message(bytes.fromhex(program.ask("encode =74 - =76 . . 0 -")[1]))
    assert isinstance(message, Message)
    assert before <= message.timestamp_ms <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("name", [param(name) for name, language in LANGUAGES.items() if language.own_tests])
def test_the_own_tests_of_a_library_pass(name: str) -> None:
    build(name)
    run_tool(name, LANGUAGES[name].own_tests or ())


def test_the_c_client_without_permission_does_not_wait_without_end(tmp_path: Path) -> None:
    build("c")
    library = ctypes.CDLL(str(CLIENTS / "c/build/libbruce.so"))
    client = ctypes.c_void_p()
    assert not library.bruce_stream_open_unix(ctypes.byref(client), bytes(tmp_path / "in.stream"), None)
    results: list[int] = []
    waiter = Thread(target=lambda: results.append(library.bruce_stream_flush(client, 1, -1, None)), daemon=True)
    with denied_connections(tmp_path):
        waiter.start()
        waiter.join(5)
        assert results == [errno.EACCES]
        assert library.bruce_stream_flush(client, 1, 0, None) == BRUCE_TIMED_OUT
    assert library.bruce_stream_close(client, 0) == 0


def test_a_flush_of_the_c_client_keeps_to_its_time_limit_behind_another_one(tmp_path: Path) -> None:
    build("c")
    library = ctypes.CDLL(str(CLIENTS / "c/build/libbruce.so"))
    client = ctypes.c_void_p()
    results: list[int] = []
    with StreamDaemon(tmp_path / "in") as daemon:
        daemon.answering = False
        assert not library.bruce_stream_open_unix(ctypes.byref(client), bytes(tmp_path / "in"), None)
        flushes = [
            Thread(target=lambda: results.append(library.bruce_stream_flush(client, 1, -1, None)), daemon=True),
            Thread(target=lambda: results.append(library.bruce_stream_flush(client, 1, 200, None)), daemon=True),
        ]
        flushes[0].start()
        daemon.wait_barrier()
        flushes[1].start()
        flushes[1].join(time_limit(10))
        assert results == [BRUCE_TIMED_OUT]
        daemon.answering = True
        daemon.answer_late()
        flushes[0].join(time_limit(10))
        assert results == [BRUCE_TIMED_OUT, 0]
        assert library.bruce_stream_flush(client, 1, 10_000, None) == 0
    assert library.bruce_stream_close(client, 0) == 0


# --- a scripted daemon -----------------------------------------------------------------------------------------------


def values_of(daemon: StreamDaemon, count: int) -> list[int]:
    messages = daemon.wait(count)
    return [int(message.value[:12]) for message in messages if isinstance(message, Message)]


def test_a_flush_reports_the_outcome(program: ConformanceProgram, tmp_path: Path) -> None:
    with StreamDaemon(tmp_path / "in") as daemon:
        program.open_stream(tmp_path / "in")
        assert program.send_stream("t", range(10), 100) == 10
        daemon.discards = {DiscardReason.BAD_TOPIC: 2, DiscardReason.LONG_MSG: 1}
        first = program.flush(20_000)
        program.send_stream("t", range(10, 15), 100)
        second = program.flush(20_000)
        assert (first.error, first.received, first.delivered, first.discarded) == (None, 10, 7, 3)
        assert sorted(first.reasons.split(",")) == ["BAD_TOPIC=2", "LONG_MSG=1"]
        assert second == (None, 0, 5, 5, 0, "-")
        assert values_of(daemon, 15) == list(range(15))
        assert [barrier.level for barrier in daemon.barriers] == [1, 1]
        assert program.close_stream(1000) == ["ok"]


def test_a_flush_over_tcp(program: ConformanceProgram) -> None:
    with StreamDaemon() as daemon:
        program.open_stream(daemon.port)
        program.send_stream("t", range(10), 100)
        assert program.flush(20_000, "received").received == 10
        assert [barrier.level for barrier in daemon.barriers] == [0]
        program.close_stream(1000)


def test_a_flush_that_takes_too_long_can_be_repeated(program: ConformanceProgram, tmp_path: Path) -> None:
    with StreamDaemon(tmp_path / "in") as daemon:
        program.open_stream(tmp_path / "in")
        program.send_stream("t", range(3), 100)
        daemon.answering = False
        assert program.flush(300).error == "TIMED_OUT"  # without an answer
        daemon.answering = True
        daemon.answer_late()
        daemon.status = BarrierStatus.TIMED_OUT
        assert program.flush(5000).error == "TIMED_OUT"  # the daemon's answer
        daemon.status = BarrierStatus.SHUTTING_DOWN
        assert program.flush(5000).error == "SHUTTING_DOWN"
        daemon.status = BarrierStatus.NO_JOURNAL
        assert program.flush(5000, "durable").error == "REFUSED"
        daemon.status = BarrierStatus.DONE
        assert program.flush(5000) == (None, 0, 3, 3, 0, "-")
        program.close_stream(1000)


def test_a_broken_connection_makes_written_messages_uncertain(program: ConformanceProgram, tmp_path: Path) -> None:
    with StreamDaemon(tmp_path / "in") as daemon:
        program.open_stream(tmp_path / "in")
        program.send_stream("t", range(5), 100)
        assert program.flush(20_000).delivered == 5
        program.send_stream("t", range(5, 8), 100)
        daemon.wait(8)
        daemon.cut()
        answer = program.flush(20_000)
        assert (answer.error, answer.uncertain) == ("BROKEN", 3)
        program.send_stream("t", range(8, 10), 100)
        assert program.flush(20_000) == (None, 0, 2, 2, 0, "-")
        assert program.stream_stats()["connections"] == 2
        assert values_of(daemon, 10) == list(range(10))
        program.close_stream(1000)


def test_a_broken_connection_makes_messages_uncertain_that_are_only_received(
    program: ConformanceProgram, tmp_path: Path
) -> None:
    with StreamDaemon(tmp_path / "in") as daemon:
        program.open_stream(tmp_path / "in")
        program.send_stream("t", range(5), 100)
        assert program.flush(20_000, "delivered").delivered == 5
        program.send_stream("t", range(5, 15), 100)
        assert program.flush(20_000, "received").received == 10
        program.send_stream("t", range(15, 18), 100)
        daemon.wait(18)
        daemon.cut()
        for level, uncertain in (("received", 3), ("durable", 10)):
            answer = program.flush(20_000, level)
            assert (answer.error, answer.uncertain) == ("BROKEN", uncertain), level
        program.send_stream("t", range(18, 19), 100)
        assert program.flush(20_000, "durable").received == 1
        daemon.cut()
        assert program.flush(20_000, "received").error is None
        answer = program.flush(20_000, "delivered")
        assert (answer.error, answer.uncertain) == ("BROKEN", 1)
        assert program.flush(20_000, "delivered") == (None, 0, 0, 0, 0, "-")
        program.close_stream(1000)


def test_a_partly_written_message_is_written_again(program: ConformanceProgram, tmp_path: Path) -> None:
    with StreamDaemon(tmp_path / "in") as daemon:
        daemon.reading.clear()  # the connection fills up within the message
        program.open_stream(tmp_path / "in", 4 << 20)
        assert program.send_stream("t", range(1), 1_000_000) == 1
        daemon.wait_unread(1)
        daemon.cut()
        daemon.reading.set()
        assert program.flush(20_000) == (None, 0, 1, 1, 0, "-")
        assert program.stream_stats() == {
            "sent": 1, "bytes": 1_000_029, "waiting": 0, "buffer_full": 0, "too_large": 0, "refused": 0, "closed": 0,
            "connections": 2,
        }  # fmt: skip
        assert values_of(daemon, 1) == [0]
        program.close_stream(1000)


def test_the_buffer_is_bounded_and_survives_an_absent_daemon(program: ConformanceProgram, tmp_path: Path) -> None:
    program.open_stream(tmp_path / "in", 10_000)
    assert program.send_stream("t", range(20), 1000) == 9  # of 1,029 bytes each
    stats = program.stream_stats()
    assert (stats["sent"], stats["waiting"], stats["buffer_full"]) == (0, 9, 11)
    assert program.send_stream("t", range(20, 21), 3_000_000) == 0
    assert program.stream_stats()["too_large"] == 1
    assert program.flush(200).error == "TIMED_OUT"
    with StreamDaemon(tmp_path / "in") as daemon:
        assert program.flush(20_000) == (None, 0, 9, 9, 0, "-")
        assert values_of(daemon, 9) == list(range(9))
    program.send_stream("t", range(30, 32), 1000)
    program.close_stream(100)


def test_calls_keep_to_their_time_limits_while_no_connection_is_accepted(
    program: ConformanceProgram, tmp_path: Path
) -> None:
    with socket(AF_UNIX) as listener, socket(AF_UNIX) as waiting:
        listener.bind(str(tmp_path / "in"))
        listener.listen(0)
        waiting.connect(str(tmp_path / "in"))  # fills the queue: a further connect() blocks
        program.open_stream(tmp_path / "in")
        assert program.send_stream("t", range(1), 20) == 1
        assert program.flush(200).error == "TIMED_OUT"
        began = time.monotonic()
        program.close_stream(200)
        assert time.monotonic() - began < time_limit(10)


def test_a_client_without_a_daemon_counts_refused_datagrams(program: ConformanceProgram, tmp_path: Path) -> None:
    if not LANGUAGES[program.name].has_datagrams:
        pytest.skip(f"NOT TESTED: datagrams of the {program.name} client, whose platform has none")
    program.open_datagrams(tmp_path / "in")
    assert program.send_datagrams("t", range(3), 20) == 0
    assert program.send_datagrams("t", range(2), 70_000) == 0
    assert program.datagram_stats() == (0, 5, {errno.ENOENT: 3, errno.EMSGSIZE: 2})


# --- a real daemon ---------------------------------------------------------------------------------------------------


class Traffic:
    """A client under load in two threads, and the messages of which it knows the outcome."""

    def __init__(self, name: str, command: list[str], daemon: Daemon) -> None:
        self.name = name
        self.stop = Event()
        self.resume = Event()
        self.resume.set()
        self.idle = Event()
        self.flushes = 0
        self.offered = 0
        self.sent = 0
        self.confirmed: set[int] = set()
        self.uncertain: set[int] = set()
        self.problems: list[str] = []
        self.stream = ConformanceProgram(command, name)
        self.datagrams = ConformanceProgram(command, name)
        self.stream.open_stream(daemon.stream_path)
        self._threads = [Thread(target=self._guard, args=(work,)) for work in (self._stream, self._datagrams)]
        if LANGUAGES[name].has_datagrams:
            self.datagrams.open_datagrams(daemon.socket_path)
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self.end()
        self.stream.__exit__(kind, *rest)
        self.datagrams.__exit__(kind, *rest)

    def end(self) -> None:
        self.stop.set()
        self.resume.set()
        for thread in self._threads:
            thread.join()

    @property
    def refused(self) -> int:
        """The number of datagrams that were refused."""
        return self.offered - self.sent

    def pause_datagrams(self) -> None:
        if not LANGUAGES[self.name].has_datagrams:
            return
        self.idle.clear()
        self.resume.clear()
        assert self.idle.wait(time_limit(PROGRESS_S)), self.name

    def await_refused_datagram(self) -> None:
        """Resume, and wait until a datagram is refused."""
        before = self.refused
        self.resume.set()
        if LANGUAGES[self.name].has_datagrams:
            wait_until(lambda: self.refused > before, f"a refused datagram of {self.name}", PROGRESS_S)

    def _guard(self, work: Any) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - reported by the test's own thread
            self.problems.append(f"{self.name}: {error!r}")
        finally:
            self.idle.set()

    def _datagrams(self) -> None:
        while not self.stop.is_set() and LANGUAGES[self.name].has_datagrams:
            if not self.resume.is_set():
                self.idle.set()
                self.resume.wait()
            numbers = range(self.offered, self.offered + 40)
            sent = self.datagrams.send_datagrams(f"{self.name}-datagrams", numbers, 100, pause_us=2000)
            self.offered, self.sent = numbers.stop, self.sent + sent

    def _stream(self) -> None:
        pending: list[int] = []
        number = 0
        while not self.stop.is_set() or pending:
            if not self.stop.is_set() and len(pending) < MOST_PENDING:
                accepted = self.stream.send_stream(f"{self.name}-stream", range(number, number + 50), 200)
                assert accepted == 50
                pending += range(number, number + 50)
                number += 50
            pending = self._flush(pending)
            self.stop.wait(0.02)  # else three clients would load this machine fully

    def _flush(self, pending: list[int]) -> list[int]:
        """Flush, and return the messages that are still without an outcome."""
        flushed = self.stream.flush(5000)
        if flushed.error is None:
            assert (flushed.delivered, flushed.discarded) == (len(pending), 0), (flushed, len(pending))
            self.confirmed.update(pending)
            self.flushes += 1
            return []
        if flushed.error == "BROKEN":
            assert 0 < flushed.uncertain <= len(pending), (flushed, len(pending))
            self.uncertain.update(pending[: flushed.uncertain])
            return pending[flushed.uncertain :]
        assert flushed.error in {"TIMED_OUT", "SHUTTING_DOWN"}, flushed
        self.stop.wait(0.05)
        return pending


def await_progress(daemon: Daemon, clients: list[Traffic]) -> None:
    """Wait for two further successful flushes of each client: the first may have begun before the call."""
    before = [client.flushes for client in clients]

    def all_flushed() -> bool:
        assert not [problem for client in clients for problem in client.problems], [each.problems for each in clients]
        return all(client.flushes >= old + 2 for client, old in zip(clients, before, strict=True))

    daemon.wait_for(all_flushed, "each client to flush", PROGRESS_S)


def kill_everything(daemon: Daemon, broker: DevBroker, clients: list[Traffic]) -> None:
    """Kill and restart the daemon, while no datagram is in the queue that dies with it."""
    for client in clients:
        client.pause_datagrams()
    for client in clients:
        topic = f"{client.name}-datagrams"
        daemon.wait_for(lambda: len(numbers_in(broker, topic)) >= client.sent, topic, PROGRESS_S)  # noqa: B023 - called at once
    daemon.kill_all()
    for client in clients:
        client.await_refused_datagram()
    daemon.start()


def assert_all_accounted_for(client: Traffic, broker: DevBroker) -> None:
    streamed = numbers_in(broker, f"{client.name}-stream")
    assert len(streamed) == len(set(streamed)), client.name
    assert client.confirmed <= set(streamed), (client.name, sorted(client.confirmed - set(streamed))[:10])
    assert set(streamed) <= client.confirmed | client.uncertain, client.name
    if not LANGUAGES[client.name].has_datagrams:
        return
    datagrams = numbers_in(broker, f"{client.name}-datagrams")
    sent, refused, by_errno = client.datagrams.datagram_stats()
    assert (sent, refused) == (client.sent, client.refused), client.name
    assert sum(by_errno.values()) == refused
    assert by_errno.keys() <= {errno.EAGAIN, errno.ECONNREFUSED, errno.ENOENT}, by_errno
    assert by_errno.get(errno.ECONNREFUSED), by_errno
    assert len(set(datagrams)) == len(datagrams) == sent, client.name


def numbers_in(broker: DevBroker, topic: str) -> list[int]:
    return [int(value[:12]) for value in values_in(broker, topic)]


@pytest.mark.parametrize(
    "names", [SHORT, pytest.param(tuple(LANGUAGES), marks=pytest.mark.clients)], ids=["some languages", "all languages"]
)
def test_clients_survive_kills_and_an_upgrade(names: tuple[str, ...], tmp_path: Path) -> None:
    commands = {name: build(name) for name in names}
    topics = {f"{name}-{kind}": 2 for name in names for kind in ("stream", "datagrams")}
    with (
        DevBroker(brokers=1, topics=topics) as broker,
        daemon_in(tmp_path, broker, **ONE_WORKER) as daemon,
        ExitStack() as stack,
    ):
        clients = [stack.enter_context(Traffic(name, command, daemon)) for name, command in commands.items()]
        await_progress(daemon, clients)
        for process in ("input-1", "router", "input"):
            daemon.kill(process)
            await_progress(daemon, clients)
        daemon.upgrade()
        await_progress(daemon, clients)
        kill_everything(daemon, broker, clients)
        await_progress(daemon, clients)
        for client in clients:
            client.end()
        assert not [problem for client in clients for problem in client.problems]
        daemon.wait_settled(1)
        for client in clients:
            assert_all_accounted_for(client, broker)
            client.stream.close_stream(5000)


@pytest.mark.parametrize("name", [param(name) for name in WITH_FORKS])
def test_a_child_sends_on_its_own_copy(name: str, tmp_path: Path) -> None:
    with (
        DevBroker(brokers=1, topics={"forks": 1}) as broker,
        daemon_in(tmp_path, broker, **ONE_WORKER) as daemon,
        ConformanceProgram(build(name), name) as program,
    ):
        program.open_datagrams(daemon.socket_path)
        program.open_stream(tmp_path / "in.stream")
        assert program.send_datagrams("forks", range(1), 20) == 1
        program.send_stream("forks", range(1, 2), 20)
        assert program.ask("fork forks 100 5") == ["ok"]
        program.send_stream("forks", range(2, 3), 20)
        assert program.flush(20_000) == (None, 0, 2, 2, 0, "-")
        daemon.wait_settled(13)
        assert sorted(numbers_in(broker, "forks")) == [0, 1, 2, *range(100, 110)]


def test_the_appenders_in_java_deliver(tmp_path: Path) -> None:
    java, *options = build("java")[:-1]
    classes = f"{options[-1]}:target/dependency/*"
    with (
        DevBroker(brokers=1, topics={"logs": 1}) as broker,
        daemon_in(tmp_path, broker, **ONE_WORKER) as daemon,
    ):
        system = (f"-Dstream={tmp_path / 'in.stream'}", "-Dtopic=logs", "-Dfile.encoding=UTF-8")
        run_tool("java", (java, *options[:-1], classes, *system, "bruce.client.LogWithAppenders", "log4j", "logback"))
        daemon.wait_settled(2)
        records = records_in(broker, "logs")
    assert sorted((record.key, record.value) for record in records) == [
        (b"log4j.logger", "WARN log4j.logger größe by log4j".encode()),
        (b"logback.logger", "WARN logback.logger größe by logback".encode()),
    ]


def test_the_other_programs_in_c_deliver(tmp_path: Path) -> None:
    build("c")
    with (
        DevBroker(brokers=1, topics={"c": 1}) as broker,
        daemon_in(tmp_path, broker, **ONE_WORKER) as daemon,
    ):
        run_tool("c", ("build/conformance-cxx", str(daemon.socket_path), str(tmp_path / "in.stream"), "c"))
        run_tool("c", ("build/dory-example", str(daemon.socket_path), "c"))
        run_tool("c", ("build/dory-socket", str(daemon.socket_path), "c"))
        daemon.wait_settled(6)
        records = records_in(broker, "c")
    values = (b"any partition", b"by Dory's class", b"by datagram", b"by partition key", b"by stream", b"null")
    assert sorted((record.key, record.value or b"null") for record in records) == [(b"key", value) for value in values]
