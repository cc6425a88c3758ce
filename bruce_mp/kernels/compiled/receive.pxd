# The system call that receives datagrams.

from libc.stdint cimport uint8_t

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <sys/socket.h>
    """
    struct mmsghdr:
        unsigned int msg_len
    int MSG_DONTWAIT
    int MSG_WAITFORONE

cdef int receive_into(uint8_t *headers, int descriptor, unsigned int limit, int flags) except -1
