"""The whole configuration as one frozen, picklable value: `load_config()` returns it, and every process receives it.

Clients send the names of topics as bytes, while the configuration has them as text. A topic with a name that is not
UTF-8 cannot be configured by name, so the rule for unlisted topics applies to it.
"""

from bruce_mp.config.fields import Section
from bruce_mp.config.inputs import Input, TimestampPolicy, Timestamps
from bruce_mp.config.paths import disk_path_for, slab_path_for
from bruce_mp.config.sections import (
    Batching,
    Compression,
    CompressionConfig,
    DaemonSection,
    DeadLetterSection,
    Delivery,
    DiscardLog,
    Events,
    Http,
    Kafka,
    Logging,
    MsgDebug,
    PartitionerName,
    PartitionerSection,
    RateLimit,
    RateLimitConfig,
    SlabSection,
    TopicShare,
)
from bruce_mp.config.topics import NO_COMPRESSION, TopicBatching, batching_of_rule


class Config(Section, frozen=True):
    """The settings of a daemon; a missing section has its defaults."""

    kafka: Kafka
    input: Input = Input()
    slab: SlabSection = SlabSection()
    daemon: DaemonSection = DaemonSection()
    timestamps: Timestamps = Timestamps()
    partitioner: PartitionerSection = PartitionerSection()
    delivery: Delivery = Delivery()
    batching: Batching = Batching()
    compression: Compression = Compression()
    rate_limit: RateLimit = RateLimit()
    topic_share: TopicShare = TopicShare()
    http: Http = Http()
    events: Events = Events()
    discard_log: DiscardLog = DiscardLog()
    discards: DeadLetterSection = DeadLetterSection()
    msg_debug: MsgDebug = MsgDebug()
    logging: Logging = Logging()

    @property
    def slab_path(self) -> str:
        """Return `slab.path`, or the default path for the run directory."""
        return self.slab.path or slab_path_for(self.daemon.run_dir)

    @property
    def spill_path(self) -> str:
        """Return the directory of the spill files, which take messages of large fenced attempts."""
        return disk_path_for(self.slab_path, self.input.streams.spill_dir, "spill")

    @property
    def journal_path(self) -> str:
        """Return the directory of the journal, the copy of held messages on disk."""
        return disk_path_for(self.slab_path, self.slab.journal_dir, "journal")

    @property
    def history_path(self) -> str:
        """Return the directory of the history that the status pages show."""
        return disk_path_for(self.slab_path, self.http.history_dir, "history")

    def batching_for(self, topic: bytes) -> TopicBatching:
        """Return the batching by the topic's own rule, or else by the rule for unlisted topics."""
        return batching_of_rule(self.batching, self.batching.topics.get(_decode(topic), self.batching.default))

    def compression_for(self, topic: bytes) -> CompressionConfig:
        """Return the topic's own compression, or else that of unlisted topics, or else no compression."""
        name = self.compression.topics.get(_decode(topic), self.compression.default)
        return NO_COMPRESSION if name is None else self.compression.configs[name]

    def partitioner_for(self, topic: bytes) -> PartitionerName:
        """Return the topic's own partitioner, or else the partitioner of unlisted topics."""
        return self.partitioner.topics.get(_decode(topic), self.partitioner.default)

    def keys_wait_for(self, topic: bytes) -> bool:
        """Return True if messages with record keys wait for a leader of their partition, else False."""
        return self.partitioner.without_leader == "wait" and self.partitioner_for(topic) != "none"

    def rate_limit_for(self, topic: bytes) -> RateLimitConfig | None:
        """Return the topic's own rate limit, or else that of unlisted topics, or else None."""
        name = self.rate_limit.topics.get(_decode(topic), self.rate_limit.default)
        return None if name is None else self.rate_limit.configs[name]

    def timestamp_policy_for(self, topic: bytes, input_policy: TimestampPolicy | None) -> TimestampPolicy:
        """Return the topic's own policy, or else the policy of the message's input, or else the general policy."""
        return self.timestamps.topics.get(_decode(topic)) or input_policy or self.timestamps.policy

    def alpha_for(self, topic: bytes) -> int:
        """Return the alpha of a topic: the topic may hold alpha times the free memory of the slab; 0 means no limit."""
        shares = self.topic_share
        return shares.topics.get(_decode(topic), shares).alpha  # `shares.alpha` is for unlisted topics


def _decode(topic: bytes) -> str:
    return topic.decode("utf-8", "surrogateescape")
