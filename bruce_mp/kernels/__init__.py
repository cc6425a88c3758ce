"""The work per message, behind one interface.

Everything that is done once a message is done here, over runs of records in the slab; all other code works per run or
per batch.  The names below are the interface.  `pure` implements it in Python and says what each kernel does,
`compiled` in Cython; the same tests hold for both.  `choice` decides which are used.

    Receiver       a batch of datagrams into the landing zone
    cut            the messages in what came on a stream
    Intake         datagrams from a socket into lanes, batch by batch; `Pace`: how long it may sleep meanwhile
    Lanes          parse and validate a batch, append it to lanes as runs
    tally          what became of the messages of stream connections in a chunk
    take           keep those segments of a frame whose words say that they are ours, and make them so
    mark           store a word for segments
    place          write partition and sequence numbers of segments; `bind`: the partition of each
    number         both for record batches, with the next sequence numbers of their partitions
    ChunkPool      the chunks of an input, reclaimed when all their records are settled
    Row            a process row whose transactions settle segments
    heads          what the headers of segments say; also `by_place`: segments by topic and partition
    waits          how long the messages of record batches have waited, all and by topic
    by_partition   split PartitionKey runs by the partition that each key designates
    by_size        cut a segment where its records stop fitting a limit
    head_of        cut a segment at a number of records or bytes
    time_span      the timestamps of a segment; `messages` are copies of its messages, or of their beginnings
    encode         the records section of a RecordBatch v2 from segments; `record_batch` adds the header
    encode_message_set  the messages of a message set, formats 0 and 1, from segments
"""

from bruce_mp.kernels.choice import CHOICE
from bruce_mp.kernels.pure.cut import Cut, Stop
from bruce_mp.kernels.pure.encode import Encoded
from bruce_mp.kernels.pure.heads import RunHead
from bruce_mp.kernels.pure.intake import PlainCounters
from bruce_mp.kernels.pure.lanes import Ingested, NoRoom
from bruce_mp.kernels.pure.look import TimeSpan, messages
from bruce_mp.kernels.pure.message_set import EncodedSet
from bruce_mp.kernels.pure.pace import NO_NAPS, Naps
from bruce_mp.kernels.pure.parse import Batch, Failure, Rejection
from bruce_mp.kernels.pure.tally import Place
from bruce_mp.kernels.pure.timestamps import ReplacedTimestamps, TimestampWindow, Windows
from bruce_mp.kernels.pure.waits import Waits

if CHOICE.compiled:
    from bruce_mp.kernels.compiled.chunks import ChunkPool
    from bruce_mp.kernels.compiled.encode import encode, record_batch
    from bruce_mp.kernels.compiled.heads import by_place, heads
    from bruce_mp.kernels.compiled.lanes import Intake, Lanes, Pace
    from bruce_mp.kernels.compiled.look import time_span
    from bruce_mp.kernels.compiled.message_set import encode_message_set
    from bruce_mp.kernels.compiled.receive import Receiver
    from bruce_mp.kernels.compiled.rows import Row
    from bruce_mp.kernels.compiled.segments import (
        bind,
        by_partition,
        by_size,
        head_of,
        mark,
        number,
        place,
        take,
    )
    from bruce_mp.kernels.compiled.streams import cut, tally
    from bruce_mp.kernels.compiled.waits import waits
else:
    from bruce_mp.kernels.pure.cut import cut
    from bruce_mp.kernels.pure.encode import encode, record_batch
    from bruce_mp.kernels.pure.heads import by_place, heads
    from bruce_mp.kernels.pure.intake import Intake
    from bruce_mp.kernels.pure.lanes import Lanes
    from bruce_mp.kernels.pure.look import by_size, time_span
    from bruce_mp.kernels.pure.message_set import encode_message_set
    from bruce_mp.kernels.pure.pace import Pace
    from bruce_mp.kernels.pure.receive import Receiver
    from bruce_mp.kernels.pure.segments import bind, by_partition, head_of, mark, number, place, take
    from bruce_mp.kernels.pure.tally import tally
    from bruce_mp.kernels.pure.waits import waits
    from bruce_mp.slab.chunks import ChunkPool
    from bruce_mp.slab.rows import Row

__all__ = [
    "CHOICE",
    "NO_NAPS",
    "Batch",
    "ChunkPool",
    "Cut",
    "Encoded",
    "EncodedSet",
    "Failure",
    "Ingested",
    "Intake",
    "Lanes",
    "Naps",
    "NoRoom",
    "Pace",
    "Place",
    "PlainCounters",
    "Receiver",
    "Rejection",
    "ReplacedTimestamps",
    "Row",
    "RunHead",
    "Stop",
    "TimeSpan",
    "TimestampWindow",
    "Waits",
    "Windows",
    "bind",
    "by_partition",
    "by_place",
    "by_size",
    "cut",
    "encode",
    "encode_message_set",
    "head_of",
    "heads",
    "mark",
    "messages",
    "number",
    "place",
    "record_batch",
    "take",
    "tally",
    "time_span",
    "waits",
]
