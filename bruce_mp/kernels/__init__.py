"""The interface of the per-message kernels.

Kernels do all work that occurs once for each message.  Other code works per run or per batch.  The names below are the
interface.  The modules of `pure` implement it in Python and specify each kernel.  The modules of `compiled` implement
it in Cython, in files of the same names.  The same tests run on both variants.  `CHOICE` tells which variant this
process uses.

The messages lie as *records* in the chunks of the *slab*, a memory-mapped file.  An input fills a chunk through a
*lane*.  Neighboring records that a lane hands over to the router as one unit are a *run*.  A *segment* names
neighboring records of a run.  docs/glossary.md has the other terms.

    DatagramReceiver    receives a batch of datagrams into the slab's landing zone
    DatagramIntake      receives datagrams and appends them to lanes, batch by batch; between two receives it may sleep
                        for the time that `ArrivalRate` computes, a *nap*
    StreamIntake        reads the *plain* connections of a stream worker (their messages need only be appended), and
                        appends the messages to lanes, round by round
    split_stream        finds the messages in a stream's bytes
    Lanes               parses and validates a batch of messages, and appends the valid ones to lanes
    count_outcomes      counts the outcomes of stream clients' messages in a chunk
    ChunkPool           allocates the chunks of an input, and reclaims them when all their records are settled
    ProcessRow          settles segments, moves them to other stages, and counts messages, in transactions of a
                        process row
    claim               makes this process the holder of segments, such as the segments that a frame names
    bind_partition      writes the partition of each segment, without sequence numbers
    write_sequence      writes the partition and the sequence numbers of consecutive segments
    assign_sequences    gives record batches the next sequence numbers of their partitions, and moves them to the
                        stage of sent messages
    read_headers        reads the headers of segments' runs; `group_by_partition` groups segments by topic and partition
    wait_times          sums the waiting times of record batches' messages, in total and by topic
    split_by_partition  splits a PartitionKey segment by the partitions of its keys
    split_at            splits a segment at a number of records or bytes
    split_by_size       splits a segment where a record within a size limit follows one above the limit, or the reverse
    time_range          returns the smallest and largest timestamp of a segment
    count_states        counts the records of chunks by state
    messages            copies the messages of a segment, or their first bytes
    encode              encodes the records of a RecordBatch v2; `record_batch` encodes the header as well
    encode_message_set  encodes a message set, formats 0 and 1, from segments
    produce_topics      encodes the topics of a produce request with uncompressed record batches
"""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.kernel_choice import KernelChoice, choose
from bruce_mp.kernels.pure.arrival_rate import NO_COALESCING, Coalescing
from bruce_mp.kernels.pure.counts import CountedPosition
from bruce_mp.kernels.pure.inspect import RunHeader, TimeRange, messages
from bruce_mp.kernels.pure.intake import PlainCounters
from bruce_mp.kernels.pure.lanes import Ingested, NoRoom
from bruce_mp.kernels.pure.parse import Failure, ParsedBatch, Partitioners, RejectedMessage
from bruce_mp.kernels.pure.stream_intake import (
    SplitStop,
    StreamCounters,
    StreamIntakeResult,
    StreamSplit,
    UncountedBatch,
)
from bruce_mp.kernels.pure.timestamps import ReplacedTimestamps, TimestampWindow, TimestampWindows
from bruce_mp.kernels.pure.wait_times import WaitTimes

CHOICE: Final[KernelChoice] = choose("bruce_mp.kernels", Path(__file__).parent)

if TYPE_CHECKING or not CHOICE.compiled:  # type checkers check both variants against the pure one
    from bruce_mp.kernels.pure.arrival_rate import ArrivalRate
    from bruce_mp.kernels.pure.chunks import ChunkPool
    from bruce_mp.kernels.pure.counts import count_outcomes, count_states
    from bruce_mp.kernels.pure.encode import encode, produce_topics, record_batch
    from bruce_mp.kernels.pure.inspect import group_by_partition, read_headers, time_range
    from bruce_mp.kernels.pure.intake import DatagramIntake, DatagramReceiver
    from bruce_mp.kernels.pure.lanes import Lanes
    from bruce_mp.kernels.pure.message_set import encode_message_set
    from bruce_mp.kernels.pure.rows import ProcessRow
    from bruce_mp.kernels.pure.segments import (
        assign_sequences,
        bind_partition,
        claim,
        split_at,
        split_by_partition,
        split_by_size,
        write_sequence,
    )
    from bruce_mp.kernels.pure.stream_intake import StreamIntake, StreamSource, split_stream
    from bruce_mp.kernels.pure.wait_times import wait_times
else:
    from bruce_mp.kernels.compiled.arrival_rate import ArrivalRate
    from bruce_mp.kernels.compiled.chunks import ChunkPool
    from bruce_mp.kernels.compiled.counts import count_outcomes, count_states
    from bruce_mp.kernels.compiled.encode import encode, produce_topics, record_batch
    from bruce_mp.kernels.compiled.inspect import group_by_partition, read_headers, time_range
    from bruce_mp.kernels.compiled.intake import DatagramIntake, DatagramReceiver
    from bruce_mp.kernels.compiled.lanes import Lanes
    from bruce_mp.kernels.compiled.message_set import encode_message_set
    from bruce_mp.kernels.compiled.rows import ProcessRow
    from bruce_mp.kernels.compiled.segments import (
        assign_sequences,
        bind_partition,
        claim,
        split_at,
        split_by_partition,
        split_by_size,
        write_sequence,
    )
    from bruce_mp.kernels.compiled.stream_intake import StreamIntake, StreamSource, split_stream
    from bruce_mp.kernels.compiled.wait_times import wait_times

__all__ = [
    "CHOICE",
    "NO_COALESCING",
    "ArrivalRate",
    "ChunkPool",
    "Coalescing",
    "CountedPosition",
    "DatagramIntake",
    "DatagramReceiver",
    "Failure",
    "Ingested",
    "Lanes",
    "NoRoom",
    "ParsedBatch",
    "Partitioners",
    "PlainCounters",
    "ProcessRow",
    "RejectedMessage",
    "ReplacedTimestamps",
    "RunHeader",
    "SplitStop",
    "StreamCounters",
    "StreamIntake",
    "StreamIntakeResult",
    "StreamSource",
    "StreamSplit",
    "TimeRange",
    "TimestampWindow",
    "TimestampWindows",
    "UncountedBatch",
    "WaitTimes",
    "assign_sequences",
    "bind_partition",
    "claim",
    "count_outcomes",
    "count_states",
    "encode",
    "encode_message_set",
    "group_by_partition",
    "messages",
    "produce_topics",
    "read_headers",
    "record_batch",
    "split_at",
    "split_by_partition",
    "split_by_size",
    "split_stream",
    "time_range",
    "wait_times",
    "write_sequence",
]
