"""The run headers of many segments: see `kernels/pure/headers.py`."""

from bruce_mp.kernels.compiled.memory cimport *
from bruce_mp.kernels.compiled.segments cimport is_sound_run, refuse

from bruce_mp.kernels.pure.headers import RunHead


def read_headers(slab, segments):
    cdef Memory memory
    cdef Part part
    cdef Bounds place
    cdef list found = []
    attach(slab, &memory)
    try:
        for segment in segments:
            part_of(segment, &part)
            if bounds_of(&memory, &part, &place) or not is_sound_run(&memory, &part, &place):
                found.append(None)
                continue
            said = (
                load32(place.run + RUN_TOPIC), load8(place.run + RUN_FLAGS),
                <int>load32(place.run + RUN_PARTITION_INDEX), load32(place.run + RUN_PARTITION_COUNT),
                load32(place.run + RUN_LARGEST), load64(place.run + RUN_ARRIVED_MS),
            )
            found.append(tuple.__new__(RunHead, said))
    finally:
        release(&memory)
    return found


def by_place(slab, segments):
    cdef Memory memory
    cdef Part part
    cdef Bounds place
    cdef Look look
    cdef int partition
    cdef dict places = {}
    attach(slab, &memory)
    try:
        for segment in segments:
            part_of(segment, &part)
            if bounds_of(&memory, &part, &place) or not is_sound_run(&memory, &part, &place):
                return refuse(slab, segment)
            if load8(place.run) == SPLIT:
                if look_at(place.first, place.end, &look):
                    return refuse(slab, segment)
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
