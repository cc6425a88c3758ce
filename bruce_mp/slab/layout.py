"""The layout of the slab file: offsets, sizes and state codes.

The slab is one memory-mapped file, from which every process can rebuild its state.  All integers are little-endian (the
native order of the supported machines) and naturally aligned.  A store of 4 or 8 bytes through a cast memoryview is one
machine instruction, so SIGKILL leaves the old value or the new one.

Inputs receive messages from clients, the router assigns the messages to dispatchers, and dispatchers send them to the
brokers.  The parts of the file, in the order of their offsets:

    superblock       one page
    topic table      written by the router
    partition table  written by the router; a partition's next sequence number by the partition's dispatcher
    process rows     one for each process, its only writer: counters and the last transaction (slab/rows.py)
    senders          a table for each input, its only writer: sums of each sending user (slab/sender_usage.py)
    landing zone     received datagrams, written by the datagram input (slab/landing_zone.py)
    chunks           messages, written by the input that owns the chunk; state words, written by the run's owner

A *chunk* (8 KiB) consists of a chunk header and *runs* without gaps.  A run is a sequence of messages that an input
hands over as one unit.  It consists of a run header, the topic's name if the topic had no number when the run was
opened, and *records*.  A record consists of a record header, the key, the value, the record headers as the client sent
them, and padding to 8 bytes.  A message larger than a chunk gets a *span* of neighboring chunks with one header.  All
runs of a chunk may belong to a *fenced attempt*: messages that are delivered together or not at all (slab/fences.py).

Each run and each record has a *state word*: its state, and its *holder*, a number that tells which process owns it.
Each field has one writer at a time:

* the input writes a chunk's header and, while a run is OPEN, everything in the run;
* after the hand-over, the owner named by the run's state word writes the headers of the run and its records;
* a run becomes SPLIT when its records get different partitions or batches.  After that each record's own state word
  names its owner, and the state word of the SPLIT run never changes again.

A process hands a run over with one store to the state word, and only then sends the frame that names the run to the new
owner.  Increment LAYOUT_VERSION with any incompatible change.

The name of a field's offset begins with the field's part (SUPER, TOPIC, ROW, CHUNK, RUN, RECORD); the comment beside it
begins with the field's type.  In other modules, `at` or a name that ends in `_at` is a file offset.  All times are in
ms: *steady* times by the clock of `telemetry/clock.py`, other times by the wall clock, since 1970.
"""

from __future__ import annotations

from enum import IntEnum, unique
from struct import Struct
from typing import Final

LAYOUT_VERSION: Final = 2
"""The version of a new slab.  It differs from version 1 in the number of rows, which was 96."""
READABLE_VERSIONS: Final = (1, LAYOUT_VERSION)
PAGE: Final = 4096

