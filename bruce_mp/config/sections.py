"""The sections of the configuration file: every setting with its type, range, default and meaning.

This module, `inputs.py` and `security.py` define all settings; `model.py` combines their sections. `decode.py` checks
files against these definitions, and `reference.py` renders the reference page from them.

A setting is annotated with its type, a call of its kind (`fields.py`), and a marker. Values have plain types: sizes are
numbers of bytes, modes are permission bits, paths and addresses are text. A setting with the default `None` may be
absent, and its description then states the effect. The marker states that a reload applies a change (LIVE), or why a
change needs a restart. The annotation of a map describes each entry of the map. Rules about several settings, such as a
name that needs a definition, are in `checks.py`.

The docstring of a section is its text on the reference page. The introduction of that page (`reference.py`) explains
the *state directory*.
"""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

from typing import Annotated, Final, Literal

from msgspec import Meta, field

from bruce_mp.config import fields
from bruce_mp.config.addresses import HostPort, UnixPath, parse_host_port, parse_listen
from bruce_mp.config.fields import (
    DAY_MS,
    INT32_MAX,
    LIVE,
    RESTART_FOR_SIZES,
    RESTART_FOR_SLAB,
    RESTART_TO_BIND,
    Section,
    restart,
)
from bruce_mp.config.inputs import GroupSetting, UserSetting
from bruce_mp.config.security import ENV_VARIABLE, Sasl, Tls
from bruce_mp.config.sizes import GIB, KIB, MIB

MINUTES_PER_MONTH: Final = 31 * 24 * 60
MAX_ALPHA: Final = 1_000
"""Largest `alpha` of a topic; with it the topic may hold nearly all of the slab."""

_LARGEST_RETRY_LIMIT: Final = 254
"""A batch counts its retries in one byte, up to 255."""
RESTART_FOR_SEQUENCES: Final = restart(
    "it decides if batches have sequence numbers, and the slab may hold numbered batches"
)

RESTART_FOR_JOURNAL: Final = restart("a journal begins at the start of the daemon")

BatchingAction = Literal["per_topic", "combined", "none"]
PartitionerName = Literal["none", "murmur2", "crc32", "fnv1a"]
_ACTION_MEANING: str = "The kind of [batch](#how-batches-are-made)."
_ALPHA_MEANING: str = "Slab memory that a topic may hold, as a multiple of the free memory. 0: no limit."


class Kafka(Section, frozen=True):
    """The Kafka cluster, and the requests to it."""

    bootstrap_servers: Annotated[
        tuple[str, ...],
        fields.servers("Brokers to ask at the start, and when all known ones are gone."),
        LIVE,
    ]
    client_id: Annotated[
        str,
        fields.pattern("The daemon's name in the brokers' logs and quotas.", ".{1,8191}", "bruce", fields.client_id),
        LIVE,
    ] = "bruce"
    required_acks: Annotated[
        Literal[-1, 0, 1],
        fields.plain(
            "Acks of a batch: -1 from all in-sync replicas, 1 from the leader, 0 none; see `docs/delivery.md`."
        ),
        RESTART_FOR_SEQUENCES,
    ] = -1
    replication_timeout_ms: Annotated[
        int, fields.plain("Longest time that a broker waits for the acks of replicas.", 1, INT32_MAX), LIVE
    ] = 10_000
    empty_values: Annotated[
        Literal["null", "empty"],
        fields.plain(
            "Kafka value of a message without value bytes, unless its client chooses. Null "
            "deletes the key from a compacted topic."
        ),
        LIVE,
    ] = "null"
    broker_version: Annotated[
        str | None,
        fields.pattern(
            "Release of brokers before 0.10, which do not report it. Absent: the daemon asks.",
            r"[0-9]+(\.[0-9]+){1,3}",
            "0.9.0.1",
        ),
        LIVE,
    ] = None
    tls: Tls = Tls()
    sasl: Sasl = Sasl()

    @property
    def servers(self) -> tuple[HostPort, ...]:
        return tuple(parse_host_port(server) for server in self.bootstrap_servers)


