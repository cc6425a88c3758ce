//! The hashes by which Kafka's producers place a record key.

const MURMUR2_FACTOR: u32 = 0x5bd1_e995;

/// Returns the partition key that places a record key where Kafka's Java client places it.
#[must_use]
pub fn murmur2(key: &[u8]) -> u32 {
    let mut hash = 0x9747_b28c ^ key.len() as u32;
    let mut words = key.chunks_exact(4);
    for word in &mut words {
        let mut mixed = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(MURMUR2_FACTOR);
        mixed = (mixed ^ mixed >> 24).wrapping_mul(MURMUR2_FACTOR);
        hash = hash.wrapping_mul(MURMUR2_FACTOR) ^ mixed;
    }
    if !words.remainder().is_empty() {
        for (i, byte) in words.remainder().iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * i);
        }
        hash = hash.wrapping_mul(MURMUR2_FACTOR);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(MURMUR2_FACTOR);
    (hash ^ hash >> 15) & 0x7fff_ffff // as Java's toPositive
}

/// Returns the partition key that places a record key where librdkafka's `consistent_random` places it.
#[must_use]
pub fn crc32(key: &[u8]) -> u32 {
    let mut hash = u32::MAX;
    for byte in key {
        hash ^= u32::from(*byte);
        for _ in 0..8 {
            hash = hash >> 1 ^ if hash & 1 == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    !hash
}

/// Returns the partition key that places a record key where Sarama and librdkafka's `fnv1a_random` place it.
#[must_use]
pub fn fnv1a(key: &[u8]) -> u32 {
    let hash = key.iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    i32::from_ne_bytes(hash.to_ne_bytes()).unsigned_abs()
}
