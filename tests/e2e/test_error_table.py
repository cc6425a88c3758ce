"""Every error code once from the embedded broker, each on its own topic: the daemon acts as the table says.

All codes of an action hit the first request with their topic. Then, topic by topic, all messages have arrived once and
in order, except a batch that the table gives up. The daemon's counters match the action.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.devbroker.faults import Fault, FaultAction
from bruce_mp.errors import DiscardReason
from bruce_mp.protocol.kafka.error_actions import ERROR_TABLE, Action, ErrorRow
from bruce_mp.telemetry.books import counter_total
from bruce_mp.telemetry.counters import Counter
from support.daemon import Daemon
from support.read_back import read_back
from support.traffic import Account, Load, compare, send_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path
pytestmark = pytest.mark.process

MESSAGES: Final = 30
"""Average number of messages for each topic."""
PATIENT: Final[Mapping[str, object]] = {
    "http.discard_report_interval_s": 86_400,
    # Batches with many messages: one alone in a batch has no half to send, and is discarded.
    "batching.configs.slow.time_ms": 2000,
    "batching.default.action": "per_topic",
    "batching.default.config": "slow",
}
TRIED_AGAIN: Final = (
    Action.RESEND,
    Action.AWAIT_PERMISSION,
    Action.PAUSE_AND_REROUTE,
    Action.HALVE,
    Action.RESTAMP,
    Action.BUMP_EPOCH,
)
RESENT: Final = frozenset({Action.RESEND, Action.AWAIT_PERMISSION, Action.BUMP_EPOCH})
TRIED_OTHERWISE: Final = (Action.SEND_UNNUMBERED, Action.SEND_UNCOMPRESSED)
GIVEN_UP: Final = (Action.DISCARD, Action.FATAL_FOR_TOPIC)


def rows_of(action: Action) -> list[ErrorRow]:
    return [row for row in ERROR_TABLE.values() if row.action is action and row.code]


def topic_of(row: ErrorRow) -> str:
    return f"code{row.code}"


def fault_for(row: ErrorRow, times: int = 1) -> Fault:
    """A code that reports a duplicate is sent for a true duplicate."""
    is_there = row.action is Action.OK
    action = FaultAction.ERROR_APPENDED if is_there else FaultAction.ERROR
    return Fault(action=action, code=row.code, topic=topic_of(row), times=times)


class Counted(NamedTuple):
    """The rise of counters."""

    answers: dict[int, int]
    pauses: int
    resend_acks: int
    possible_duplicates: int


class Stage:
    """A daemon and its broker, which answers the first request of topics with an error."""

    def __init__(self, daemon: Daemon, broker: DevBroker) -> None:
        self.daemon = daemon
        self._broker = broker
        self._counted = self._count()

    def strike(self, rows: Iterable[ErrorRow], times: int = 1) -> tuple[Account, Counted]:
        """Send to a topic for each row; return the received messages and the counted events."""
        return self.suffer([fault_for(row, times) for row in rows])

    def suffer(self, faults: Iterable[Fault]) -> tuple[Account, Counted]:
        """Do the same for faults, each with its topic."""
        topics = []
        for fault in faults:
            assert fault.topic is not None
            topics.append(fault.topic)
            self._broker.add_topic(fault.topic, 1)
            self._broker.inject(fault)
        load = Load(tuple(topics), senders=1, messages=MESSAGES * len(topics), largest=200)
        received = self.daemon.books().received
        send_all(load, 0, self.daemon.socket_path)
        self.daemon.wait_settled(received + load.total)
        return compare(load, {0: load.total}, read_back(self._broker, load.topics), {}), self._grown()

    def _grown(self) -> Counted:
        before, self._counted = self._counted, self._count()
        now = self._counted
        answers = {code: count - before.answers[code] for code, count in now.answers.items()}
        return Counted(
            {code: count for code, count in answers.items() if count},
            now.pauses - before.pauses,
            now.resend_acks - before.resend_acks,
            now.possible_duplicates - before.possible_duplicates,
        )

    def _count(self) -> Counted:
        with self.daemon.open_slab() as slab:
            return Counted(
                {code: counter_total(slab, Counter.AckErrorFirst + 1 + code) for code in ERROR_TABLE if code},
                counter_total(slab, Counter.PauseStarted),
                counter_total(slab, Counter.ConnectorGotResendAck),
                counter_total(slab, Counter.PossibleDuplicateMsg),
            )

    def wait_reported(self, kind: str, topics: Mapping[str, int]) -> list[dict[str, Any]]:
        """Return the items of a discard report for these topics, once they have the expected counts."""
        items: list[dict[str, Any]] = []

        def is_there() -> bool:
            report = self.daemon.get("/discards/json")["unfinished_report"]
            items[:] = [item for item in report[kind] if item["topic"] in topics]
            return {item["topic"]: item["count"] for item in items} == topics

        self.daemon.wait_for(is_there, f"{kind} of {topics}", 20)
        return items


@contextmanager
def a_stage(directory: Path, settings: Mapping[str, object]) -> Iterator[Stage]:
    with DevBroker(brokers=2, topics={"first": 2}) as broker, Daemon(directory, broker.bootstrap, settings) as daemon:
        daemon.wait_for(lambda: {"dispatcher-0", "dispatcher-1"} <= daemon.pids().keys(), "the dispatchers", 30)
        yield Stage(daemon, broker)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with a_stage(tmp_path_factory.mktemp("errors"), PATIENT) as made:
        yield made


def test_the_tables_cover_every_action() -> None:
    assert {*TRIED_AGAIN, *TRIED_OTHERWISE, *GIVEN_UP, Action.OK} == set(Action)


def test_batches_that_the_broker_already_has_count_as_delivered(stage: Stage) -> None:
    rows = rows_of(Action.OK)
    account, counted = stage.strike(rows)
    assert counted.answers == {row.code: 1 for row in rows}
    assert not account.missing
    assert not account.repeated


@pytest.mark.parametrize("action", TRIED_AGAIN + TRIED_OTHERWISE)
def test_retried_batches_arrive_once_and_in_order(stage: Stage, action: Action) -> None:
    rows = rows_of(action)
    account, counted = stage.strike(rows)
    assert counted.answers == {row.code: 1 for row in rows}
    assert not account.missing
    assert not account.repeated
    # Partitions may be paused together; none is for the other actions.
    assert (counted.pauses > 0) == (action is Action.PAUSE_AND_REROUTE)
    assert counted.resend_acks == (len(rows) if action in RESENT else 0)
    # Only with a new epoch the broker cannot recognise a repeated batch.
    assert (counted.possible_duplicates > 0) == (action is Action.BUMP_EPOCH)


@pytest.mark.parametrize("action", GIVEN_UP)
def test_a_discarded_batch_is_reported_by_topic(stage: Stage, action: Action) -> None:
    rows = rows_of(action)
    account, counted = stage.strike(rows)
    assert counted.answers == {row.code: 1 for row in rows}
    assert not account.repeated
    missing = account.missing_by_topic
    assert missing.keys() == {topic_of(row) for row in rows}
    items = stage.wait_reported("discard_topic", missing)
    assert all(item["reasons"] == {DiscardReason.KAFKA_ERROR_ACK.name: item["count"]} for item in items)
    assert counted.pauses == counted.possible_duplicates == 0


def test_possible_duplicates_are_reported_by_topic(stage: Stage) -> None:
    """The broker appends the batch and still answers with a wrong sequence number."""
    account, counted = stage.suffer([Fault(action=FaultAction.ERROR_APPENDED, code=45, topic="doubled")])
    assert not account.missing
    assert 0 < account.repeated["doubled"] <= counted.possible_duplicates
    stage.wait_reported("possible_duplicate_topic", {"doubled": counted.possible_duplicates})


# --- attempts ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Yield a stage that allows one retry."""
    with a_stage(tmp_path_factory.mktemp("attempts"), {**PATIENT, "delivery.max_failed_attempts": 1}) as made:
        yield made


