"""The page `/healthz`: tells load balancers and service managers if the daemon is live and ready, and lists problems.

*Live* means that all required processes run and store heartbeats. *Ready* also requires that messages reach Kafka:
brokers respond and accept all topics, the slab has room, no fault of the daemon or the cluster causes discards, and the
books balance.

A check is a generator: for each problem in the evidence, it yields a sentence that names the fault and the remedy.
`PROBLEMS` and `WARNINGS` list the checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.discards.reasons import CAUSED_BY_CLIENTS, CAUSED_BY_FAULT, EXPLANATIONS, discard_sentence
from bruce_mp.protocol.kafka.error_actions import Action, error_row
from bruce_mp.slab.room import PAUSE_RATIO
from bruce_mp.status.pages.certificates import certificate_problems, certificate_warnings
from bruce_mp.status.pages.header import Page
from bruce_mp.status.pages.processes import STALLED_MS
from bruce_mp.status.pages.stalls import partition_text
from bruce_mp.status.pages.text import topic_text
from bruce_mp.telemetry.broker_status import CONNECTED, FAILED, NO_LEADER, RouterStatus
from bruce_mp.telemetry.clock import utc_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bruce_mp.config.model import Config
    from bruce_mp.errors import DiscardReason
    from bruce_mp.ipc.control_messages import ActiveConfig
    from bruce_mp.status.broker_status import ClusterReport
    from bruce_mp.status.pages.certificates import CertificateLine
    from bruce_mp.status.pages.metadata import MetadataPage
    from bruce_mp.status.pages.processes import ProcessesPage
    from bruce_mp.status.pages.slab_use import SlabUse
    from bruce_mp.status.pages.stalls import Stalls
    from bruce_mp.telemetry.books import Books

__all__ = ["Evidence", "HealthPage", "assess_health", "health_lines"]

FULL_RATIO: Final = 0.9
"""If this ratio of the slab is in use, the daemon is not ready, because it will soon have no room for messages."""
MAX_NAMED: Final = 10
"""Limit of the topics or partitions that the sentences of a check name."""
ELECTION_MS: Final = 5000
"""Time without a leader after which a partition causes a warning. Usually an election takes less time."""
JOURNAL_SLACK_MS: Final = 5000
"""Delay of a write of the journal, beyond `slab.sync_interval_ms`, that causes no warning: a busy disk may cause it."""
_NO_REPORT: Final = RouterStatus((), None, "", (), 0)
"""Stands in for the router's report if there is no recent one; it has no trouble."""


class HealthPage(Page, frozen=True, kw_only=True):
    """JSON of `/healthz`.

    `problems` and `warnings` are sentences. The daemon is ready if there are no problems, whatever the warnings.
    `processes` maps the name of each process to its state. `metadata_age_ms` is None before the first metadata fetch.
    `balanced` is None if the reading of the books was not consistent. `slab_in_use` is a ratio from 0 to 1.
    """

    live: bool
    ready: bool
    problems: list[str]
    warnings: list[str]
    processes: dict[str, str]
    metadata_age_ms: int | None
    balanced: bool | None
    slab_in_use: float


def health_lines(page: HealthPage) -> list[str]:
    return [*(f"Problem: {text}" for text in page.problems), *(f"Warning: {text}" for text in page.warnings)]