class SlabSection(Section, frozen=True):
    """The file that holds every message until Kafka has it."""

    path: Annotated[
        str | None,
        fields.path(
            "On a disk, it survives a reboot. Absent: `/dev/shm/bruce-run-bruce.slab`, named after `daemon.run_dir`."
        ),
        RESTART_FOR_SLAB,
    ] = None
    size: Annotated[
        int,
        fields.size(
            "Memory for messages. The file is 9 to 74 MiB larger, depending on `input.max_datagram_size`.",
            8 * MIB,
            64 * GIB,
        ),
        RESTART_FOR_SIZES,
    ] = 128 * MIB
    sync: Annotated[
        Literal["off", "interval", "each flush"],
        fields.plain(
            'When held messages go to a journal on disk, which survives a power failure. "off": '
            'never. "interval": each `sync_interval_ms`. "each flush": also at each '
            '`flush(level="durable")` of a client.'
        ),
        RESTART_FOR_JOURNAL,
    ] = "off"
    sync_interval_ms: Annotated[
        int,
        fields.plain("Longest time before a held message is in the journal.", 10, 60_000),
        LIVE,
    ] = 1000
    journal_dir: Annotated[
        str | None,
        fields.path("Parent of the journal's directory, on a disk. Absent: the *state directory*."),
        RESTART_FOR_JOURNAL,
    ] = None


class DaemonSection(Section, frozen=True):
    """The daemon itself."""

    run_dir: Annotated[
        str,
        fields.run_dir("Directory of internal sockets; each daemon needs its own."),
        restart("the daemon locks it, and its processes meet in it"),
    ] = "/run/bruce"


class PartitionerSection(Section, frozen=True):
    """The partition of a message with a record key.

    `murmur2` places a key where the Java client does, `crc32` and `fnv1a` where librdkafka's `consistent_random` and
    `fnv1a_random` do. With `none`, or without a key, the daemon chooses. See `docs/delivery.md`.
    """

    default: Annotated[PartitionerName, fields.plain("Partitioner of topics not in `topics`."), LIVE] = "none"
    without_leader: Annotated[
        Literal["wait", "next"],
        fields.plain("While a key's partition has no leader: messages wait, or go to the next partition."),
        LIVE,
    ] = "wait"
    topics: Annotated[dict[str, PartitionerName], fields.plain("The partitioner of a topic."), LIVE] = field(
        default_factory=dict
    )