# --- superblock ------------------------------------------------------------------------------------------------------
SUPER_MAGIC: Final = b"BRUCESLB"
SUPERBLOCK: Final = Struct("<8sIIQIIIIII")
"""magic, layout version, chunk size, file size, numbers of: chunks, topic entries, partition entries, rows, landing
slots; landing slot size"""
SUPER_VERSION: Final = 8  # u32, the layout version
SUPER_PRODUCER_ID: Final = 72  # i64, -1 = none
SUPER_IDEMPOTENCE: Final = 84  # u32: 0 = unknown, 1 = brokers support it, 2 = they do not, 3 = the cluster changes
SUPER_CREATED_MS: Final = 88  # i64
SUPER_TOPIC_COUNT: Final = 96  # u32, number of topic entries up to the last used one, which is stored first
SUPER_PARTITION_COUNT: Final = 100  # u32, the same number for partition entries
SUPER_TOPICS_VERSION: Final = 104  # u32, incremented when an entry of the topic table changes
SUPER_FIRST_EPOCH: Final = 108  # u32, the producer epoch of a new entry of the partition table
SUPER_METADATA_UPDATED_MS: Final = 112  # i64, last successful fetch of metadata (router)
SUPER_METADATA_MODIFIED_MS: Final = 120  # i64, last fetch that brought changed metadata (router)
SUPER_METADATA_STEADY_MS: Final = 128  # i64, steady time of the last successful fetch; 0 in a slab of an older version
SUPER_CLUSTER_CHANGES: Final = 136  # u32, incremented when an operator accepts another cluster (router)
SUPER_CLUSTER_ID_LENGTH: Final = 140  # u32, bytes of the cluster id, stored after the id; 0 = not known yet
SUPER_CLUSTER_ID: Final = 144  # the id of the Kafka cluster that the messages are for (router)
CLUSTER_ID_MAX: Final = 128  # bytes; a longer id is cut, but Kafka's own ids have 22 characters
SUPER_SHARES: Final = 1024  # u8 for each share of chunks (slab/shares.py): the row of the owning input, 0 = free
SHARES_MAX: Final = 1024  # maximum number of shares
SUPER_SPILL_PATH: Final = 2048  # the directory of the spill files (supervisor): see DIRECTORY_MAX
SUPER_JOURNALED: Final = 3072  # u64 for each input row: the RUN_TICKET up to which the journal has the row's held runs
SUPER_JOURNALED_MS: Final = 3312  # i64, steady time of the journal's last write, 0 = none (journal process)
SUPER_RESTORING: Final = 3320  # u32, 1 while the supervisor fills a new slab from the journal
SUPER_JOURNAL_PATH: Final = 3324  # the directory of the journal (supervisor): see DIRECTORY_MAX
DIRECTORY_MAX: Final = 768  # bytes of a path, behind a u32, stored last, with their number; 0 = no directory or unknown

# --- topic table: entry 0 is never used, so that topic number 0 means "not numbered" -----------------------------
TOPIC_ENTRY: Final = 272  # bytes of an entry
TOPIC_NAME_MAX: Final = 249  # Kafka's own limit; a longer name can never be a topic and is never numbered
TOPIC_PARTITIONS: Final = 0  # u32, the topic's number of partitions in the brokers' metadata
TOPIC_NAME_LENGTH: Final = 4  # u32
TOPIC_NAME: Final = 8  # u8[TOPIC_NAME_MAX]
TOPIC_ID_HASH: Final = 257  # u8[3], a hash of Kafka's id of the topic (router), 0 = not known
TOPIC_REFUSAL: Final = 260  # u32, a broker's last answer if it was a fatal error (dispatchers; the router clears it)
TOPIC_NUMBER: Final = 264  # u32, stored last: index of the entry + a multiple of the table's capacity; 0 = free
TOPIC_LAST_NUMBER: Final = 268  # u32, the number of the topic that was removed from the entry last, 0 = none

# --- partition table -------------------------------------------------------------------------------------------------
PARTITION_ENTRY: Final = 16  # bytes of an entry
PARTITION: Final = Struct("<Iiii")
"""topic number (0 = the entry is free), partition, next sequence number, its producer epoch"""
PARTITION_NEXT_SEQUENCE: Final = 8  # stored with the epoch in one aligned 8-byte store
LAST_EPOCH: Final = 32767  # the largest 16-bit epoch; none follows, so its batches have no sequence numbers

