# The hashes of record keys: see `protocol/client/key_hashes.py`.

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy


cdef extern from *:
    """
    static uint32_t bruce_crc32(const uint8_t *at, uint64_t size) { /* zlib's CRC-32, four bits at a time */
        static const uint32_t table[16] = {
            0x00000000u, 0x1db71064u, 0x3b6e20c8u, 0x26d930acu, 0x76dc4190u, 0x6b6b51f4u, 0x4db26158u, 0x5005713cu,
            0xedb88320u, 0xf00f9344u, 0xd6d6a3e8u, 0xcb61b38cu, 0x9b64c2b0u, 0x86d3d2d4u, 0xa00ae278u, 0xbdbdf21cu,
        };
        uint32_t crc = 0xffffffffu;
        for (uint64_t i = 0; i < size; i++) {
            crc = table[(crc ^ at[i]) & 15] ^ (crc >> 4);
            crc = table[(crc ^ (at[i] >> 4)) & 15] ^ (crc >> 4);
        }
        return ~crc;
    }
    """
    uint32_t bruce_crc32(const uint8_t *, uint64_t) noexcept nogil


cdef enum Partitioner:   # `protocol.client.key_hashes.Partitioner`
    NO_PARTITIONER = 0
    MURMUR2 = 1
    CRC32 = 2
    FNV1A = 3


cdef inline uint32_t murmur2(uint8_t *at, uint64_t size) noexcept nogil:
    cdef uint32_t factor = 0x5BD1E995U, hashed = 0x9747B28CU ^ <uint32_t>size, word
    while size >= 4:
        memcpy(&word, at, 4)
        word *= factor
        word = (word ^ word >> 24) * factor
        hashed = hashed * factor ^ word
        at += 4
        size -= 4
    if size:
        word = 0
        memcpy(&word, at, size)
        hashed = (hashed ^ word) * factor
    hashed = (hashed ^ hashed >> 13) * factor
    return (hashed ^ hashed >> 15) & 0x7FFFFFFFU


cdef inline uint32_t fnv1a(uint8_t *at, uint64_t size) noexcept nogil:
    cdef uint32_t hashed = 0x811C9DC5U
    cdef uint64_t index
    for index in range(size):
        hashed = (hashed ^ at[index]) * 0x01000193U
    return hashed if hashed <= 0x7FFFFFFFU else 0U - hashed


cdef inline uint32_t hash_key(int partitioner, uint8_t *at, uint64_t size) noexcept nogil:
    """Return the hash of a record key; `partitioner` is not NO_PARTITIONER."""
    if partitioner == MURMUR2:
        return murmur2(at, size)
    return bruce_crc32(at, size) if partitioner == CRC32 else fnv1a(at, size)