class Delivery(Section, frozen=True):
    """Sending to Kafka, retries, pauses and metadata."""

    topic_autocreate: Annotated[
        bool,
        fields.plain(
            "Ask the brokers to create an unknown topic. Brokers before 0.10.1 need "
            "`auto.create.topics.enable`. Brokers before 2.4 need that setting, or the next two here."
        ),
        LIVE,
    ] = False
    topic_autocreate_partitions: Annotated[
        int | None, fields.plain("Partitions of a new topic. Absent: the brokers' default.", 1, INT32_MAX), LIVE
    ] = None
    topic_autocreate_replication: Annotated[
        int | None, fields.plain("Replicas of a new topic. Absent: the brokers' default.", 1, 32_767), LIVE
    ] = None
    max_failed_attempts: Annotated[
        int | None,
        fields.plain(
            "Most retries of a message after error answers. Absent, 0 or above 254: those in `docs/error-table.md`.",
            0,
            INT32_MAX,
        ),
        LIVE,
    ] = None
    max_in_flight: Annotated[int, fields.plain("Most unanswered produce requests to one broker.", 1, 5), LIVE] = 5
    shutdown_max_delay_ms: Annotated[
        int,
        fields.plain("Longest wait for acks at a shutdown.", 0, DAY_MS),
        LIVE,
    ] = 30_000
    dispatcher_restart_max_delay_ms: Annotated[
        int,
        fields.plain("Longest wait for outstanding answers, in a pause or after a change of leaders.", 0, DAY_MS),
        LIVE,
    ] = 5_000
    metadata_refresh_interval_min: Annotated[
        int, fields.plain("Time between metadata refreshes, varied by 20 %; 0: none.", 0, MINUTES_PER_MONTH), LIVE
    ] = 15
    start_spread_s: Annotated[
        int,
        fields.plain("Longest random wait before a starting daemon asks the cluster; see `docs/scale.md`.", 0, 3_600),
        LIVE,
    ] = 0
    failover_spread_s: Annotated[
        int,
        fields.plain(
            "Longest random wait before the metadata fetch after the loss of a broker or leader; see `docs/scale.md`.",
            0,
            300,
        ),
        LIVE,
    ] = 0
    compare_metadata_on_refresh: Annotated[
        bool, fields.plain("If false, each metadata refresh reroutes all messages."), LIVE
    ] = True
    kafka_socket_timeout_s: Annotated[
        int, fields.plain("Longest silence of a broker while an answer is due.", 1, 86_400), LIVE
    ] = 60
    # Dory, the daemon that this one continues, has the defaults 5 s, 4 doublings and 5 s, because its pause stops all
    # traffic. Here a pause stops one partition or one broker.
    pause_rate_limit_initial_ms: Annotated[
        int,
        fields.plain("Average length of the second pause in a series; each further pause doubles it.", 1, DAY_MS),
        LIVE,
    ] = 500
    pause_rate_limit_max_double: Annotated[int, fields.plain("Most doublings in a series.", 0, 20), LIVE] = 6
    min_pause_delay_ms: Annotated[
        int, fields.plain("Shortest pause; the first pause of a series is up to three times as long.", 0, DAY_MS), LIVE
    ] = 200

    @property
    def backoff(self) -> tuple[int, int, int]:
        """Return the parameters of a back-off: `initial` in ms, `max_double`, and the shortest pause in ms."""
        return self.pause_rate_limit_initial_ms, self.pause_rate_limit_max_double, self.min_pause_delay_ms

    @property
    def retry_limit(self) -> int | None:
        """Return `max_failed_attempts`, or None if only the error table sets limits."""
        limit = self.max_failed_attempts
        return limit if limit and limit <= _LARGEST_RETRY_LIMIT else None


class BatchLimits(Section, frozen=True):
    """A named set of limits for a batch; give at least one."""

    time_ms: Annotated[int | None, fields.plain("Age of the oldest message.", 1, DAY_MS), LIVE] = None
    messages: Annotated[int | None, fields.plain("Number of messages.", 1, INT32_MAX), LIVE] = None
    bytes: Annotated[int | None, fields.size("Size of all keys and values.", 1, GIB), LIVE] = None


class CombinedBatching(Section, frozen=True):
    """The combined batches."""

    enable: Annotated[bool, fields.plain("If false, combined topics are not batched."), LIVE] = True
    config: Annotated[str, fields.plain("Name of the limits."), LIVE] = "standard"


class DefaultBatching(Section, frozen=True):
    """Topics without their own rule."""

    action: Annotated[BatchingAction, fields.plain(_ACTION_MEANING), LIVE] = "combined"
    config: Annotated[str | None, fields.plain("Name of the limits, for `per_topic`."), LIVE] = None


class BatchingRule(Section, frozen=True):
    """A topic with its own rule."""

    action: Annotated[BatchingAction, fields.plain(_ACTION_MEANING), LIVE]
    config: Annotated[str | None, fields.plain("Name of the limits, for `per_topic`."), LIVE] = None


class Batching(Section, frozen=True):
    """Batches of messages. The limits named `standard` (100 ms or 256k) need no definition."""

    produce_request_data_limit: Annotated[
        int, fields.size("Most bytes of keys and values in one request; 0: a request for each message.", 0, GIB), LIVE
    ] = MIB
    message_max_bytes: Annotated[
        int,
        fields.size(
            "Largest message, and largest batch of a partition; give the brokers' `message.max.bytes`.", 1, GIB
        ),
        LIVE,
    ] = 1_000_000
    configs: dict[str, BatchLimits] = field(default_factory=dict)
    combined: CombinedBatching = CombinedBatching()
    default: DefaultBatching = DefaultBatching()
    topics: dict[str, BatchingRule] = field(default_factory=dict)