class Evidence(NamedTuple):
    """Input of the health checks.

    `refusals` maps each topic that the brokers refuse to the error code. `minute_discards` and `hour_discards` count
    the messages discarded in the last minute and hour by reason. `lost_copy_count` is the number of copies of messages
    that were not written to their file in the last hour, `failed_accept_count` the number of failures to accept a
    connection in the last minute.
    """

    steady_now_ms: int
    """The present time of the steady clock, to compute ages. `metadata.now` is the time of the wall clock, in ms."""
    processes: ProcessesPage
    metadata: MetadataPage
    metadata_age_ms: int | None
    books: Books
    cluster: ClusterReport
    refusals: Mapping[bytes, int]
    slab_use: SlabUse
    minute_discards: Mapping[DiscardReason, int]
    hour_discards: Mapping[DiscardReason, int]
    lost_copy_count: int
    failed_accept_count: int
    certificates: Sequence[CertificateLine]
    config: Config
    active_config: ActiveConfig
    lost_socket_files: Sequence[str]
    """Paths of the socket files that are gone or were replaced."""
    lost_slab: str
    """Path of the slab if its file is gone or was replaced, else ""."""
    topics_over_share: Mapping[bytes, float]
    """Ratio of the slab that each of the largest topics holds; empty if `minute_discards` has no TOPIC_OVER_SHARE."""

    stalls: Stalls
    journaled_ms: int
    """Time of the last write of the journal on the steady clock; 0 if the daemon has no journal."""

    @property
    def slab_in_use(self) -> float:
        return self.slab_use.in_use_ratio

    @property
    def router(self) -> RouterStatus:
        """Return the router's last report, or `_NO_REPORT` if there is no recent report."""
        return self.cluster.router or _NO_REPORT

    @property
    def stalled_nodes(self) -> set[int]:
        """Return the node numbers of the stalled brokers, which only the check `_stalled_brokers` reports."""
        return {stall.status.node for stall in self.stalls.brokers}


def assess_health(evidence: Evidence) -> HealthPage:
    """Run all checks on the evidence."""
    processes, books = evidence.processes, evidence.books
    failed_processes = list(_failed_processes(evidence))
    problems = [*failed_processes, *(text for check in PROBLEMS for text in check(evidence))]
    return HealthPage(
        pid=processes.pid,
        version=processes.version,
        since=processes.since,
        now=processes.now,
        live=not failed_processes,
        ready=not problems,
        problems=problems,
        warnings=[text for check in WARNINGS for text in check(evidence)],
        processes={line.name: line.state for line in processes.processes},
        metadata_age_ms=evidence.metadata_age_ms,
        balanced=books.balanced if books.consistent else None,
        slab_in_use=evidence.slab_in_use,
    )


def _failed_processes(evidence: Evidence) -> Iterator[str]:
    for line in evidence.processes.processes:
        process = f"The process {line.name} (pid {line.pid})"
        if line.state == "dead":
            yield f"{process} is dead; the supervisor starts it again, and its log says why it ended."
        elif line.state == "stalled":
            silent_s, limit_s = line.heartbeat_age_ms // 1000, STALLED_MS // 1000
            yield (
                f"{process} gave no sign of life for {silent_s} s, which is more than {limit_s}; unless you have "
                "suspended it, end it with SIGKILL: the supervisor restarts it, and the new process takes over its "
                "messages."
            )


# --- problems ---------------------------------------------------------------------------------------------------------


def _lost_socket_files(evidence: Evidence) -> Iterator[str]:
    for path in evidence.lost_socket_files:
        yield (
            f"The socket file {path} is gone or was replaced, so no program can connect to the daemon there any more. "
            "Remove what may be in its place, then restart the daemon, with systemd bruce.socket first, to create it "
            "again. Keep cleaners of temporary files out of its directory."
        )


def _lost_slab(evidence: Evidence) -> Iterator[str]:
    if evidence.lost_slab:
        yield (
            f"The slab {evidence.lost_slab} was deleted or replaced: the daemon works on with the deleted file, but "
            "the messages in it are lost at the daemon's end. Set slab.path to a directory that no program cleans, and "
            "restart the daemon while Kafka answers, so that it delivers them first."
        )


def _brokers_unreachable(evidence: Evidence) -> Iterator[str]:
    router = evidence.router
    if router.failing_since_ms is None or _is_delivering(evidence):
        return
    failing_s = (evidence.steady_now_ms - router.failing_since_ms) // 1000
    held = sum(evidence.books.held.values())
    waiting = f"{_waiting_messages(held)} for a broker." if held else "No message waits."
    if router.needs_operator:
        yield f"No broker can be used for {failing_s} s: {router.error} {waiting}"
        return
    yield (
        f"No broker can be reached for {failing_s} s: {router.error} {waiting} Check the brokers, the network, and "
        "kafka.bootstrap_servers."
    )


