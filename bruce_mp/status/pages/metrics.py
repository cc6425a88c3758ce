"""The page `/metrics` for Prometheus.

`http.metrics_topics` limits the number of series by topic; the sizes of the slab's tables limit the number of other
series.

Counters by topic or by codec begin at 0 with each start of the status process. All other counters continue after a
restart of a process, and also after a restart of the daemon if it keeps the slab.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason
from bruce_mp.protocol.kafka.error_actions import ERROR_TABLE
from bruce_mp.status.pages.exposition import OTHER, Family, Sample, histogram, limit_series
from bruce_mp.status.pages.health import assess_health
from bruce_mp.status.pages.text import topic_text
from bruce_mp.telemetry.books import counter_total
from bruce_mp.telemetry.broker_status import CONNECTED, FAILED
from bruce_mp.telemetry.counters import Counter, discarded, response_counter
from bruce_mp.telemetry.latency_histogram import BOUNDS_MS, read_latencies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from bruce_mp.slab.file import Slab
    from bruce_mp.status.broker_status import ClusterReport
    from bruce_mp.status.history.topic_totals import TopicTotal, TopicTotals
    from bruce_mp.status.pages.compression import CompressionPage
    from bruce_mp.status.pages.exposition import Kind
    from bruce_mp.status.pages.health import Evidence
    from bruce_mp.status.pages.held import HeldPage
    from bruce_mp.status.pages.processes import ProcessLine
    from bruce_mp.status.pages.stalls import Stalls
    from bruce_mp.telemetry.books import Books

__all__ = ["read_metrics"]

SINGLE_COUNTERS: Final[Mapping[str, tuple[Counter, str]]] = {
    "bruce_messages_received_total": (Counter.MsgReceived, "Messages received."),
    "bruce_messages_delivered_total": (Counter.MsgDelivered, "Messages that Kafka acknowledged."),
    "bruce_possible_duplicates_total": (Counter.PossibleDuplicateMsg, "Messages that Kafka may have more than once."),
    "bruce_pauses_total": (Counter.PauseStarted, "Pauses of a partition or of a broker's dispatcher."),
    "bruce_metadata_fetches_total": (Counter.GetMetadataSuccess, "Successful metadata fetches."),
    "bruce_recreated_topics_total": (Counter.TopicRecreated, "Topics that were deleted and created again."),
    "bruce_produce_requests_total": (Counter.SendProduceRequestOk, "Produce requests sent."),
    "bruce_record_batches_total": (Counter.SerializeMsgSet, "Record batches built."),
    "bruce_process_restarts_total": (Counter.ProcessRestarted, "Restarts of daemon processes that died."),
    "bruce_http_requests_total": (Counter.MongooseHttpRequest, "HTTP requests to the status pages."),
    "bruce_unread_discard_reports_total": (Counter.NoDiscardQuery, "Discard report periods that no client read."),
    "bruce_dead_letters_total": (Counter.DeadLetterSent, "Discarded messages sent to the dead letter topic."),
    "bruce_dead_letters_lost_total": (Counter.DeadLetterLost, "Dead letters that did not reach their topic."),
    "bruce_copies_lost_total": (Counter.MsgCopyLost, "Copies of messages that were not written to a file."),
}
"""Metrics with one value: (counter, meaning) by the name of the metric."""

LABELED_COUNTERS: Final[Mapping[str, tuple[str, str, Mapping[str, Counter]]]] = {
    "bruce_input_messages_total": (
        "input",
        "Messages that an input accepted, by input.",
        {
            "unix_datagram": Counter.UnixDgInputAgentForwardMsg,
            "unix_stream": Counter.UnixStreamInputForwardMsg,
            "tcp": Counter.TcpInputForwardMsg,
        },
    ),
    "bruce_broker_failures_total": (
        "kind",
        "Failures of broker connections, by kind.",
        {
            "connect": Counter.ConnectorConnectFail,
            "closed": Counter.ConnectorSocketBrokerClose,
            "error": Counter.ConnectorSocketError,
            "timeout": Counter.ConnectorSocketTimeout,
            "bad_response": Counter.BadProduceResponse,
            "metadata": Counter.ConnectFailOnTryGetMetadata,
            "bad_metadata": Counter.BadMetadataResponse,
        },
    ),
    "bruce_replaced_timestamps_total": (
        "because",
        "Messages with the time of their arrival in place of the client's timestamp.",
        {
            "outside_window": Counter.InputAgentReplaceTimestamp,
            "refused_by_broker": Counter.ConnectorReplaceTimestamp,
        },
    ),
    "bruce_batch_compression_total": (
        "outcome",
        "Record batches, by result of compression.",
        {
            "compressed": Counter.MsgSetCompressionYes,
            "off": Counter.MsgSetCompressionNo,
            "not_worth_it": Counter.MsgSetNotCompressible,
            "failed": Counter.MsgSetCompressionError,
        },
    ),
}
"""Metrics with several values: (label, meaning, counters by the value of the label) by the name of the metric."""

TOPIC_COUNTERS: Final[Mapping[str, tuple[str, Callable[[TopicTotal], int]]]] = {
    "bruce_topic_messages_received_total": ("Messages received.", lambda total: total.received),
    "bruce_topic_messages_delivered_total": ("Messages that Kafka acknowledged.", lambda total: total.delivered),
    "bruce_topic_messages_discarded_total": ("Messages discarded.", lambda total: total.discarded),
    "bruce_topic_delivered_bytes_total": (
        "Bytes of keys, values and headers that Kafka acknowledged.",
        lambda total: total.delivered_bytes,
    ),
}
"""Metrics with a value for each topic: (meaning, function that returns the value) by the name of the metric."""


def read_metrics(
    slab: Slab, evidence: Evidence, compression: CompressionPage, held: HeldPage, totals: TopicTotals
) -> Iterator[Family]:
    """Yield all metrics. The caller must have passed the counts of `held` to `totals.observe_held` before."""
    yield from _daemon(evidence)
    for name, (counter, meaning) in SINGLE_COUNTERS.items():
        yield Family(name, "counter", meaning, [Sample(counter_total(slab, counter))])
    for name, (label, meaning, counters) in LABELED_COUNTERS.items():
        values = {label_value: counter_total(slab, counter) for label_value, counter in counters.items()}
        yield _labeled(name, "counter", meaning, label, values)
    yield from _books(slab, evidence.books)
    yield from _held(held, totals.limit)
    yield from _topics(totals)
    yield _latencies(slab)
    yield from _processes(evidence.processes.processes)
    yield from _brokers(evidence.cluster)
    yield from _stalls(evidence.stalls, evidence.steady_now_ms)
    yield _kafka_errors(slab)
    yield from _compression(compression)


def _gauge(name: str, meaning: str, value: float) -> Family:
    return Family(name, "gauge", meaning, [Sample(value)])


def _daemon(evidence: Evidence) -> Iterator[Family]:
    health = assess_health(evidence)
    updated_s = evidence.metadata.last_updated / 1000
    yield Family("bruce_build_info", "gauge", "Always 1; the version.", [Sample(1, {"version": health.version})])
    yield _gauge("bruce_start_time_seconds", "Start of the daemon, in seconds since the epoch.", health.since)
    yield _gauge("bruce_live", "1 if all processes do their work, as /healthz?probe=live says.", int(health.live))
    yield _gauge("bruce_ready", "1 if messages reach Kafka, as /healthz says.", int(health.ready))
    yield _gauge("bruce_problems", "Problems on /healthz.", len(health.problems))
    yield _gauge("bruce_warnings", "Warnings on /healthz.", len(health.warnings))
    yield _gauge("bruce_metadata_updated_timestamp_seconds", "Last successful metadata fetch; 0 = never.", updated_s)


def _books(slab: Slab, books: Books) -> Iterator[Family]:
    is_balanced = books.balanced or not books.consistent  # an inconsistent reading proves nothing
    reasons = {reason.name: counter_total(slab, discarded(reason)) for reason in DiscardReason}
    yield _labeled("bruce_messages_discarded_total", "counter", "Messages discarded, by reason.", "reason", reasons)
    yield _labeled("bruce_messages_held", "gauge", "Messages held, by stage.", "stage", books.held)
    yield _gauge("bruce_books_balanced", "0 if received is not delivered + discarded + held.", int(is_balanced))
    meaning = "Messages by which the records in the slab differ from the held ones, by the last check."
    yield _gauge("bruce_books_unaccounted", meaning, books.unaccounted)


def _labeled(name: str, kind: Kind, meaning: str, label: str, values: Mapping[str, float]) -> Family:
    return Family(name, kind, meaning, [Sample(value, {label: label_value}) for label_value, value in values.items()])


def _held(page: HeldPage, limit: int) -> Iterator[Family]:
    count_series = limit_series(((held.topic, held.messages) for held in page.topics), limit, sum)
    age_series = limit_series(((held.topic, held.oldest_ms / 1000) for held in page.topics), limit, max)
    yield Family("bruce_topic_messages_held", "gauge", "Messages held, for the topics with the most.", count_series)
    yield Family("bruce_topic_oldest_held_seconds", "gauge", "Age of the topic's oldest held message.", age_series)
    yield _gauge("bruce_oldest_held_seconds", "Age of the oldest held message; 0 without any.", page.oldest_ms / 1000)
    yield _gauge("bruce_slab_in_use_ratio", "Ratio of the slab that cannot be reclaimed.", page.slab_in_use)


def _topics(totals: TopicTotals) -> Iterator[Family]:
    topics, other = totals.read()
    totals_by_topic = {**{topic_text(name): total for name, total in topics.items()}, OTHER: other}
    for name, (meaning, value_of) in TOPIC_COUNTERS.items():
        values = {topic: value_of(total) for topic, total in totals_by_topic.items()}
        yield _labeled(name, "counter", meaning, "topic", values)


def _latencies(slab: Slab) -> Family:
    buckets, sum_ms = read_latencies(slab)
    meaning = "Time from receipt to acknowledgement of messages."
    return histogram("bruce_ack_delay_seconds", meaning, (ms / 1000 for ms in BOUNDS_MS), buckets, sum_ms / 1000)


def _processes(lines: Iterable[ProcessLine]) -> Iterator[Family]:
    expected = [line for line in lines if line.state != "stopped"]
    up = {line.name: int(line.state == "running") for line in expected}
    silent_s = {line.name: line.heartbeat_age_ms / 1000 for line in expected}
    memory = {line.name: line.pss for line in expected if line.pss is not None}
    cpu_s = {line.name: line.cpu_seconds for line in expected if line.cpu_seconds is not None}
    meaning = "Memory, with the share of shared memory (PSS)."
    yield _labeled("bruce_process_up", "gauge", "1 if the process is alive and not stalled.", "process", up)
    yield _labeled("bruce_process_silent_seconds", "gauge", "Time since the last heartbeat.", "process", silent_s)
    yield _labeled("bruce_process_memory_bytes", "gauge", meaning, "process", memory)
    yield _labeled("bruce_process_cpu_seconds_total", "counter", "CPU time of the process.", "process", cpu_s)


def _brokers(cluster: ClusterReport) -> Iterator[Family]:
    statuses = {str(status.node): status for status in cluster.brokers.values()}
    connected = {node: int(status.connection == CONNECTED) for node, status in statuses.items()}
    in_trouble = {
        node: int(bool(status.partition_errors) or status.connection == FAILED) for node, status in statuses.items()
    }
    in_flight = {node: status.requests_in_flight for node, status in statuses.items()}
    paused_count = cluster.router.paused_count if cluster.router is not None else 0
    yield _labeled("bruce_broker_connected", "gauge", "1 if the broker is connected.", "broker", connected)
    meaning = "1 if the broker failed, or refuses a partition."
    yield _labeled("bruce_broker_in_trouble", "gauge", meaning, "broker", in_trouble)
    yield _labeled("bruce_broker_requests_in_flight", "gauge", "Requests that await a response.", "broker", in_flight)
    yield _gauge("bruce_paused", "Paused partitions and dispatchers.", paused_count)


def _stalls(stalls: Stalls, now_ms: int) -> Iterator[Family]:
    seconds = {str(stall.status.node): (now_ms - stall.since_ms) / 1000 for stall in stalls.brokers}
    meaning = "Time since a stalled broker's last acknowledgement."
    yield _labeled("bruce_broker_stalled_seconds", "gauge", meaning, "broker", seconds)
    meaning = "Stalled partitions, without those of stalled brokers."
    yield _gauge("bruce_stalled_partitions", meaning, len(stalls.partitions))
    yield _gauge(
        "bruce_stalled_messages", "Messages that wait for a stalled broker or partition.", stalls.message_count
    )


def _kafka_errors(slab: Slab) -> Family:
    counts = {row.name: counter_total(slab, response_counter(code)) for code, row in ERROR_TABLE.items()}
    seen = {error: count for error, count in counts.items() if count}
    return _labeled("bruce_kafka_answers_total", "counter", "Responses for a partition, by error.", "error", seen)


def _compression(page: CompressionPage) -> Iterator[Family]:
    plain_bytes: dict[str, float] = {}
    packed_bytes: dict[str, float] = {}
    for row in page.topics:
        plain_bytes[row.codec] = plain_bytes.get(row.codec, 0) + row.plain_bytes
        packed_bytes[row.codec] = packed_bytes.get(row.codec, 0) + row.packed_bytes
    yield _labeled("bruce_compression_in_bytes_total", "counter", "Bytes before compression.", "codec", plain_bytes)
    yield _labeled("bruce_compression_out_bytes_total", "counter", "Bytes after compression.", "codec", packed_bytes)