class CompressionConfig(Section, frozen=True):
    """A named compression config."""

    type: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"],
        fields.plain("The codec; brokers that are too old for it get snappy."),
        LIVE,
    ]
    min_size: Annotated[int, fields.size("A smaller batch is sent uncompressed.", 0, GIB), LIVE] = 128
    level: Annotated[
        int | None, fields.plain("gzip 0 to 9, lz4 0 to 16, zstd 1 to 22. Absent: the codec's default.", 0, 22), LIVE
    ] = None
    adaptive: Annotated[
        bool, fields.plain("Compress a topic only periodically while its batches shrink by less than a tenth."), LIVE
    ] = False


class Compression(Section, frozen=True):
    """Compression of batches, by topic; by default none."""

    size_threshold_percent: Annotated[
        int,
        fields.plain("A batch is sent compressed if that shrinks it to at most this percentage of its size.", 0, 100),
        LIVE,
    ] = 100
    default: Annotated[str | None, fields.plain("Config of topics not in `topics`. Absent: none."), LIVE] = None
    configs: dict[str, CompressionConfig] = field(default_factory=dict)
    topics: Annotated[dict[str, str], fields.plain("The config of a topic."), LIVE] = field(default_factory=dict)


class RateLimitConfig(Section, frozen=True):
    """A named limit for each topic separately."""

    interval_ms: Annotated[int, fields.plain("Length of a window.", 1, DAY_MS), LIVE]
    max_count: Annotated[
        int | None,
        fields.plain("Most messages in a window; further ones are discarded. Absent: no limit.", 0, INT32_MAX),
        LIVE,
    ] = None


class RateLimit(Section, frozen=True):
    """Limits on the messages of a topic from all inputs, by time of arrival; by default none."""

    default: Annotated[str | None, fields.plain("Config of topics not in `topics`. Absent: no limit."), LIVE] = None
    configs: dict[str, RateLimitConfig] = field(default_factory=dict)
    topics: Annotated[dict[str, str], fields.plain("The config of a topic."), LIVE] = field(default_factory=dict)


class TopicAlpha(Section, frozen=True):
    """A topic with its own `alpha`."""

    alpha: Annotated[int, fields.plain("The same for this topic. 0: no limit.", 0, MAX_ALPHA), LIVE]


class TopicShare(Section, frozen=True):
    """Limits on the slab memory of a topic with stuck delivery; see `docs/operating.md`."""

    alpha: Annotated[int, fields.plain(_ALPHA_MEANING, 0, MAX_ALPHA), LIVE] = 16
    topics: dict[str, TopicAlpha] = field(default_factory=dict)


class Http(Section, frozen=True):
    """The status pages."""

    listen: Annotated[
        str, fields.listen("Address of the pages; with port 0 the kernel chooses a port."), RESTART_TO_BIND
    ] = "127.0.0.1:9090"
    allowed_hosts: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[^\s:/\[\]]+\Z")], ...],
        fields.hosts("Further host names to accept in `Host` headers; see `docs/security.md`."),
        LIVE,
    ] = ()
    discard_report_interval_s: Annotated[int, fields.plain("Time that one discard report covers.", 1, 86_400), LIVE] = (
        600
    )
    stalled_after_s: Annotated[
        int,
        fields.plain("`/healthz` reports messages that wait longer for an acknowledgment.", 1, 3600),
        LIVE,
    ] = 5
    bad_msg_prefix_size: Annotated[
        int, fields.size("Bytes of a bad message in a discard report.", 0, 64 * KIB), LIVE
    ] = 256
    metrics_topics: Annotated[
        int,
        fields.plain("Topics with separate series on `/metrics`; the series of all other topics are summed.", 0, 5000),
        LIVE,
    ] = 100
    history_dir: Annotated[
        str | None,
        fields.path("Parent of the history's directory, which takes up to 64 MiB. Absent: the *state directory*."),
        restart("the status process opens the history at the start"),
    ] = None
    mode: Annotated[
        int | None,
        fields.mode("Mode of a UNIX socket; readers need write permission. Absent: the umask decides."),
        RESTART_TO_BIND,
    ] = None
    user: UserSetting = None
    group: GroupSetting = None
    token_file: Annotated[
        str | None, fields.path("File with the token that a request must have if it changes something."), LIVE
    ] = None
    token_env: Annotated[
        str | None, fields.pattern("Environment variable with that token.", ENV_VARIABLE, "BRUCE_TOKEN"), LIVE
    ] = None

    @property
    def address(self) -> HostPort | UnixPath:
        return parse_listen(self.listen)


