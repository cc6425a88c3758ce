"""The interface of the per-message kernels.

Kernels do all work that occurs once for each message.  Other code works per run or per batch.  The modules of `pure`
specify the kernels, and implement them in Python.  The modules of `compiled` implement them in Cython, in files of the
same names.  The same tests run on both variants.  `CHOICE` tells which variant this process uses.

    intake          receives datagrams and appends them to lanes
    stream_intake   reads stream connections and appends their messages to lanes
    lanes           parses a batch and appends its messages to the open runs of lanes (`parse`, `lane`, `lane_chunks`,
                    `timestamps`)
    arrival_rate    computes the naps of an input
    chunks          allocates and reclaims the chunks of an input
    rows            settles segments, moves them to other stages, and counts messages, in transactions
    deliveries      settles delivered batches, and sums their messages by topic
    segments        claims segments, writes their partitions and sequence numbers, splits and packs segments
    inspect         reads run headers, timestamps and messages; queues runs whose partition is chosen
    counts          counts records by state, and the outcomes of stream clients' messages
    acks            reads produce responses without errors
    encode          encodes segments as record batches (`message_set`: as a message set)

In the kernels, a name with the suffix `_at` is an offset in the slab or in a buffer.  `at` alone is the place of the
next read or write: an offset in Python, mostly an address in Cython.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.kernel_choice import KernelChoice, choose
from bruce_mp.kernels.pure.arrival_rate import NO_COALESCING, Coalescing
from bruce_mp.kernels.pure.counts import CountedPosition
from bruce_mp.kernels.pure.deliveries import DeliveryCounters
from bruce_mp.kernels.pure.inspect import ChosenPartition, RunHeader, RunQueue, TimeRange, messages
from bruce_mp.kernels.pure.intake import PlainCounters
from bruce_mp.kernels.pure.lanes import Ingested, NoRoom
from bruce_mp.kernels.pure.parse import Failure, ParsedBatch, PartitionerOfTopic, RejectedMessage
from bruce_mp.kernels.pure.segments import ClaimedRun
from bruce_mp.kernels.pure.stream_intake import (
    SplitStop,
    StreamCounters,
    StreamIntakeResult,
    StreamSplit,
    UncountedBatch,
)
from bruce_mp.kernels.pure.timestamps import TimestampWindow, TopicReplacements, WindowOfTopic

CHOICE: Final[KernelChoice] = choose("bruce_mp.kernels", Path(__file__).parent)

if TYPE_CHECKING or not CHOICE.compiled:  # type checkers check both variants against the pure one
    from bruce_mp.kernels.pure.acks import read_accepted
    from bruce_mp.kernels.pure.arrival_rate import ArrivalRate
    from bruce_mp.kernels.pure.chunks import ChunkPool
    from bruce_mp.kernels.pure.counts import count_outcomes, count_states
    from bruce_mp.kernels.pure.deliveries import Deliveries
    from bruce_mp.kernels.pure.encode import encode, produce_topics, record_batch
    from bruce_mp.kernels.pure.inspect import queue_chosen, read_headers, time_range
    from bruce_mp.kernels.pure.intake import DatagramIntake, DatagramReceiver
    from bruce_mp.kernels.pure.lanes import Lanes
    from bruce_mp.kernels.pure.message_set import encode_message_set
    from bruce_mp.kernels.pure.rows import ProcessRow
    from bruce_mp.kernels.pure.segments import (
        assign_sequences,
        bind_partition,
        claim,
        claim_runs,
        pack_segments,
        split_at,
        split_by_partition,
        split_by_size,
        write_sequence,
    )
    from bruce_mp.kernels.pure.stream_intake import StreamIntake, StreamSource, split_stream
else:
    from bruce_mp.kernels.compiled.acks import read_accepted
    from bruce_mp.kernels.compiled.arrival_rate import ArrivalRate
    from bruce_mp.kernels.compiled.chunks import ChunkPool
    from bruce_mp.kernels.compiled.counts import count_outcomes, count_states
    from bruce_mp.kernels.compiled.deliveries import Deliveries
    from bruce_mp.kernels.compiled.encode import encode, produce_topics, record_batch
    from bruce_mp.kernels.compiled.inspect import queue_chosen, read_headers, time_range
    from bruce_mp.kernels.compiled.intake import DatagramIntake, DatagramReceiver
    from bruce_mp.kernels.compiled.lanes import Lanes
    from bruce_mp.kernels.compiled.message_set import encode_message_set
    from bruce_mp.kernels.compiled.rows import ProcessRow
    from bruce_mp.kernels.compiled.segments import (
        assign_sequences,
        bind_partition,
        claim,
        claim_runs,
        pack_segments,
        split_at,
        split_by_partition,
        split_by_size,
        write_sequence,
    )
    from bruce_mp.kernels.compiled.stream_intake import StreamIntake, StreamSource, split_stream

__all__ = [
    "CHOICE",
    "NO_COALESCING",
    "ArrivalRate",
    "ChosenPartition",
    "ChunkPool",
    "ClaimedRun",
    "Coalescing",
    "CountedPosition",
    "DatagramIntake",
    "DatagramReceiver",
    "Deliveries",
    "DeliveryCounters",
    "Failure",
    "Ingested",
    "Lanes",
    "NoRoom",
    "ParsedBatch",
    "PartitionerOfTopic",
    "PlainCounters",
    "ProcessRow",
    "RejectedMessage",
    "RunHeader",
    "RunQueue",
    "SplitStop",
    "StreamCounters",
    "StreamIntake",
    "StreamIntakeResult",
    "StreamSource",
    "StreamSplit",
    "TimeRange",
    "TimestampWindow",
    "TopicReplacements",
    "UncountedBatch",
    "WindowOfTopic",
    "assign_sequences",
    "bind_partition",
    "claim",
    "claim_runs",
    "count_outcomes",
    "count_states",
    "encode",
    "encode_message_set",
    "messages",
    "pack_segments",
    "produce_topics",
    "queue_chosen",
    "read_accepted",
    "read_headers",
    "record_batch",
    "split_at",
    "split_by_partition",
    "split_by_size",
    "split_stream",
    "time_range",
    "write_sequence",
]