# --- process rows ----------------------------------------------------------------------------------------------------
# supervisor, router, status, 29 inputs (the last row is the journal process'), dispatchers: `Geometry.rows` in all
ROW_PID: Final = 0  # u32
ROW_INCARNATION: Final = 4  # u32, incremented at each start of the process
ROW_HEARTBEAT_MS: Final = 8  # i64, steady time
ROW_VERSION: Final = 16  # u64, odd while the counters change: readers repeat a read if it is odd or has changed
ROW_STARTED_MS: Final = 24  # i64
ROW_NODE: Final = 32  # u32, of a dispatcher: the broker's node id + 1, 0 = the slot is free
ROW_LAST_COMPLETED: Final = 36  # u32, of a stream input: the last fenced attempt that it completed, 0 = none
ROW_TICKET: Final = 40  # u64, of an input: the number of records that it has handed over = the last RUN_TICKET
ROW_COUNTED: Final = 48  # u64, of a stream input: number of messages that it and its predecessors counted as received
ROW_COMPLETING: Final = 56  # u32, of a stream input: the fenced attempt that it is handing over, 0 = none
ROW_GENERATION: Final = 60  # u32, of an input: the generation of the chunk that it opened last, 0 = none
ROW_COUNTERS: Final = 64  # u64 each: telemetry/counters.py has their numbers
ROW_COUNTER_CAPACITY: Final = 448  # with room for counters of later releases
ROW_REDO: Final = ROW_COUNTERS + 8 * ROW_COUNTER_CAPACITY  # the redo record, see slab/rows.py
ROW_REDO_BYTES: Final = 36 * 1024  # limits a transaction, and so a record batch, to about 1,500 segments of runs
ROW_BYTES: Final = ROW_REDO + ROW_REDO_BYTES  # a multiple of 64
ROW_STATUS_LOSSES: Final = ROW_REDO + 64  # status process: samples in place of redo segments (status/history/losses.py)
ROW_STATUS_REPORT: Final = ROW_STATUS_LOSSES + 32 * 1024  # status process: `REPORT_PERIOD` of the last discard report
REPORT_PERIOD: Final = Struct("<qqq")
"""number, start (in s), `ROW_STARTED_MS` of the supervisor; stored in this order"""

# Numbers of the counters from which telemetry/stages.py computes the messages in each stage.
ROW_COUNTING: Final = ROW_COUNTERS + 8 * 7  # u32, in place of counter 7: last incarnation that counted FLOW_..., or 0
FLOW_ASSIGNED: Final = 8  # router: messages handed over to dispatchers
FLOW_SENT: Final = 9  # dispatcher: messages that became IN_FLIGHT, from QUEUED or from ASSIGNED_SENT
FLOW_RETURNED: Final = 10  # dispatcher: messages returned to the router that were in no built batch
FLOW_RETURNED_SENT: Final = 11  # dispatcher: messages returned to the router that were in a built batch
FLOW_BASE: Final = 12  # supervisor: the first of four counters that correct the numbers of messages in the stages

# Numbers of the counters of a stream input for its spill files (slab/spill.py), from which messages are *fed* into
# chunks.  SPILL_IN and SPILL_OUT are part of the books (received = delivered + discarded + held), so only transactions
# change them.
SPILL_OLDEST: Final = 439  # when the oldest open attempt with a spill file began, in ms on the steady clock, 0 = none
SPILL_IN: Final = 440  # messages that went into spill files
SPILL_OUT: Final = 441  # messages that left spill files: fed into chunks or discarded
SPILL_COMPLETED: Final = 442  # messages of complete attempts in spill files
SPILL_FEEDING: Final = 443  # attempt number of the file that is being fed, 0 = none
SPILL_FED_ATTEMPT: Final = 444  # attempt number of the file from which messages were fed last
SPILL_FED_OFFSET: Final = 445  # offset in that file up to which its messages were fed
SPILL_FED_COUNT: Final = 446  # number of messages before that offset
SPILL_BYTES: Final = 447  # bytes reserved in the file system for spill files

ROW_SUPERVISOR: Final = 0
ROW_ROUTER: Final = 1
ROW_STATUS: Final = 2
ROW_FIRST_INPUT: Final = 3
INPUT_ROW_COUNT: Final = 29
ROW_FIRST_DISPATCHER: Final = ROW_FIRST_INPUT + INPUT_ROW_COUNT
INPUT_ROWS: Final = range(ROW_FIRST_INPUT, ROW_FIRST_DISPATCHER)
ROW_JOURNAL: Final = ROW_FIRST_DISPATCHER - 1  # in the last input row, so at most INPUT_ROW_COUNT - 1 inputs exist
STREAM_ROWS: Final = range(ROW_FIRST_INPUT + 1, ROW_JOURNAL)  # one for each stream worker (stream input process)

