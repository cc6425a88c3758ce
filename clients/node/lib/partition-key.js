'use strict';

/** The hashes by which Kafka's producers place a record key; each result is a `partitionKey`. */

const MURMUR2_FACTOR = 0x5bd1e995;

/** The hash of Kafka's Java client. */
function murmur2(key) {
  const bytes = Buffer.from(key);
  const words = bytes.length & ~3;
  let hash = 0x9747b28c ^ bytes.length;
  for (let at = 0; at < words; at += 4) {
    let word = Math.imul(bytes.readInt32LE(at), MURMUR2_FACTOR);
    word = Math.imul(word ^ (word >>> 24), MURMUR2_FACTOR);
    hash = Math.imul(hash, MURMUR2_FACTOR) ^ word;
  }
  if (words < bytes.length) {
    for (let at = words; at < bytes.length; at++) hash ^= bytes[at] << (8 * (at - words));
    hash = Math.imul(hash, MURMUR2_FACTOR);
  }
  hash = Math.imul(hash ^ (hash >>> 13), MURMUR2_FACTOR);
  return (hash ^ (hash >>> 15)) & 0x7fffffff;
}

/** The hash of librdkafka's `consistent_random`. */
function crc32(key) {
  let hash = -1;
  for (const byte of Buffer.from(key)) {
    hash ^= byte;
    for (let bit = 0; bit < 8; bit++) hash = (hash >>> 1) ^ (hash & 1 ? 0xedb88320 : 0);
  }
  return ~hash >>> 0;
}

/** The hash of librdkafka's `fnv1a_random` and of Sarama. */
function fnv1a(key) {
  let hash = 0x811c9dc5;
  for (const byte of Buffer.from(key)) hash = Math.imul(hash ^ byte, 0x01000193);
  return Math.abs(hash | 0);
}

module.exports = { murmur2, crc32, fnv1a };
