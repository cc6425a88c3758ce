# A batch of client messages, parsed and grouped.

from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef enum:
    NONE = -1            # index that stands for no message or no group


cdef struct ParsedMessage:   # a valid message
    uint64_t arrival
    int64_t timestamp
    uint8_t *topic
    uint8_t *key
    uint8_t *value
    uint8_t *headers
    uint32_t partition_key, topic_size, key_size, value_size, headers_size
    uint32_t options     # OPTION_... of its record
    int next             # index of the next message in the same group or chain; NONE at the end
    bint is_replaced     # true if `timestamp` replaced the client's; set only by `replace_timestamps`
    int64_t client_timestamp   # set only if `is_replaced`


cdef struct Group:       # messages of one topic and type, in order, linked by `ParsedMessage.next`
    int first, last      # indexes of messages
    bint keyed           # messages with a partition key, which a client or a partitioner has chosen
    int partitioner      # set only for an unknown topic


cdef class KnownTopic:
    """A numbered topic, and its groups in the present batch."""

    cdef bytes name
    cdef uint64_t name_hash
    cdef uint64_t batch_number   # the batch to which `group_any` and `group_keyed` belong
    cdef int group_any, group_keyed   # indexes of the groups; NONE = no messages
    cdef int partitioner


cdef class ParsedBatch:
    """The grouped messages of a batch, and the known topics."""

    cdef ParsedMessage *messages
    cdef Group *groups
    cdef int capacity        # of both `messages` and `groups`
    cdef int count, group_count   # numbers of messages and groups
    cdef int any_partition_count, partition_key_count   # numbers of messages of each type
    cdef list rejections
    cdef object partitioners # a function that returns a topic's partitioner; None = no topic has one
    cdef int64_t wire_bytes  # size of the messages on the wire
    cdef uint64_t batch_number
    cdef PyObject **table    # hash table of the known topics (open addressing), with borrowed references
    cdef uint64_t mask       # size of the table - 1
    cdef list topics         # all known topics, to keep them alive

    cdef int begin(self, int max_messages) except -1
    cdef int add(self, int slot, uint8_t *at, int64_t length, uint64_t arrival) except -1
    cdef int add_topic(self, KnownTopic topic, bytes name) except -1
    cdef PyObject *find(self, uint8_t *name, uint64_t size)
    cdef void insert(self, KnownTopic topic)
    cdef int grow(self) except -1
    cdef int partitioner_of(self, bytes name) except -1
    cdef int group_of(self, ParsedMessage *message, bint keyed) except -1
    cdef int group_of_unknown(self, ParsedMessage *message, bint keyed) except -1
    cdef int new_group(self, bint keyed)