# --- senders: messages of each user, a table for each input -----------------------------------------------------------
SENDER_ENTRY: Final = 64  # bytes of an entry of u64: user + 2 (0 = free), interval, messages in it, `SenderSums`
SENDERS_PER_INPUT: Final = 64  # entries; a further user gets the entry of the user that has been silent for longest

# --- landing zone: written by recvmmsg(), in shared memory -----------------------------------------------------------
LANDING_BASE_ARRIVAL: Final = 0  # u64, arrival number of the datagram in slot 0
LANDING_HEADERS: Final = 64  # offset of the message headers, one for each slot
MMSGHDR_BYTES: Final = 64  # size of struct mmsghdr on 64-bit Linux; offsets of its fields follow
MMSGHDR_CONTROL_LENGTH: Final = 40  # u64: size of the control buffer; after a receive, bytes used
MMSGHDR_LENGTH: Final = 56  # u32, msg_len: the length of the received datagram
IOVEC_BYTES: Final = 16  # size of struct iovec
CONTROL_BYTES: Final = 32  # size of a control message with the sender's credentials: a 16-byte header, pid, uid, gid
LANDING_EMPTY: Final = 0xFFFFFFFF  # in msg_len: the slot is empty

# --- chunks ----------------------------------------------------------------------------------------------------------
CHUNK_BYTES: Final = 8192
CHUNK_MAGIC: Final = 0x4B4E4843  # "CHNK"
CHUNK_HEADER: Final = 64  # bytes of the header
CHUNK: Final = Struct("<IIBBHIIIqQ")
"""magic, generation, state, owner input, 0, span, runs, attempt, opened ms, last arrival"""
CHUNK_GENERATION: Final = 4  # u32, the number of the chunk's present use, which no other use of a chunk has
CHUNK_STATE: Final = 8  # u8, ChunkState
CHUNK_OWNER: Final = 9  # u8, row of the input
CHUNK_SPAN: Final = 12  # u32, number of chunks of the span that begins here
CHUNK_RUNS: Final = 16  # u32, number of runs
CHUNK_ATTEMPT: Final = 20  # u32, the number of the fenced attempt of the runs, 0 = none; stored before the first run
CHUNK_OPENED_MS: Final = 24  # i64, steady time
CHUNK_LAST_ARRIVAL: Final = 32  # u64: no record in the chunk has a greater arrival number


@unique
class ChunkState(IntEnum):
    """The state of a chunk; only the input that owns the chunk changes it."""

    FREE = 0
    OPEN = 1
    SEALED = 2
    """Closed to further runs."""


CHUNK_STATES: Final = frozenset(ChunkState)

