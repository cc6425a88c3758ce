# A batch of client messages, parsed and grouped.

from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef enum:
    NONE = -1            # no item, no group


cdef struct Item:        # a valid message
    uint64_t arrival
    int64_t timestamp
    uint8_t *topic
    uint8_t *key
    uint8_t *value
    uint8_t *headers
    uint32_t partition_key, topic_size, key_size, value_size, headers_size
    uint32_t options     # OPTION_... of its record
    int next             # next item of the same group
    bint is_replaced     # true if `timestamp` replaced the client's; set only by `replace_timestamps`
    int64_t client_timestamp   # set only with `is_replaced`


cdef struct Group:       # messages of one topic and type, in order
    int first, last      # items
    bint keyed           # messages with a partition key, from the client or a partitioner
    int partitioner      # set only for an unknown topic


cdef class KnownTopic:
    """A numbered topic, and its groups in the present batch."""

    cdef bytes name
    cdef uint64_t name_hash
    cdef int group_any, group_keyed   # NONE without messages
    cdef uint64_t batch_number   # the batch in which the groups were set
    cdef int partitioner


cdef class ParsedBatch:
    """The grouped messages of a batch, and the known topics."""

    cdef Item *items
    cdef Group *groups
    cdef int capacity, count, group_count, any_partition, partition_key
    cdef list rejections
    cdef object partitioners # from a topic to its partitioner; None = all topics have none
    cdef int64_t wire_bytes  # size of the messages on the wire
    cdef uint64_t batch_number
    cdef PyObject **table    # known topics by hash, open addressing
    cdef uint64_t mask       # size of the table - 1
    cdef list topics

    cdef int begin(self, int max_messages) except -1
    cdef int add(self, int slot, uint8_t *at, int64_t length, uint64_t arrival) except -1
    cdef int add_topic(self, KnownTopic topic, bytes name) except -1
    cdef PyObject *find(self, uint8_t *name, uint64_t size)
    cdef void insert(self, KnownTopic topic)
    cdef int grow(self) except -1
    cdef int partitioner_of(self, bytes name) except -1
    cdef int group_of(self, Item *item, bint keyed) except -1
    cdef int group_of_unknown(self, Item *item, bint keyed) except -1
    cdef int new_group(self, bint keyed)
