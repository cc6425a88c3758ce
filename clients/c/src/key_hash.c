/* The hashes by which Kafka's producers place a record key. */

#include "internal.h"

enum { MURMUR2_FACTOR = 0x5bd1e995 };

static uint32_t little_endian(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

uint32_t bruce_murmur2(const void *key, size_t size)
{
    const unsigned char *at = key;
    uint32_t hash = 0x9747b28c ^ (uint32_t)size;

    for (; size >= 4; size -= 4, at += 4) {
        uint32_t word = little_endian(at) * MURMUR2_FACTOR;

        word = (word ^ word >> 24) * MURMUR2_FACTOR;
        hash = hash * MURMUR2_FACTOR ^ word;
    }
    if (size) {
        for (size_t i = 0; i < size; i++)
            hash ^= (uint32_t)at[i] << (8 * i);
        hash *= MURMUR2_FACTOR;
    }
    hash = (hash ^ hash >> 13) * MURMUR2_FACTOR;
    return (hash ^ hash >> 15) & INT32_MAX; /* as Java's toPositive() */
}

uint32_t bruce_crc32(const void *key, size_t size)
{
    const unsigned char *at = key;
    uint32_t hash = UINT32_MAX;

    while (size--) {
        hash ^= *at++;
        for (int bit = 0; bit < 8; bit++)
            hash = hash >> 1 ^ (hash & 1 ? 0xedb88320 : 0);
    }
    return ~hash;
}

uint32_t bruce_fnv1a(const void *key, size_t size)
{
    const unsigned char *at = key;
    uint32_t hash = 0x811c9dc5;

    while (size--)
        hash = (hash ^ *at++) * 0x01000193;
    return hash <= INT32_MAX ? hash : 0 - hash; /* the absolute value, as librdkafka and Sarama */
}