def _is_delivering(evidence: Evidence) -> bool:
    """Return True if a broker is connected and nothing is stalled. Then messages flow even if metadata fetches fail."""
    brokers = evidence.cluster.brokers.values()
    return not evidence.stalls and any(status.connection == CONNECTED for status in brokers)


def _waiting_messages(count: int) -> str:
    return "1 message waits" if count == 1 else f"{count} messages wait"


def _stalled_brokers(evidence: Evidence) -> Iterator[str]:
    for stall in evidence.stalls.brokers:
        status, silent_s = stall.status, (evidence.steady_now_ms - stall.since_ms) // 1000
        yield (
            f"Broker {status.node} at {status.host}:{status.port} has acknowledged nothing for {silent_s} s while "
            f"{_waiting_messages(stall.message_count)} for {stall.partition_count} of its partitions: {stall.reason} "
            "Check the broker; see /brokers."
        )


def _broker_needs_operator(evidence: Evidence) -> Iterator[str]:
    """Report the failures that only an operator can repair; `_failed_brokers` warns about other failures of brokers."""
    for status in evidence.cluster.brokers.values():
        if status.needs_operator and status.node not in evidence.stalled_nodes:
            yield f"{status.last_error} The messages of the partitions of broker {status.node} wait; see /brokers."


def _producer_refused(evidence: Evidence) -> Iterator[str]:
    if error := evidence.router.producer_error:
        name = error_row(error).name
        yield (
            f"The brokers refuse the daemon a producer id, {name} ({error}): until they give one, messages "
            "may be delivered more than once. Allow the daemon's user IDEMPOTENT_WRITE on the cluster, or with Kafka "
            "2.8 and later WRITE on a topic; then refresh the metadata."
        )


def _stale_metadata(evidence: Evidence) -> Iterator[str]:
    age_ms = evidence.metadata_age_ms
    # The limit is two intervals, because the router varies each interval, and a fetch takes time. 0 means no limit.
    max_age_ms = 2 * 60_000 * evidence.config.delivery.metadata_refresh_interval_min
    if evidence.router.failing_since_ms is not None:
        return  # `_brokers_unreachable` or `_metadata_unreachable` reports the reason
    if age_ms is None:
        yield f"No metadata has been fetched from Kafka yet. {_current_request(evidence.cluster.router)}"
    elif max_age_ms and age_ms > max_age_ms:
        request = _current_request(evidence.cluster.router)
        yield f"The metadata is {age_ms // 1000} s old, more than two refresh intervals. {request}"


def _current_request(router: RouterStatus | None) -> str:
    if router is None:
        return "The router has not reported yet which broker it asks."
    if not router.asking:
        return "No broker is asked at the moment; the router is about to ask one."
    earlier = f" Before that: {router.previous_failure}" if router.previous_failure else ""
    return f"{router.asking} is asked now; if it does not answer, the next broker is asked.{earlier}"


def _hidden_topics(evidence: Evidence) -> Iterator[str]:
    for topic in evidence.router.forbidden[:MAX_NAMED]:
        yield (
            f"The brokers hide topic {topic_text(topic)} from the daemon's user, TOPIC_AUTHORIZATION_FAILED (29), "
            "if it exists. Its messages wait in the slab: grant the daemon's user WRITE on it, or correct the topic in "
            "the sender."
        )


_MESSAGES_WAIT: Final = "Its messages wait in the slab; the daemon retries until the brokers accept them."
_MESSAGES_DISCARDED: Final = (
    "Its messages are discarded until the brokers accept one; check the brokers' configuration."
)


def _refused_topics(evidence: Evidence) -> Iterator[str]:
    for topic, code in sorted(evidence.refusals.items())[:MAX_NAMED]:
        row = error_row(code)
        waits = row.action is Action.AWAIT_PERMISSION
        yield (
            f"The brokers refuse topic {topic_text(topic)}: {row.name} ({code}): {row.reason}. "
            f"{_MESSAGES_WAIT if waits else _MESSAGES_DISCARDED}"
        )
    if len(evidence.refusals) > MAX_NAMED:
        yield f"The brokers refuse {len(evidence.refusals)} topics in all; the log names them."


