"""The timestamps of records: see `kernels/pure/timestamps.py`."""

from bruce_mp.kernels.compiled.parse cimport NONE, Item


cdef bint replace_timestamps(Item *items, int first, Window *window, int64_t arrived_ms) noexcept nogil:
    """Replace the timestamps outside of the window in a chain of messages; return True if there is one."""
    # Unsigned, because a signed difference could overflow.
    cdef uint64_t earliest = <uint64_t>arrived_ms - <uint64_t>window.before_ms
    cdef bint has_replaced = False
    cdef int index = first
    cdef Item *item
    while index != NONE:
        item = &items[index]
        item.is_replaced = <uint64_t>item.timestamp - earliest > window.width_ms
        if item.is_replaced:
            item.client_timestamp, item.timestamp, has_replaced = item.timestamp, arrived_ms, True
        index = item.next
    return has_replaced


cdef Replaced count_replaced(Item *items, int first, int end) noexcept nogil:
    """Count the replaced timestamps in the chain of messages from `first` up to, but without, `end`."""
    cdef Replaced found
    cdef int index = first
    found.first, found.count = NONE, 0
    while index != end:
        if items[index].is_replaced:
            found.first = index if found.first == NONE else found.first
            found.count += 1
        index = items[index].next
    return found
