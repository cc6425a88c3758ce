"""The sections of the configuration file: every setting with its type, range, default and meaning.

The one place that knows the settings.  The decoder checks files against it, the reference page is rendered from it.
Values are plain: sizes are bytes, modes are permission bits, paths and addresses are text.  A setting whose default is
`None` may be left out, and its meaning says what happens then.  What spans several settings (a name that has to be
defined somewhere) is in `checks.py`.

A section's docstring is its text on the reference page.
"""

# No `from __future__ import annotations` here: what the annotations name is used at run time.

import os
from typing import Annotated, Final, Literal

from msgspec import Struct

from bruce_mp.config import fields
from bruce_mp.config.addresses import HostPort, UnixPath, parse_host_port, parse_listen
from bruce_mp.config.fields import Kind
from bruce_mp.config.security import Sasl, Tls
from bruce_mp.config.sizes import GIB, KIB, MIB

INT32_MAX: Final = 2**31 - 1
DAY_MS: Final = 24 * 60 * 60 * 1000
MONTH_MIN: Final = 31 * 24 * 60

SMALLEST_MESSAGE: Final = 29
"""Bytes of the smallest message that a client can send."""

Action = Literal["per_topic", "combined", "none"]


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the configuration file."""


class Kafka(Section, frozen=True):
    """The Kafka cluster and how to talk to it."""

    bootstrap_servers: Annotated[
        tuple[str, ...],
        fields.servers("Brokers to ask for metadata, at the start and whenever all known ones are gone."),
    ]
    client_id: Annotated[
        str, fields.pattern("Our name in requests, logs and quotas of the brokers.", "^.+$", "bruce")
    ] = "bruce"
    required_acks: Annotated[
        Literal[-1, 0, 1],
        fields.choice(
            "Who has to have a batch before the broker acknowledges it: -1 all in-sync replicas, 1 the leader. "
            "With 0 nobody acknowledges: delivery is at most once, and what a broker loses is counted as delivered."
        ),
    ] = -1
    replication_timeout_ms: Annotated[
        int, fields.count("How long a broker may wait for the acks of the replicas.", 1, INT32_MAX)
    ] = 10_000
    empty_values: Annotated[
        Literal["null", "empty"],
        fields.choice(
            "What a message without value bytes becomes: null, which deletes its key from a compacted topic (as with "
            "Bruce and Dory), or an empty value. An empty key is always null."
        ),
    ] = "null"
    broker_version: (
        Annotated[
            str,
            fields.pattern(
                "Release of the brokers, if they are too old to be asked for it (before 0.10). Absent: ask them.",
                r"^[0-9]+(\.[0-9]+){1,3}$",
                "0.9.0.1",
            ),
        ]
        | None
    ) = None
    tls: Tls = Tls()
    sasl: Sasl = Sasl()

    @property
    def servers(self) -> tuple[HostPort, ...]:
        """`bootstrap_servers`, parsed."""
        return tuple(parse_host_port(server) for server in self.bootstrap_servers)


class UnixDatagram(Section, frozen=True):
    """The datagram socket: one message, one `sendto()`."""

    enable: Annotated[bool, fields.switch("Receive on this socket.")] = True
    path: Annotated[str, fields.path("The socket's place in the file system.", Kind.SOCKET_PATH)] = "/run/bruce.dgram"
    when_full: Annotated[
        Literal["discard", "block"],
        fields.choice(
            "What happens to new messages when the slab is full: they are discarded and counted, or their senders "
            "wait until there is room."
        ),
    ] = "discard"
    mode: (
        Annotated[int, fields.mode("Permission bits of the socket; senders need write. Absent: the umask decides.")]
        | None
    ) = None
    user: (
        Annotated[str, fields.text("Name or number of the user who owns the socket file. Absent: the daemon's own.")]
        | None
    ) = None
    group: (
        Annotated[
            str, fields.text("Name or number of the file's group. Absent: that of a file the daemon makes there.")
        ]
        | None
    ) = None


class UnixStream(Section, frozen=True):
    """The UNIX stream socket: messages back to back, with back-pressure."""

    enable: Annotated[bool, fields.switch("Accept connections on this socket.")] = False
    path: Annotated[str, fields.path("The socket's place in the file system.", Kind.SOCKET_PATH)] = "/run/bruce.stream"
    mode: (
        Annotated[int, fields.mode("Permission bits of the socket; senders need write. Absent: the umask decides.")]
        | None
    ) = None
    user: (
        Annotated[str, fields.text("Name or number of the user who owns the socket file. Absent: the daemon's own.")]
        | None
    ) = None
    group: (
        Annotated[
            str, fields.text("Name or number of the file's group. Absent: that of a file the daemon makes there.")
        ]
        | None
    ) = None


class Tcp(Section, frozen=True):
    """The same stream over TCP, for programs without UNIX sockets. Whoever can connect can send."""

    enable: Annotated[bool, fields.switch("Accept connections on this port.")] = False
    host: Annotated[str, fields.pattern("Address to listen on.", r"^[^\s\[\]]+$", "127.0.0.1")] = "127.0.0.1"
    port: Annotated[int, fields.count("Port; 0 lets the kernel choose one.", 0, 65535)] = 9000
    loopback_only: Annotated[bool, fields.switch("Refuse to start with a `host` that other hosts can reach.")] = True


class Streams(Section, frozen=True):
    """What the UNIX stream socket and the TCP port have in common: the processes that serve them."""

    workers: Annotated[
        int,
        fields.count("Processes that share the connections; 0: half as many as there are cores, 8 at the most.", 0, 28),
    ] = 0
    when_full: Annotated[
        Literal["discard", "block"],
        fields.choice(
            "What happens to new messages when the slab is full: they are discarded and counted, or nothing is read "
            "from the connections until there is room."
        ),
    ] = "block"

    max_attempt_size: Annotated[
        int,
        fields.size(
            "Most of the slab that a fenced attempt may have; a larger one is discarded. Less if all that are open on "
            "a process need more than its part of half of the slab together; 0: that part.",
            0,
            64 * GIB,
        ),
    ] = 0

    @property
    def processes(self) -> int:
        """`workers`, or what it is on this machine."""
        return self.workers or min(8, ((os.cpu_count() or 1) + 1) // 2)


class Input(Section, frozen=True):
    """Where messages come in."""

    max_datagram_size: Annotated[
        int, fields.size("Largest datagram; a longer one is cut, and counted as malformed.", SMALLEST_MESSAGE, 16 * MIB)
    ] = 64 * KIB
    allow_large_datagrams: Annotated[
        bool, fields.switch("Allow a `max_datagram_size` that clients reach only with a raised SO_SNDBUF.")
    ] = False
    max_stream_size: Annotated[
        int, fields.size("Largest message on a stream, without the 4 bytes of its size.", SMALLEST_MESSAGE - 4, GIB)
    ] = 2 * MIB
    unix_datagram: UnixDatagram = UnixDatagram()
    unix_stream: UnixStream = UnixStream()
    tcp: Tcp = Tcp()
    streams: Streams = Streams()


class Slab(Section, frozen=True):
    """The buffer: one memory-mapped file that holds every message until Kafka has it."""

    path: (
        Annotated[
            str,
            fields.path(
                "The file. On a disk it survives a reboot. Absent: in `/dev/shm`, named after `daemon.run_dir` "
                "(`/run/bruce` gives `/dev/shm/bruce-run-bruce.slab`)."
            ),
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
    ] = "/run/bruce"


class Delivery(Section, frozen=True):
    """How messages get to Kafka, and what happens when they do not."""

    topic_autocreate: Annotated[
        bool,
        fields.switch(
            "Have the brokers create a topic that they do not know; its messages wait meanwhile. Brokers before 0.10.1 "
            "do so only if their `auto.create.topics.enable` is set; those before 2.4 also, unless the next two are."
        ),
    ] = False
    topic_autocreate_partitions: (
        Annotated[int, fields.count("Partitions of a topic that is created. Absent: the brokers decide.", 1, INT32_MAX)]
        | None
    ) = None
    topic_autocreate_replication: (
        Annotated[int, fields.count("Replicas of a topic that is created. Absent: the brokers decide.", 1, 32_767)]
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
        ]
        | None
    ) = None
    max_in_flight: Annotated[int, fields.count("Produce requests sent to one broker and not yet answered.", 1, 5)] = 5
    shutdown_max_delay_ms: Annotated[
        int, fields.count("How long a shutdown may wait for acks; what is left stays in the slab.", 0, DAY_MS)
    ] = 30_000
    dispatcher_restart_max_delay_ms: Annotated[
        int,
        fields.count(
            "How long a pause or a change of the metadata waits for outstanding answers; then the connection is "
            "given up.",
            0,
            DAY_MS,
        ),
    ] = 5_000
    metadata_refresh_interval_min: Annotated[
        int,
        fields.count("Minutes between metadata refreshes, varied by 20 % either way; 0 turns them off.", 0, MONTH_MIN),
    ] = 15
    compare_metadata_on_refresh: Annotated[
        bool,
        fields.switch(
            "Leave everything as it is if a refresh brought nothing new; if false, each refresh awaits what was "
            "sent and has the rest sent out anew."
        ),
    ] = True
    kafka_socket_timeout_s: Annotated[
        int, fields.count("How long a broker may be silent while an answer is due.", 1, 86_400)
    ] = 60
    # Shorter than the reference's (5 s, 5 s, 4 times), whose pauses stop everything: ours stop what is concerned.
    pause_rate_limit_initial_ms: Annotated[
        int, fields.count("First back-off between two pauses of a partition or a broker.", 1, DAY_MS)
    ] = 500
    pause_rate_limit_max_double: Annotated[int, fields.count("How often the back-off doubles at most.", 0, 20)] = 6
    min_pause_delay_ms: Annotated[int, fields.count("Shortest pause.", 0, DAY_MS)] = 200

    @property
    def attempt_limit(self) -> int | None:
        """`max_failed_attempts`, where `None` is the only way to say "no limit"."""
        return self.max_failed_attempts or None


class BatchLimits(Section, frozen=True):
    """A named set of limits for a batch. The first that is reached sends it; at least one has to be given."""

    time_ms: Annotated[int, fields.count("Age of the oldest message. Absent: no limit.", 1, DAY_MS)] | None = None
    messages: Annotated[int, fields.count("Number of messages. Absent: no limit.", 1, INT32_MAX)] | None = None
    bytes: Annotated[int, fields.size("Keys and values together. Absent: no limit.", 1, GIB)] | None = None


class CombinedBatching(Section, frozen=True):
    """Batches of all combined topics together, one per broker."""

    enable: Annotated[bool, fields.switch("If false, topics with the action `combined` are not batched.")] = True
    config: Annotated[str, fields.text("Name of the limits.")] = "standard"


class DefaultBatching(Section, frozen=True):
    """Topics that are not listed below."""

    action: Annotated[
        Action, fields.choice("A batch of its own for each topic, one with all other combined topics, or none.")
    ] = "combined"
    config: Annotated[str, fields.text("Name of the limits; given with `per_topic` only.")] | None = None


class TopicRule(Section, frozen=True):
    """A topic with its own rule; quote a name with other characters than letters, digits, `_` and `-`."""

    action: Annotated[Action, fields.choice("As above.")]
    config: Annotated[str, fields.text("Name of the limits; given with `per_topic` only.")] | None = None


class Batching(Section, frozen=True):
    """How messages are gathered before they are sent.

    The limits named `standard` (100 ms or 256k) need no definition.
    """

    produce_request_data_limit: Annotated[
        int,
        fields.size(
            "Keys and values in one request to a broker; 0 sends each message in a request of its own.", 0, GIB
        ),
    ] = MIB
    message_max_bytes: Annotated[
        int,
        fields.size(
            "Largest message, and largest batch of a partition; as `message.max.bytes` of the brokers.", 1, GIB
        ),
    ] = 1_000_000
    configs: dict[str, BatchLimits] = {}
    combined: CombinedBatching = CombinedBatching()
    default: DefaultBatching = DefaultBatching()
    topics: dict[str, TopicRule] = {}


class CompressionConfig(Section, frozen=True):
    """A named way to compress."""

    type: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"],
        fields.choice(
            "The codec. A broker that is too old for lz4 (before 0.10) or zstd (before 2.1) gets snappy instead."
        ),
    ]
    min_size: Annotated[int, fields.size("A smaller batch is sent as it is.", 0, GIB)] = 128
    level: (
        Annotated[
            int, fields.count("For gzip 0 to 9, lz4 0 to 16, zstd 1 to 22. Absent: the codec's own default.", 0, 22)
        ]
        | None
    ) = None
    adaptive: Annotated[
        bool,
        fields.switch(
            "Stop compressing a topic whose batches do not get smaller by a tenth, and try it again now and then."
        ),
    ] = False


class Compression(Section, frozen=True):
    """What is compressed, and how. Nothing unless configured."""

    size_threshold_percent: Annotated[
        int, fields.count("Send the compressed form only if it has at most this share of the size.", 0, 100)
    ] = 100
    default: Annotated[str, fields.text("Name of the config for topics that are not listed. Absent: none.")] | None = (
        None
    )
    configs: dict[str, CompressionConfig] = {}
    topics: Annotated[dict[str, str], fields.text("Name of the config for a topic.")] = {}


class RateLimitConfig(Section, frozen=True):
    """A named limit, which holds for each topic by itself."""

    interval_ms: Annotated[int, fields.count("Length of a window.", 1, DAY_MS)]
    max_count: (
        Annotated[
            int, fields.count("Messages in a window; further ones are discarded. Absent: no limit.", 0, INT32_MAX)
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
        Annotated[str, fields.text("Name of the config for topics that are not listed. Absent: no limit.")] | None
    ) = None
    configs: dict[str, RateLimitConfig] = {}
    topics: Annotated[dict[str, str], fields.text("Name of the config for a topic.")] = {}


class Http(Section, frozen=True):
    """The status pages."""

    listen: Annotated[str, fields.listen("Where the pages are served; with port 0 the kernel chooses one.")] = (
        "127.0.0.1:9090"
    )
    discard_report_interval_s: Annotated[int, fields.count("Length of a discard report's period.", 1, 86_400)] = 600
    bad_msg_prefix_size: Annotated[int, fields.size("Bytes of a bad message that a report shows.", 0, 64 * KIB)] = 256

    @property
    def address(self) -> HostPort | UnixPath:
        """`listen`, parsed."""
        return parse_listen(self.listen)


class DiscardLog(Section, frozen=True):
    """A file of all discarded messages, from which they can be sent again; `docs/delivery.md` says more."""

    enable: Annotated[bool, fields.switch("Write the file.")] = False
    path: Annotated[str, fields.path("The file; rolled ones lie beside it.")] = "/var/log/bruce/discard.log"
    max_file_size: Annotated[
        int, fields.size("Size at which the file is rolled; at least twice the largest message.", 0, 64 * GIB)
    ] = 64 * MIB
    max_archive_size: Annotated[int, fields.size("Rolled files together; the oldest are deleted.", 0, 64 * GIB)] = (
        256 * MIB
    )
    max_msg_prefix_size: (
        Annotated[int, fields.size("Bytes of a key and of a value that are kept. Absent: all.", 0, GIB)] | None
    ) = None


class MsgDebug(Section, frozen=True):
    """Copies of messages on their way, for debugging; `docs/status.md` says how topics are chosen."""

    enable: Annotated[bool, fields.switch("Write the copies.")] = False
    path: Annotated[str, fields.path("Directory of the files.")] = "/var/log/bruce/debug"
    time_limit_s: Annotated[int, fields.count("Stop after this time.", 1, INT32_MAX)] = 3_600
    byte_limit: Annotated[int, fields.size("Stop after this much in all files together.", 0, 64 * GIB)] = 2 * GIB


class LogFile(Section, frozen=True):
    """The log in a file, which SIGUSR1 opens anew."""

    enable: Annotated[bool, fields.switch("Write the file.")] = False
    path: Annotated[str, fields.path("The file.")] = "/var/log/bruce/bruce.log"
    mode: Annotated[int, fields.mode("Permission bits of the file. Absent: the umask decides.")] | None = None


class Logging(Section, frozen=True):
    """The daemon's log."""

    level: Annotated[
        Literal["EMERG", "ALERT", "CRIT", "ERR", "WARNING", "NOTICE", "INFO", "DEBUG"],
        fields.choice("Least important level that is logged."),
    ] = "NOTICE"
    stdout_stderr: Annotated[
        bool, fields.switch("Log WARNING and worse to standard error, the rest to standard output.")
    ] = True
    format: Annotated[
        Literal["plain", "json"],
        fields.choice("Lines for people, or a JSON object on each; syslog and the journal have their own form."),
    ] = "plain"
    syslog: Annotated[bool, fields.switch("Log to syslog.")] = False
    journald: Annotated[bool, fields.switch("Log to systemd's journal, with fields.")] = False
    log_discards: Annotated[bool, fields.switch("Log discards, each kind at most once in 30 s.")] = True
    file: LogFile = LogFile()
