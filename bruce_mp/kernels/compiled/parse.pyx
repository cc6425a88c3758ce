"""Parse and validate a batch, and group its messages: see `kernels/pure/parse.py`.

A `KnownTopic` stands for a topic to which the router has given a number.  It has the topic's groups, so that the
topic's messages are grouped without Python objects.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from bruce_mp.kernels.compiled.key_hashes cimport CRC32, NO_PARTITIONER, hash_key
from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.wire cimport *

from bruce_mp.kernels.pure.parse import Failure, RejectedMessage


cdef extern from *:
    """
    #define HASH_FACTOR 0x9E3779B97F4A7C15ULL /* 2^64 divided by the golden ratio */
    """
    uint64_t HASH_FACTOR


cdef enum:
    ANY_PARTITION = 256
    PARTITION_KEY = 257
    GENERIC_HEADER = 8   # size, API key, version
    WITH_HEADERS = 0x10000   # version and flags of a message with record headers
    WITH_NULLS = 0x20000     # the same with fields that may be null
    MAX_HEADERS_BYTES = 0xFFFF
    UNREAD = -1          # stands for a partitioner that is not looked up yet


cdef int parse_one(uint8_t *at, int64_t length, ParsedMessage *message) noexcept nogil:
    """Store a message's fields and return its API key; 0 for an invalid message.

    Each number is loaded once, because another process may change the bytes during the call.
    """
    cdef uint8_t *end = at + length
    cdef int api_key, topic_size
    cdef int64_t key_size, value_size, headers_size
    cdef uint32_t version_and_flags
    if length < GENERIC_HEADER + 2 + 2 or <int32_t>big32(at) != length:  # 2: flags, 2: topic size
        return 0
    api_key = big16(at + 4)
    if api_key != ANY_PARTITION and api_key != PARTITION_KEY:
        return 0
    version_and_flags = big32(at + 6)
    if version_and_flags != 0 and version_and_flags != WITH_HEADERS and version_and_flags != WITH_NULLS:
        return 0
    at += 10  # now at the topic size, or at the partition key before the topic size
    message.partition_key = message.options = 0
    if api_key == PARTITION_KEY:
        if end - at < 4 + 2:  # partition key, topic size
            return 0
        message.partition_key = big32(at)
        at += 4
    topic_size = big16(at)
    at += 2
    if topic_size <= 0 or end - at < topic_size + 8 + 4 + 4:  # timestamp, key size, value size
        return 0
    message.topic, message.topic_size = at, topic_size
    at += topic_size
    message.timestamp = big64(at)
    key_size = <int32_t>big32(at + 8)
    at += 12
    if version_and_flags == WITH_NULLS and (key_size == 0 or key_size == -1):  # -1: null
        message.options = 0 if key_size else OPTION_EMPTY_KEY
        key_size = 0
    if key_size < 0 or end - at < key_size + 4:
        return 0
    message.key, message.key_size = at, key_size
    at += key_size
    value_size = <int32_t>big32(at)
    at += 4
    if version_and_flags == WITH_NULLS and (value_size == 0 or value_size == -1):
        message.options |= OPTION_NULL_VALUE if value_size else OPTION_EMPTY_VALUE
        value_size = 0
    if value_size < 0 or end - at < value_size:
        return 0
    message.value, message.value_size = at, value_size
    at += value_size
    message.headers, message.headers_size = at, 0
    if version_and_flags:
        if end - at < 4:
            return 0
        headers_size = <int32_t>big32(at)
        at += 4
        if headers_size < 0 or headers_size > MAX_HEADERS_BYTES or end - at != headers_size or check_headers(at, end):
            return 0
        message.headers, message.headers_size = at, headers_size
        return api_key
    return api_key if at == end else 0


cdef object rejection_of(int slot, uint8_t *at, int64_t length):
    """Return the rejection for the first check that fails."""
    cdef int api_key, version
    if length < GENERIC_HEADER or <int32_t>big32(at) != length:
        return RejectedMessage(slot, Failure.MALFORMED, 0, 0)
    api_key, version = big16(at + 4), big16(at + 6)
    if api_key != ANY_PARTITION and api_key != PARTITION_KEY:
        return RejectedMessage(slot, Failure.UNSUPPORTED_API_KEY, api_key, version)
    if version < 0 or version > 2:
        return RejectedMessage(slot, Failure.UNSUPPORTED_VERSION, api_key, version)
    return RejectedMessage(slot, Failure.MALFORMED, api_key, version)


cdef inline bint apply_partitioner(ParsedMessage *message, int partitioner) noexcept nogil:
    """Store the hash of a record key as the partition key; return False if the partitioner ignores the message."""
    if partitioner == NO_PARTITIONER:
        return False
    if message.key_size == 0 and (partitioner == CRC32 or not message.options & OPTION_EMPTY_KEY):
        return False
    message.partition_key = hash_key(partitioner, message.key, message.key_size)
    message.options |= OPTION_HASHED
    return True


cdef inline uint64_t hash_name(uint8_t *name, uint64_t size) noexcept nogil:
    cdef uint64_t hashed = size * HASH_FACTOR
    cdef uint64_t word
    while size >= 8:
        memcpy(&word, name, 8)
        hashed = (hashed ^ word) * HASH_FACTOR
        hashed ^= hashed >> 29
        name += 8
        size -= 8
    word = 0
    memcpy(&word, name, size)
    hashed = (hashed ^ word) * HASH_FACTOR
    return hashed ^ (hashed >> 32)


cdef class KnownTopic:
    """A numbered topic, and its groups in the present batch."""


cdef class ParsedBatch:
    """The grouped messages of a batch, and the known topics."""

    def __cinit__(self):
        self.mask = 63
        self.table = <PyObject **>malloc((self.mask + 1) * sizeof(PyObject *))
        if self.table == NULL:
            raise MemoryError
        self.rejections = []
        self.clear_topics()

    def __dealloc__(self):
        free(self.messages)
        free(self.groups)
        free(self.table)

    def clear_topics(self):
        """Discard all known topics.  Callers must not do this within a batch, because the batch uses the topics."""
        memset(self.table, 0, (self.mask + 1) * sizeof(PyObject *))
        self.topics = []

    cdef int add_topic(self, KnownTopic topic, bytes name) except -1:
        """Add a numbered topic."""
        topic.name, topic.partitioner = name, self.partitioner_of(name)
        topic.name_hash = hash_name(<uint8_t *>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        self.topics.append(topic)
        if <uint64_t>len(self.topics) * 2 > self.mask:  # more than half full
            self.grow()
        else:
            self.insert(topic)
        return 0

    cdef void insert(self, KnownTopic topic):
        cdef uint64_t position = topic.name_hash & self.mask
        while self.table[position] != NULL:
            position = (position + 1) & self.mask
        self.table[position] = <PyObject *>topic

    cdef int grow(self) except -1:
        cdef uint64_t size = (self.mask + 1) * 4
        cdef PyObject **table = <PyObject **>realloc(self.table, size * sizeof(PyObject *))
        if table == NULL:
            raise MemoryError
        self.table, self.mask = table, size - 1
        memset(table, 0, size * sizeof(PyObject *))
        for topic in self.topics:
            self.insert(topic)
        return 0

    cdef PyObject *find(self, uint8_t *name, uint64_t size):
        """Return the `KnownTopic` of a name; NULL for an unknown topic."""
        cdef uint64_t hashed = hash_name(name, size)
        cdef uint64_t position = hashed & self.mask
        while self.table[position] != NULL:
            topic = <KnownTopic>self.table[position]
            if topic.name_hash == hashed and <uint64_t>PyBytes_GET_SIZE(topic.name) == size:
                if memcmp(PyBytes_AS_STRING(topic.name), name, size) == 0:
                    return self.table[position]
            position = (position + 1) & self.mask
        return NULL

    cdef int begin(self, int max_messages) except -1:
        """Prepare for a batch of up to `max_messages` messages."""
        self.batch_number += 1
        self.count = self.group_count = self.any_partition_count = self.partition_key_count = 0
        self.wire_bytes = 0
        if self.rejections:
            self.rejections = []
        if max_messages <= self.capacity:
            return 0
        free(self.messages)
        free(self.groups)
        self.capacity = 0
        self.messages = <ParsedMessage *>malloc(max_messages * sizeof(ParsedMessage))
        self.groups = <Group *>malloc(max_messages * sizeof(Group))
        if self.messages == NULL or self.groups == NULL:
            raise MemoryError
        self.capacity = max_messages
        return 0

    cdef int add(self, int slot, uint8_t *at, int64_t length, uint64_t arrival) except -1:
        """Add a message to its group, or record its rejection."""
        cdef ParsedMessage *message = &self.messages[self.count]
        cdef int api_key = parse_one(at, length, message)
        cdef int group
        if api_key == 0:
            self.rejections.append(rejection_of(slot, at, length))
            return 0
        if api_key == PARTITION_KEY:
            self.partition_key_count += 1
        else:
            self.any_partition_count += 1
        message.arrival, message.next = arrival, NONE
        group = self.group_of(message, api_key == PARTITION_KEY)
        if self.groups[group].first == NONE:
            self.groups[group].first = self.count
        else:
            self.messages[self.groups[group].last].next = self.count
        self.groups[group].last = self.count
        self.count += 1
        return 0

    cdef int partitioner_of(self, bytes name) except -1:
        return NO_PARTITIONER if self.partitioners is None else self.partitioners(name)

    cdef int group_of(self, ParsedMessage *message, bint keyed) except -1:
        """Return a message's group.  An AnyPartition message with a hashed record key is grouped as PartitionKey."""
        cdef PyObject *known = self.find(message.topic, message.topic_size)
        cdef KnownTopic topic
        if known == NULL:
            return self.group_of_unknown(message, keyed)
        topic = <KnownTopic>known
        if topic.batch_number != self.batch_number:
            topic.batch_number = self.batch_number
            topic.group_any = topic.group_keyed = NONE
        if keyed or apply_partitioner(message, topic.partitioner):
            if topic.group_keyed == NONE:
                topic.group_keyed = self.new_group(True)
            return topic.group_keyed
        if topic.group_any == NONE:
            topic.group_any = self.new_group(False)
        return topic.group_any

    cdef int group_of_unknown(self, ParsedMessage *message, bint keyed) except -1:
        """Return the group of a message of an unknown topic; a linear search is enough, as few topics are unknown."""
        cdef ParsedMessage *first
        cdef int index, partitioner = UNREAD
        for index in range(self.group_count):
            first = &self.messages[self.groups[index].first]
            if first.topic_size == message.topic_size and memcmp(first.topic, message.topic, message.topic_size) == 0:
                if partitioner == UNREAD:
                    partitioner = self.groups[index].partitioner
                    keyed = keyed or apply_partitioner(message, partitioner)
                if self.groups[index].keyed == keyed:
                    return index
        if partitioner == UNREAD:
            partitioner = self.partitioner_of(message.topic[: message.topic_size])
            keyed = keyed or apply_partitioner(message, partitioner)
        index = self.new_group(keyed)
        self.groups[index].partitioner = partitioner
        return index

    cdef int new_group(self, bint keyed):
        cdef Group *group = &self.groups[self.group_count]
        group.first = group.last = NONE
        group.keyed = keyed
        self.group_count += 1
        return self.group_count - 1
