from bruce_mp.kernels.compiled.lane cimport Lane
from bruce_mp.kernels.compiled.memory cimport *

cdef bint make_room(lanes, Lane lane, uint64_t size, int64_t now_ms) except -1