@pytest.mark.parametrize("action", TRIED_AGAIN)
def test_failed_attempts_are_limited(impatient: Stage, action: Action) -> None:
    rows = rows_of(action)
    account, _ = impatient.strike(rows, times=2)
    missing = account.missing_by_topic
    assert missing.keys() == {topic_of(row) for row in rows if row.counts_as_retry}
    items = impatient.wait_reported("discard_topic", missing)
    in_doubt = {topic_of(row) for row in rows if row.may_duplicate}
    for item in items:
        limit = DiscardReason.POSSIBLY_DELIVERED if item["topic"] in in_doubt else DiscardReason.DELIVERY_ATTEMPT_LIMIT
        assert item["reasons"] == {limit.name: item["count"]}


def test_discards_of_written_batches_are_reported_in_doubt(impatient: Stage) -> None:
    """The broker appends each batch of a topic and answers that its replicas are too slow."""
    fault = Fault(action=FaultAction.ERROR_APPENDED, code=7, topic="slow", times=None)
    account, counted = impatient.suffer([fault])
    assert not account.missing
    assert not account.repeated
    assert counted.possible_duplicates == 0
    impatient.wait_reported("discard_topic", {"slow": MESSAGES})
    assert impatient.daemon.books().discarded[DiscardReason.POSSIBLY_DELIVERED.name] >= MESSAGES


@pytest.mark.parametrize("action", TRIED_OTHERWISE)
def test_batches_refused_in_both_forms_are_discarded(impatient: Stage, action: Action) -> None:
    account, _ = impatient.strike(rows_of(action), times=2)
    items = impatient.wait_reported("discard_topic", account.missing_by_topic)
    assert [item["topic"] for item in items] == [topic_of(row) for row in rows_of(action)]
    assert all(item["reasons"] == {DiscardReason.KAFKA_ERROR_ACK.name: item["count"]} for item in items)