class Events(Section, frozen=True):
    """A program that gets the daemon's events; see `docs/operating.md`."""

    command: Annotated[tuple[str, ...] | None, fields.command("The program. Absent: none."), LIVE] = None
    interval_s: Annotated[int, fields.plain("Least time between two starts.", 1, 3600), LIVE] = 10
    timeout_s: Annotated[int, fields.plain("The program is killed after this time.", 1, 300), LIVE] = 10


class DiscardLog(Section, frozen=True):
    """A file of all discarded messages; see `docs/delivery.md`."""

    enable: Annotated[bool, fields.plain("Write the file."), LIVE] = False
    path: Annotated[str, fields.path("The file; rotated files are in the same directory."), LIVE] = (
        "/var/log/bruce/discard.log"
    )
    max_file_size: Annotated[
        int, fields.size("Size at which the file is rotated; at least twice the largest message.", 0, 64 * GIB), LIVE
    ] = 64 * MIB
    max_archive_size: Annotated[
        int, fields.size("Total size of rotated files; the oldest are deleted.", 0, 64 * GIB), LIVE
    ] = 256 * MIB
    max_msg_prefix_size: Annotated[
        int | None, fields.size("Bytes of each key and value to keep. Absent: all.", 0, GIB), LIVE
    ] = None


class DeadLetterSection(Section, frozen=True):
    """A Kafka topic of all discarded messages; see `docs/delivery.md`."""

    topic: Annotated[
        str,
        fields.pattern("The topic. Empty: none.", "[A-Za-z0-9._-]{0,249}", "dead"),
        LIVE,
    ] = ""


class MsgDebug(Section, frozen=True):
    """Copies of messages, for debugging; see `docs/status.md`."""

    enable: Annotated[bool, fields.plain("Write the copies."), LIVE] = False
    path: Annotated[str, fields.path("Directory of the files."), LIVE] = "/var/log/bruce/debug"
    time_limit_s: Annotated[int, fields.plain("Stop after this time.", 1, INT32_MAX), LIVE] = 3_600
    byte_limit: Annotated[int, fields.size("Stop when all files together have this size.", 0, 64 * GIB), LIVE] = 2 * GIB


class LogFile(Section, frozen=True):
    """The log in a file."""

    enable: Annotated[bool, fields.plain("Write the file."), LIVE] = False
    path: Annotated[str, fields.path("The file."), LIVE] = "/var/log/bruce/bruce.log"
    mode: Annotated[int | None, fields.mode("Permission bits of the file. Absent: the umask decides."), LIVE] = None


class Logging(Section, frozen=True):
    """The daemon's log."""

    level: Annotated[
        Literal["EMERG", "ALERT", "CRIT", "ERR", "WARNING", "NOTICE", "INFO", "DEBUG"],
        fields.plain("Least important level to log."),
        LIVE,
    ] = "NOTICE"
    stdout_stderr: Annotated[
        bool, fields.plain("Log WARNING and worse to standard error, the rest to standard output."), LIVE
    ] = True
    format: Annotated[Literal["plain", "json"], fields.plain("Plain text, or a JSON object per line."), LIVE] = "plain"
    syslog: Annotated[bool, fields.plain("Log to syslog."), LIVE] = False
    journald: Annotated[bool, fields.plain("Log to systemd's journal, with fields."), LIVE] = False
    log_discards: Annotated[bool, fields.plain("Log discards, each kind at most once in 30 s."), LIVE] = True
    file: LogFile = LogFile()
