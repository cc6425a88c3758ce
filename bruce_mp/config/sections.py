"""The sections of the configuration file: every setting with its type, range, default and meaning.

The one place that knows the settings.  The decoder checks files against it, the reference page is rendered from it.
Values are plain: sizes are bytes, modes are permission bits, paths and addresses are text.  A setting whose default is
`None` may be left out, and its meaning says what happens then.  Each says whether a reload applies a change of it
(LIVE), or why only a restart does.  What spans several settings (a name that has to be defined somewhere) is in
`checks.py`.

A section's docstring is its text on the reference page.
"""

# No `from __future__ import annotations` here: what the annotations name is used at run time.

from typing import Annotated, Final, Literal

from msgspec import field

from bruce_mp.config import fields
from bruce_mp.config.access import Group, User
from bruce_mp.config.addresses import HostPort, UnixPath, parse_host_port, parse_listen
from bruce_mp.config.fields import LIVE, Kind, restart
from bruce_mp.config.limits import DAY_MS, INT32_MAX
from bruce_mp.config.section import BOUND, MADE_WITH_SLAB, Section
from bruce_mp.config.security import VARIABLE, Sasl, Tls
from bruce_mp.config.sizes import GIB, KIB, MIB

MONTH_MIN: Final = 31 * 24 * 60
MOST_ALPHA: Final = 1_000

NUMBERING: Final = restart("it decides whether batches are numbered, and there may be such in the slab")

Action = Literal["per_topic", "combined", "none"]


class Kafka(Section, frozen=True):
    """The Kafka cluster and how to talk to it."""

    bootstrap_servers: Annotated[
        tuple[str, ...],
        fields.servers("Brokers to ask for metadata, at the start and whenever all known ones are gone."),
        LIVE,
    ]
    client_id: Annotated[
        str, fields.pattern("Our name in requests, logs and quotas of the brokers.", "^.+$", "bruce"), LIVE
    ] = "bruce"
    required_acks: Annotated[
        Literal[-1, 0, 1],
        fields.choice(
            "Who has to have a batch before the broker acknowledges it: -1 all in-sync replicas, 1 the leader. "
            "With 0 nobody acknowledges: delivery is at most once, and what a broker loses is counted as delivered."
        ),
        NUMBERING,
    ] = -1
    replication_timeout_ms: Annotated[
        int, fields.count("How long a broker may wait for the acks of the replicas.", 1, INT32_MAX), LIVE
    ] = 10_000
    empty_values: Annotated[
        Literal["null", "empty"],
        fields.choice(
            "What a message without value bytes becomes: null, which deletes its key from a compacted topic (as with "
            "Bruce and Dory), or an empty value. An empty key is always null."
        ),
        LIVE,
    ] = "null"
    broker_version: (
        Annotated[
            str,
            fields.pattern(
                "Release of the brokers, if they are too old to be asked for it (before 0.10). Absent: ask them.",
                r"^[0-9]+(\.[0-9]+){1,3}$",
                "0.9.0.1",
            ),
            LIVE,
        ]
        | None
    ) = None
    tls: Tls = Tls()
    sasl: Sasl = Sasl()

    @property
    def servers(self) -> tuple[HostPort, ...]:
        """`bootstrap_servers`, parsed."""
        return tuple(parse_host_port(server) for server in self.bootstrap_servers)


class Slab(Section, frozen=True):
    """The buffer: one memory-mapped file that holds every message until Kafka has it."""

    path: (
        Annotated[
            str,
            fields.path(
                "The file. On a disk it survives a reboot. Absent: in `/dev/shm`, named after `daemon.run_dir` "
                "(`/run/bruce` gives `/dev/shm/bruce-run-bruce.slab`)."
            ),
            MADE_WITH_SLAB,
        ]
        | None
    ) = None
    size: Annotated[
        int,
        fields.size(
            "All the memory for messages. When it is full, new messages are discarded and counted. The file is up to "
            "10 MiB larger.",
            8 * MIB,
            64 * GIB,
        ),
        MADE_WITH_SLAB,
    ] = 128 * MIB


class Daemon(Section, frozen=True):
    """The daemon itself."""

    run_dir: Annotated[
        str,
        fields.path(
            "Directory of the sockets between the daemon's processes; made with mode 0700. Daemons on one host need "
            "one each.",
            Kind.RUN_DIR,
        ),
        restart("it is locked, and the processes meet in it"),
    ] = "/run/bruce"