def _full_slab(evidence: Evidence) -> Iterator[str]:
    if evidence.slab_in_use >= FULL_RATIO:
        yield (
            f"The slab is {evidence.slab_in_use:.0%} full; with no room left new messages are discarded, or their "
            "senders blocked. See /brokers and /queues for the waiting messages, or raise slab.size."
        )


def _topics_over_share(evidence: Evidence) -> Iterator[str]:
    for topic, ratio in evidence.topics_over_share.items():
        yield (
            f"Topic {topic_text(topic)} holds {ratio:.0%} of the slab, and more of it is discarded so that other "
            "topics have room: see /brokers for what it waits for, or change topic_share.alpha."
        )


def _discards_by_fault(evidence: Evidence) -> Iterator[str]:
    yield from _recent_discards(evidence, CAUSED_BY_FAULT)


def _recent_discards(evidence: Evidence, reasons: frozenset[DiscardReason]) -> Iterator[str]:
    for reason, count in evidence.minute_discards.items():
        if reason in reasons:
            yield f"{discard_sentence(count)} within the last minute, {reason.name}: {EXPLANATIONS[reason]}."


def _expired_certificates(evidence: Evidence) -> Iterator[str]:
    yield from certificate_problems(evidence.certificates, evidence.metadata.now / 1000)


def _unbalanced_books(evidence: Evidence) -> Iterator[str]:
    if evidence.books.consistent and not evidence.books.balanced:
        yield "The books do not balance: messages were lost or counted twice. Please report it, with /books/json."


def _failed_accepts(evidence: Evidence) -> Iterator[str]:
    if evidence.failed_accept_count:
        yield (
            "Connections cannot be accepted: a process of the daemon was out of file descriptors or memory within the "
            "last minute, and the log names it. Raise its limit of open files, or close connections of clients."
        )


PROBLEMS: Final = (
    _lost_socket_files,
    _lost_slab,
    _failed_accepts,
    _brokers_unreachable,
    _stalled_brokers,
    _broker_needs_operator,
    _producer_refused,
    _stale_metadata,
    _refused_topics,
    _hidden_topics,
    _full_slab,
    _topics_over_share,
    _discards_by_fault,
    _expired_certificates,
    _unbalanced_books,
)


# --- warnings ---------------------------------------------------------------------------------------------------------


def _metadata_unreachable(evidence: Evidence) -> Iterator[str]:
    router = evidence.router
    if router.failing_since_ms is not None and _is_delivering(evidence):
        failing_s = (evidence.steady_now_ms - router.failing_since_ms) // 1000
        yield (
            f"The brokers take messages, but no metadata can be fetched for {failing_s} s: {router.error} Check "
            "kafka.bootstrap_servers; new topics and leaders stay unknown."
        )


def _stalled_partitions(evidence: Evidence) -> Iterator[str]:
    """Warn about stalled partitions, unless the router's list of paused scopes names the partition as leaderless.

    `_leaderless` reports the partitions in that list. A leaderless partition beyond the limit of the list is reported
    here.
    """
    leaderless = {(each.topic, each.partition) for each in evidence.router.paused if each.state == NO_LEADER}
    stalls = [each for each in evidence.stalls.partitions if (each.topic, each.partition) not in leaderless]
    for stall in stalls[:MAX_NAMED]:
        silent_s = (evidence.steady_now_ms - stall.since_ms) // 1000
        reason = evidence.cluster.last_errors.get((stall.topic, stall.partition), "see /brokers for the cause")
        yield (
            f"Nothing was acknowledged for {partition_text(stall.topic, stall.partition)} for {silent_s} s while "
            f"{_waiting_messages(stall.message_count)}: {reason}."
        )
    if len(stalls) > MAX_NAMED:
        yield f"Nothing was acknowledged for {len(stalls)} partitions in all; see /brokers."


def _failed_brokers(evidence: Evidence) -> Iterator[str]:
    """Warn about failed brokers for which no message has waited too long; `_stalled_brokers` reports the rest."""
    for status in evidence.cluster.brokers.values():
        if status.connection == FAILED and not status.needs_operator and status.node not in evidence.stalled_nodes:
            yield (
                f"Broker {status.node} at {status.host}:{status.port} has failed: {status.last_error} The messages of "
                "its partitions wait until it is back or others lead them; see /brokers."
            )