# --- runs ------------------------------------------------------------------------------------------------------------
RUN_HEADER: Final = 88  # bytes of the header
RUN_MAGIC: Final = 0x214E5552  # "RUN!"
RUN: Final = Struct("<IIIIIiihBBqIiIHBBIIQqQ")
"""state word, generation, count, size, topic number, partition, sequence, epoch, flags, retries, arrived ms, payload
bytes, partition index, partition count, name length, reason, 0, largest payload, magic, first arrival, smallest
timestamp, ticket"""
RUN_WORD: Final = 0  # u32, the state word: state | holder << 8
RUN_GENERATION: Final = 4  # u32, the generation of its chunk
RUN_COUNT: Final = 8  # u32, number of records; one aligned 8-byte store of count and size commits an append
RUN_SIZE: Final = 12  # u32, bytes of the run, header included; a multiple of 8
RUN_TOPIC: Final = 16  # u32, the topic's number, 0 = not numbered
RUN_PARTITION: Final = 20  # i32, -1 = no partition is chosen yet
RUN_SEQUENCE: Final = 24  # i32, the sequence number of the first record, -1 = none
RUN_EPOCH: Final = 28  # i16, the producer epoch, -1 = none
RUN_FLAGS: Final = 30  # u8, FLAG_...
RUN_RETRIES: Final = 31  # u8, number of answers with a retriable error
RUN_ARRIVED_MS: Final = 32  # i64, steady time at which the run was opened
RUN_PAYLOAD: Final = 40  # u32, sum of the records' key, value and header bytes
RUN_PARTITION_INDEX: Final = 44  # i32, all records' partition key mod RUN_PARTITION_COUNT; -1 = differs, or no key
RUN_PARTITION_COUNT: Final = 48  # u32, if FLAG_PARTITION_KEY is set: number of partitions that the input knew, or 0
RUN_NAME_LENGTH: Final = 52  # u16, length of the topic's name behind the header; 0 = the topic had a number
RUN_REASON: Final = 54  # u8, DiscardReason
RUN_LARGEST: Final = 56  # u32, the largest payload of a record
RUN_MAGIC_AT: Final = 60  # u32, RUN_MAGIC
RUN_FIRST_ARRIVAL: Final = 64  # u64, the arrival number of the first record
RUN_MIN_TIMESTAMP: Final = 72  # i64, the smallest timestamp of a record
RUN_TICKET: Final = 80  # u64, the ticket: number of records that the input has handed over, this run's included

# --- records ---------------------------------------------------------------------------------------------------------
RECORD_HEADER: Final = 48  # bytes of the header
RECORD: Final = Struct("<IBBBBIIIiihHqQ")
"""state word, flags, retries, reason, options, key length, value length, partition key, partition,
sequence, epoch, record headers length, timestamp, arrival"""
# State word, retries, reason, partition, sequence and epoch mean the same as in a run's header.  They are valid only if
# the run is SPLIT.
RECORD_WORD: Final = 0  # u32
RECORD_FLAGS: Final = 4  # u8, FLAG_...
RECORD_RETRIES: Final = 5  # u8
RECORD_REASON: Final = 6  # u8
RECORD_OPTIONS: Final = 7  # u8, OPTION_...: set at the receipt, never changed
RECORD_KEY_LENGTH: Final = 8  # u32
RECORD_VALUE_LENGTH: Final = 12  # u32
RECORD_PARTITION_KEY: Final = 16  # u32
RECORD_PARTITION: Final = 20  # i32
RECORD_SEQUENCE: Final = 24  # i32
RECORD_EPOCH: Final = 28  # i16
RECORD_HEADERS_LENGTH: Final = 30  # u16
RECORD_TIMESTAMP: Final = 32  # i64, the client's timestamp or the arrival time
RECORD_ARRIVAL: Final = 40  # u64, the arrival number

ARRIVAL_STREAM: Final = 1 << 63  # set in arrival numbers of stream inputs: see `stream_arrival`
ARRIVAL_SOURCE_BITS: Final = 20  # number of low bits that have the source; the 43 bits above have the number
ARRIVAL_SOURCES: Final = 1 << ARRIVAL_SOURCE_BITS

FLAG_PARTITION_KEY: Final = 1  # a PartitionKey message, or one with OPTION_HASHED; on a run: true of all its records
FLAG_BATCH_START: Final = 2  # the record, or the run's first one, begins a built record batch
FLAG_ADMITTED: Final = 4  # on a run: the topic's rate limit has counted the run's records
FLAG_IN_DOUBT: Final = 8  # with FLAG_BATCH_START: the broker may have the batch, although no response confirms this
FLAG_AFTER_GAP: Final = 16  # with FLAG_BATCH_START: the batch before it was discarded, and the broker may lack it

OPTION_KEEPS_TIMESTAMP: Final = 1  # only the timestamp policy "arrival" replaces the client's timestamp
OPTION_HASHED: Final = 2  # an AnyPartition message, with a hash of its record key as the partition key
OPTION_EMPTY_KEY: Final = 4  # a key of 0 bytes is sent as an empty key; without this option, as null
OPTION_NULL_VALUE: Final = 8  # a value of 0 bytes is sent as null
OPTION_EMPTY_VALUE: Final = 16  # a value of 0 bytes is sent as an empty value; with neither option the config decides
OPTIONS_OF_EMPTY: Final = OPTION_EMPTY_KEY | OPTION_NULL_VALUE | OPTION_EMPTY_VALUE