class Delivery(Section, frozen=True):
    """How messages get to Kafka, and what happens when they do not."""

    topic_autocreate: Annotated[
        bool,
        fields.switch(
            "Have the brokers create a topic that they do not know; its messages wait meanwhile. Brokers before 0.10.1 "
            "do so only if their `auto.create.topics.enable` is set; those before 2.4 also, unless the next two are."
        ),
        LIVE,
    ] = False
    topic_autocreate_partitions: (
        Annotated[
            int, fields.count("Partitions of a topic that is created. Absent: the brokers decide.", 1, INT32_MAX), LIVE
        ]
        | None
    ) = None
    topic_autocreate_replication: (
        Annotated[
            int, fields.count("Replicas of a topic that is created. Absent: the brokers decide.", 1, 32_767), LIVE
        ]
        | None
    ) = None
    max_failed_attempts: (
        Annotated[
            int,
            fields.count(
                "Error answers that a message survives; one more discards it. Absent or 0: no limit as long as the "
                "cause is the state of the cluster.",
                0,
                INT32_MAX,
            ),
            LIVE,
        ]
        | None
    ) = None
    max_in_flight: Annotated[
        int, fields.count("Produce requests sent to one broker and not yet answered.", 1, 5), LIVE
    ] = 5
    shutdown_max_delay_ms: Annotated[
        int, fields.count("How long a shutdown may wait for acks; what is left stays in the slab.", 0, DAY_MS), LIVE
    ] = 30_000
    dispatcher_restart_max_delay_ms: Annotated[
        int,
        fields.count(
            "How long a pause or a change of the metadata waits for outstanding answers; then the connection is "
            "given up.",
            0,
            DAY_MS,
        ),
        LIVE,
    ] = 5_000
    metadata_refresh_interval_min: Annotated[
        int,
        fields.count("Minutes between metadata refreshes, varied by 20 % either way; 0 turns them off.", 0, MONTH_MIN),
        LIVE,
    ] = 15
    compare_metadata_on_refresh: Annotated[
        bool,
        fields.switch(
            "Leave everything as it is if a refresh brought nothing new; if false, each refresh awaits what was "
            "sent and has the rest sent out anew."
        ),
        LIVE,
    ] = True
    kafka_socket_timeout_s: Annotated[
        int, fields.count("How long a broker may be silent while an answer is due.", 1, 86_400), LIVE
    ] = 60
    # Shorter than the reference's (5 s, 5 s, 4 times), whose pauses stop everything: ours stop what is concerned.
    pause_rate_limit_initial_ms: Annotated[
        int, fields.count("First back-off between two pauses of a partition or a broker.", 1, DAY_MS), LIVE
    ] = 500
    pause_rate_limit_max_double: Annotated[
        int, fields.count("How often the back-off doubles at most.", 0, 20), LIVE
    ] = 6
    min_pause_delay_ms: Annotated[int, fields.count("Shortest pause.", 0, DAY_MS), LIVE] = 200

    @property
    def backoff(self) -> tuple[int, int, int]:
        """What a back-off goes by: its first length, how often it doubles, the shortest pause."""
        return self.pause_rate_limit_initial_ms, self.pause_rate_limit_max_double, self.min_pause_delay_ms

    @property
    def attempt_limit(self) -> int | None:
        """`max_failed_attempts`, where `None` is the only way to say "no limit"."""
        return self.max_failed_attempts or None


class BatchLimits(Section, frozen=True):
    """A named set of limits for a batch. The first that is reached sends it; at least one has to be given."""

    time_ms: Annotated[int, fields.count("Age of the oldest message. Absent: no limit.", 1, DAY_MS), LIVE] | None = None
    messages: Annotated[int, fields.count("Number of messages. Absent: no limit.", 1, INT32_MAX), LIVE] | None = None
    bytes: Annotated[int, fields.size("Keys and values together. Absent: no limit.", 1, GIB), LIVE] | None = None


class CombinedBatching(Section, frozen=True):
    """Batches of all combined topics together, one per broker."""

    enable: Annotated[bool, fields.switch("If false, topics with the action `combined` are not batched."), LIVE] = True
    config: Annotated[str, fields.text("Name of the limits."), LIVE] = "standard"