def _leaderless(evidence: Evidence) -> Iterator[str]:
    """Warn about partitions that have had no leader for longer than an election usually takes."""
    router, now_ms = evidence.router, evidence.steady_now_ms
    stuck = [scope for scope in router.paused if scope.state == NO_LEADER and now_ms - scope.since_ms >= ELECTION_MS]
    if stuck:
        topics = sorted({topic_text(scope.topic) for scope in stuck})
        more = _more_topics(len(topics) - MAX_NAMED, may_be_more=_may_lack_leaderless(router))
        yield (
            f"Messages wait for partitions that have no leader, of {', '.join(topics[:MAX_NAMED])}{more}: check the "
            "brokers that have their replicas. The daemon sends the messages once there are leaders; see /brokers."
        )


def _may_lack_leaderless(router: RouterStatus) -> bool:
    """Return True if the router's list of paused scopes may lack leaderless partitions.

    Leaderless partitions come first in the list, so the list lacks some only if it is incomplete and ends with one.
    """
    return len(router.paused) < router.paused_count and router.paused[-1].state == NO_LEADER


def _more_topics(unnamed_count: int, *, may_be_more: bool) -> str:
    if unnamed_count > 0:
        return f" and {'at least ' if may_be_more else ''}{unnamed_count} more"
    return " and perhaps others" if may_be_more else ""


def _recreated_topics(evidence: Evidence) -> Iterator[str]:
    recreated = evidence.router.recreated
    for each in recreated[-MAX_NAMED:]:
        minutes = (evidence.steady_now_ms - each.seen_ms) // 60_000
        yield (
            f"Topic {topic_text(each.topic)} was deleted and created again, as seen {minutes} min ago: the messages "
            "that were delivered before are gone from Kafka, and the held ones go to the new topic. If this was a "
            "mistake, send the earlier messages again."
        )
    if len(recreated) > MAX_NAMED:  # "at least", because the router reports only the latest topics
        yield f"At least {len(recreated)} topics were created again within the hour; the log names them."


def _filling_slab(evidence: Evidence) -> Iterator[str]:
    if PAUSE_RATIO <= evidence.slab_in_use < FULL_RATIO:
        yield f"The slab is {evidence.slab_in_use:.0%} full, and senders are slowed down; see /brokers."


def _discards_by_clients(evidence: Evidence) -> Iterator[str]:
    yield from _recent_discards(evidence, CAUSED_BY_CLIENTS)


def _incomplete_copies(evidence: Evidence) -> Iterator[str]:
    if count := evidence.lost_copy_count:
        copies = "copy of a message was" if count == 1 else "copies of messages were"
        yield (
            f"{count} {copies} not written within the last hour: the discard file, or one of message debugging, is "
            "incomplete. The log says why, usually a full disk or a missing permission. Delivery does not depend on it."
        )


def _old_journal(evidence: Evidence) -> Iterator[str]:
    age_ms = evidence.steady_now_ms - evidence.journaled_ms
    if evidence.journaled_ms and age_ms > evidence.config.slab.sync_interval_ms + JOURNAL_SLACK_MS:
        yield (
            f"The journal was last written {age_ms // 1000} s ago: held messages may not survive a power failure. The "
            "log says why, usually a full or slow disk. Delivery does not depend on it."
        )


def _expiring_certificates(evidence: Evidence) -> Iterator[str]:
    yield from certificate_warnings(evidence.certificates, evidence.metadata.now / 1000)


def _refused_reload(evidence: Evidence) -> Iterator[str]:
    config = evidence.active_config
    if config.refused:
        yield (
            f"The reload at {utc_text(config.refused_ms // 1000)} was refused: {config.refused} The old configuration "
            f"stays in force. Correct {config.path} and reload it; restart the daemon only if the reason says so."
        )


WARNINGS: Final = (
    _metadata_unreachable,
    _failed_brokers,
    _stalled_partitions,
    _leaderless,
    _recreated_topics,
    _filling_slab,
    _incomplete_copies,
    _old_journal,
    _expiring_certificates,
    _refused_reload,
    _discards_by_clients,
)