@unique
class RunState(IntEnum):
    """The state of a run or record: the low byte of its state word.

    The text of each state begins with the owner.  After a hand-over, the new owner *claims* the run: it stores the next
    state.
    """

    OPEN = 0
    """Input; the run may still grow."""
    FILLED = 1
    """Router; handed over by an input, not claimed."""
    ROUTED = 2
    """Router; claimed; the holder is the incarnation of the router process that claimed it."""
    ASSIGNED = 3
    """Dispatcher of slot `holder`; handed over by the router, not claimed."""
    QUEUED = 4
    """Dispatcher of slot `holder`; claimed; in no batch yet, so it may join any batch."""
    IN_FLIGHT = 5
    """Dispatcher of slot `holder`; in a record batch that was built: partition, sequence and boundaries are final."""
    RETURNED = 6
    """Router; handed back by a dispatcher, not claimed; in no batch."""
    RETURNED_SENT = 7
    """Router; handed back by a dispatcher, not claimed; in a batch that was built, and perhaps sent."""
    ROUTED_SENT = 8
    """Router; claimed; in a batch that was built; the holder is the incarnation of the router process, as in ROUTED."""
    ASSIGNED_SENT = 9
    """Dispatcher of slot `holder`; handed over by the router, not claimed; in a batch that was built."""
    DELIVERED = 10
    """No owner; acknowledged by Kafka."""
    DISCARDED = 11
    """No owner; the reason is in the header of the run or record."""
    SPLIT = 12
    """No owner; only runs have this state: the state words of their records are valid instead."""


SETTLED: Final = frozenset({RunState.DELIVERED, RunState.DISCARDED})
BUILT: Final = frozenset({RunState.IN_FLIGHT, RunState.RETURNED_SENT, RunState.ROUTED_SENT, RunState.ASSIGNED_SENT})
"""States of records in a record batch that was built, so a broker may have them."""


def align(size: int, to: int = 8) -> int:
    """Return `size` rounded up to a multiple of `to`, a power of two."""
    return (size + to - 1) & -to


def state_word(state: RunState, holder: int = 0) -> int:
    """Return the state word of a run or record: state in the low byte, holder (24 bits) above."""
    return state | (holder & 0xFFFFFF) << 8


def stream_arrival(number: int, source: int) -> int:
    """Return the arrival number of message `number` of a stream input.

    `source` is the number of the message's flush group: the messages of one connection between two barriers.  Arrival
    numbers grow with the message number, and are larger than the arrival numbers of all datagrams.
    """
    return ARRIVAL_STREAM | number << ARRIVAL_SOURCE_BITS | source


def stream_number(arrival: int) -> int:
    """Return the message number that an arrival number of a stream input contains."""
    return (arrival & ~ARRIVAL_STREAM) >> ARRIVAL_SOURCE_BITS


assert SUPER_CLUSTER_ID + CLUSTER_ID_MAX <= SUPER_SHARES
assert SUPER_SHARES + SHARES_MAX <= SUPER_SPILL_PATH
assert SUPER_SPILL_PATH + 4 + DIRECTORY_MAX <= SUPER_JOURNALED
assert SUPER_JOURNAL_PATH + 4 + DIRECTORY_MAX <= PAGE
assert SUPER_JOURNALED + 8 * INPUT_ROW_COUNT <= SUPER_JOURNALED_MS < SUPER_RESTORING < PAGE
assert RUN.size == RUN_HEADER
assert RECORD.size == RECORD_HEADER
assert CHUNK.size <= CHUNK_HEADER
assert SUPERBLOCK.size <= SUPER_PRODUCER_ID
assert ROW_BYTES % 64 == 0