class DefaultBatching(Section, frozen=True):
    """Topics that are not listed below."""

    action: Annotated[
        Action, fields.choice("A batch of its own for each topic, one with all other combined topics, or none."), LIVE
    ] = "combined"
    config: Annotated[str, fields.text("Name of the limits; given with `per_topic` only."), LIVE] | None = None


class TopicRule(Section, frozen=True):
    """A topic with its own rule; quote a name with other characters than letters, digits, `_` and `-`."""

    action: Annotated[Action, fields.choice("As above."), LIVE]
    config: Annotated[str, fields.text("Name of the limits; given with `per_topic` only."), LIVE] | None = None


class Batching(Section, frozen=True):
    """How messages are gathered before they are sent.

    The limits named `standard` (100 ms or 256k) need no definition.
    """

    produce_request_data_limit: Annotated[
        int,
        fields.size(
            "Keys and values in one request to a broker; 0 sends each message in a request of its own.", 0, GIB
        ),
        LIVE,
    ] = MIB
    message_max_bytes: Annotated[
        int,
        fields.size(
            "Largest message, and largest batch of a partition; as `message.max.bytes` of the brokers.", 1, GIB
        ),
        LIVE,
    ] = 1_000_000
    configs: dict[str, BatchLimits] = field(default_factory=dict)
    combined: CombinedBatching = CombinedBatching()
    default: DefaultBatching = DefaultBatching()
    topics: dict[str, TopicRule] = field(default_factory=dict)


class CompressionConfig(Section, frozen=True):
    """A named way to compress."""

    type: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"],
        fields.choice(
            "The codec. A broker that is too old for lz4 (before 0.10) or zstd (before 2.1) gets snappy instead."
        ),
        LIVE,
    ]
    min_size: Annotated[int, fields.size("A smaller batch is sent as it is.", 0, GIB), LIVE] = 128
    level: (
        Annotated[
            int,
            fields.count("For gzip 0 to 9, lz4 0 to 16, zstd 1 to 22. Absent: the codec's own default.", 0, 22),
            LIVE,
        ]
        | None
    ) = None
    adaptive: Annotated[
        bool,
        fields.switch(
            "Stop compressing a topic whose batches do not get smaller by a tenth, and try it again now and then."
        ),
        LIVE,
    ] = False


class Compression(Section, frozen=True):
    """What is compressed, and how. Nothing unless configured."""

    size_threshold_percent: Annotated[
        int, fields.count("Send the compressed form only if it has at most this share of the size.", 0, 100), LIVE
    ] = 100
    default: (
        Annotated[str, fields.text("Name of the config for topics that are not listed. Absent: none."), LIVE] | None
    ) = None
    configs: dict[str, CompressionConfig] = field(default_factory=dict)
    topics: Annotated[dict[str, str], fields.text("Name of the config for a topic."), LIVE] = field(
        default_factory=dict
    )


class RateLimitConfig(Section, frozen=True):
    """A named limit, which holds for each topic by itself."""

    interval_ms: Annotated[int, fields.count("Length of a window.", 1, DAY_MS), LIVE]
    max_count: (
        Annotated[
            int, fields.count("Messages in a window; further ones are discarded. Absent: no limit.", 0, INT32_MAX), LIVE
        ]
        | None
    ) = None


class RateLimit(Section, frozen=True):
    """How many messages of a topic may come in. No limit unless configured.

    A message counts in the window in which it arrived; the first window begins with the topic's first message. The
    first `max_count` of a window pass, the others are discarded and reported by topic. A limit is for the whole daemon,
    whatever input the messages come by. When the router dies, the windows begin anew.
    """

    default: (
        Annotated[str, fields.text("Name of the config for topics that are not listed. Absent: no limit."), LIVE] | None
    ) = None
    configs: dict[str, RateLimitConfig] = field(default_factory=dict)
    topics: Annotated[dict[str, str], fields.text("Name of the config for a topic."), LIVE] = field(
        default_factory=dict
    )


class TopicAlpha(Section, frozen=True):
    """A topic with its own factor."""

    alpha: Annotated[int, fields.count("As above.", 0, MOST_ALPHA), LIVE]


class TopicShare(Section, frozen=True):
    """How much of the slab the undelivered messages of one topic may take, so that a stuck topic stops no other.

    The limit follows the free memory: with `alpha = 8` a single stuck topic takes up to 83 % of the slab, three take
    90 %, and any number leave a part for the others. `docs/operating.md` says how to choose.
    """

    alpha: Annotated[
        int,
        fields.count(
            "A topic may hold at most so many times as much as is free; what is beyond is discarded as "
            "TOPIC_OVER_SHARE, or its connections wait. 0: no limit.",
            0,
            MOST_ALPHA,
        ),
        LIVE,
    ] = 8
    topics: dict[str, TopicAlpha] = field(default_factory=dict)


