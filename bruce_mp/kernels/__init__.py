"""The work per message, behind one interface.

Everything that is done once a message is done here, over runs of records in the slab; all other code works per run or
per batch.  The names below are the interface; `pure` implements it in Python.  A compiled implementation has to
pass the same tests.

    Receiver       a batch of datagrams into the landing zone
    Lanes          parse and validate a batch, append it to lanes as runs
    take           keep those segments of a frame whose words say that they are ours, and make them so
    mark           store a word for segments
    by_partition   split PartitionKey runs by the partition that each key designates
    by_size        cut a segment where its records stop fitting a limit
    head_of        cut a segment at a number of records or bytes
    time_span      the timestamps of a segment, and `sample` a prefix of its first record
    encode         the records section of a RecordBatch v2 from segments
    encode_message_set  the messages of a message set, formats 0 and 1, from segments
"""

from bruce_mp.kernels.pure.encode import Encoded, encode
from bruce_mp.kernels.pure.lanes import Ingested, Lanes, NoRoom
from bruce_mp.kernels.pure.look import TimeSpan, by_size, sample, time_span
from bruce_mp.kernels.pure.message_set import EncodedSet, encode_message_set
from bruce_mp.kernels.pure.parse import Batch, Failure, Rejection
from bruce_mp.kernels.pure.receive import Receiver
from bruce_mp.kernels.pure.segments import by_partition, head_of, mark, take

__all__ = [
    "Batch",
    "Encoded",
    "EncodedSet",
    "Failure",
    "Ingested",
    "Lanes",
    "NoRoom",
    "Receiver",
    "Rejection",
    "TimeSpan",
    "by_partition",
    "by_size",
    "encode",
    "encode_message_set",
    "head_of",
    "mark",
    "sample",
    "take",
    "time_span",
]
