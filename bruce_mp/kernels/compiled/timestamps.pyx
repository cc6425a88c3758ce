"""The timestamps of records: see `kernels/pure/timestamps.py`."""

from bruce_mp.kernels.compiled.parse cimport NONE, ParsedMessage


cdef bint replace_timestamps(ParsedMessage *messages, int first, Window *window, int64_t arrived_ms) noexcept nogil:
    """Replace the timestamps outside of the window in a chain of messages; return True if one was replaced."""
    # Unsigned, because a signed difference could overflow.
    cdef uint64_t earliest = <uint64_t>arrived_ms - <uint64_t>window.before_ms
    cdef bint has_replaced = False
    cdef int index = first
    cdef ParsedMessage *message
    while index != NONE:
        message = &messages[index]
        message.is_replaced = <uint64_t>message.timestamp - earliest > window.width_ms
        if message.is_replaced:
            message.client_timestamp, message.timestamp, has_replaced = message.timestamp, arrived_ms, True
        index = message.next
    return has_replaced


cdef ReplacedCount count_replaced(ParsedMessage *messages, int first, int end) noexcept nogil:
    """Count the replaced timestamps in the chain of messages that begins with `first` and stops before `end`."""
    cdef ReplacedCount found
    cdef int index = first
    found.first, found.count = NONE, 0
    while index != end:
        if messages[index].is_replaced:
            found.first = index if found.first == NONE else found.first
            found.count += 1
        index = messages[index].next
    return found