class Http(Section, frozen=True):
    """The status pages."""

    listen: Annotated[str, fields.listen("Where the pages are served; with port 0 the kernel chooses one."), BOUND] = (
        "127.0.0.1:9090"
    )
    discard_report_interval_s: Annotated[int, fields.count("Length of a discard report's period.", 1, 86_400), LIVE] = (
        600
    )
    bad_msg_prefix_size: Annotated[
        int, fields.size("Bytes of a bad message that a report shows.", 0, 64 * KIB), LIVE
    ] = 256
    mode: (
        Annotated[
            int, fields.mode("Permission bits of a UNIX socket; readers need write. Absent: the umask decides."), BOUND
        ]
        | None
    ) = None
    user: User = None
    group: Group = None
    token_file: (
        Annotated[str, fields.path("File with a token, without which nobody may change anything."), LIVE] | None
    ) = None
    token_env: (
        Annotated[str, fields.pattern("Environment variable with that token.", VARIABLE, "BRUCE_TOKEN"), LIVE] | None
    ) = None

    @property
    def address(self) -> HostPort | UnixPath:
        """`listen`, parsed."""
        return parse_listen(self.listen)


class DiscardLog(Section, frozen=True):
    """A file of all discarded messages, from which they can be sent again; `docs/delivery.md` says more."""

    enable: Annotated[bool, fields.switch("Write the file."), LIVE] = False
    path: Annotated[str, fields.path("The file; rolled ones lie beside it."), LIVE] = "/var/log/bruce/discard.log"
    max_file_size: Annotated[
        int, fields.size("Size at which the file is rolled; at least twice the largest message.", 0, 64 * GIB), LIVE
    ] = 64 * MIB
    max_archive_size: Annotated[
        int, fields.size("Rolled files together; the oldest are deleted.", 0, 64 * GIB), LIVE
    ] = 256 * MIB
    max_msg_prefix_size: (
        Annotated[int, fields.size("Bytes of a key and of a value that are kept. Absent: all.", 0, GIB), LIVE] | None
    ) = None


class MsgDebug(Section, frozen=True):
    """Copies of messages on their way, for debugging; `docs/status.md` says how topics are chosen."""

    enable: Annotated[bool, fields.switch("Write the copies."), LIVE] = False
    path: Annotated[str, fields.path("Directory of the files."), LIVE] = "/var/log/bruce/debug"
    time_limit_s: Annotated[int, fields.count("Stop after this time.", 1, INT32_MAX), LIVE] = 3_600
    byte_limit: Annotated[int, fields.size("Stop after this much in all files together.", 0, 64 * GIB), LIVE] = 2 * GIB


class LogFile(Section, frozen=True):
    """The log in a file. One that is renamed is replaced with the next line, without a signal."""

    enable: Annotated[bool, fields.switch("Write the file."), LIVE] = False
    path: Annotated[str, fields.path("The file."), LIVE] = "/var/log/bruce/bruce.log"
    mode: Annotated[int, fields.mode("Permission bits of the file. Absent: the umask decides."), LIVE] | None = None


class Logging(Section, frozen=True):
    """The daemon's log."""

    level: Annotated[
        Literal["EMERG", "ALERT", "CRIT", "ERR", "WARNING", "NOTICE", "INFO", "DEBUG"],
        fields.choice("Least important level that is logged."),
        LIVE,
    ] = "NOTICE"
    stdout_stderr: Annotated[
        bool, fields.switch("Log WARNING and worse to standard error, the rest to standard output."), LIVE
    ] = True
    format: Annotated[
        Literal["plain", "json"],
        fields.choice("Lines for people, or a JSON object on each; syslog and the journal have their own form."),
        LIVE,
    ] = "plain"
    syslog: Annotated[bool, fields.switch("Log to syslog."), LIVE] = False
    journald: Annotated[bool, fields.switch("Log to systemd's journal, with fields."), LIVE] = False
    log_discards: Annotated[bool, fields.switch("Log discards, each kind at most once in 30 s."), LIVE] = True
    file: LogFile = LogFile()
