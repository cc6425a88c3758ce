"""Read the run headers of many segments at once: see `kernels/pure/headers.py`."""

from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.segments cimport is_sound_run, raise_damaged

from bruce_mp.kernels.pure.headers import RunHeader


def read_headers(slab, segments):
    cdef Memory memory
    cdef Part part
    cdef Bounds place
    cdef list found = []
    attach(slab, &memory)
    try:
        for segment in segments:
            read_segment(segment, &part)
            if bounds_of(&memory, &part, &place) or not is_sound_run(&memory, &part, &place):
                found.append(None)
                continue
            values = (
                load32(place.run + RUN_TOPIC), load8(place.run + RUN_FLAGS),
                <int>load32(place.run + RUN_PARTITION_INDEX), load32(place.run + RUN_PARTITION_COUNT),
                load32(place.run + RUN_LARGEST), load64(place.run + RUN_ARRIVED_MS),
            )
            found.append(tuple.__new__(RunHeader, values))
    finally:
        release(&memory)
    return found


def by_partition(slab, segments):
    cdef Memory memory
    cdef Part part
    cdef Bounds place
    cdef RecordFields fields
    cdef int partition
    cdef dict places = {}
    attach(slab, &memory)
    try:
        for segment in segments:
            read_segment(segment, &part)
            if bounds_of(&memory, &part, &place) or not is_sound_run(&memory, &part, &place):
                return raise_damaged(slab, segment)
            if load8(place.run) == SPLIT:
                if read_record(place.first, place.end, &fields):
                    return raise_damaged(slab, segment)
                partition = <int>load32(place.first + RECORD_PARTITION)
            else:
                partition = <int>load32(place.run + RUN_PARTITION)
            key = (load32(place.run + RUN_TOPIC), partition)
            if key in places:
                (<list>places[key]).append(segment)
            else:
                places[key] = [segment]
    finally:
        release(&memory)
    return places
