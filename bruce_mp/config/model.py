"""The whole configuration as one frozen, picklable value: `load_config()` returns it, and every process receives it."""

from bruce_mp.config import topics
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
from bruce_mp.config.topics import TopicBatching


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
        """Return the directory of the spill files."""
        return disk_path_for(self.slab_path, self.input.streams.spill_dir, "spill")

    @property
    def journal_path(self) -> str:
        """Return the directory of the journal."""
        return disk_path_for(self.slab_path, self.slab.journal_dir, "journal")

    @property
    def history_path(self) -> str:
        """Return the directory of the status pages' history."""
        return disk_path_for(self.slab_path, self.http.history_dir, "history")

    def batching_for(self, topic: bytes) -> TopicBatching:
        """Return the batching of `topic`."""
        return topics.batching_for(self.batching, topic)

    def compression_for(self, topic: bytes) -> CompressionConfig:
        """Return the compression of `topic`."""
        return topics.compression_for(self.compression, topic)

    def partitioner_for(self, topic: bytes) -> PartitionerName:
        """Return the partitioner of `topic`."""
        return topics.partitioner_for(self.partitioner, topic)

    def keys_wait_for(self, topic: bytes) -> bool:
        """Return True if messages with keys wait for their partition's leader, False if they may go elsewhere."""
        return self.partitioner.without_leader == "wait" and self.partitioner_for(topic) != "none"

    def rate_limit_for(self, topic: bytes) -> RateLimitConfig | None:
        """Return the rate limit of `topic`, or None for no limit."""
        return topics.rate_limit_for(self.rate_limit, topic)

    def timestamp_policy_for(self, topic: bytes, input_policy: TimestampPolicy | None) -> TimestampPolicy:
        """Return the timestamp policy for messages of `topic` from an input with the policy `input_policy`."""
        return topics.timestamp_policy_for(self.timestamps, topic, input_policy)

    def alpha_for(self, topic: bytes) -> int:
        """Return the factor alpha of `topic`: it may hold so many times the free memory of the slab. 0: no limit."""
        return topics.alpha_for(self.topic_share, topic)
