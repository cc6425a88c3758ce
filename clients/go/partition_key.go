package bruce

import (
	"encoding/binary"
	"hash/crc32"
	"hash/fnv"
	"math"
)

// Murmur2 returns the partition key that places a record key where Kafka's Java client places it.
func Murmur2(key []byte) uint32 {
	const factor = 0x5bd1e995
	hash := 0x9747b28c ^ uint32(len(key))
	for ; len(key) >= 4; key = key[4:] {
		word := binary.LittleEndian.Uint32(key) * factor
		word = (word ^ word>>24) * factor
		hash = hash*factor ^ word
	}
	if len(key) > 0 {
		for i, b := range key {
			hash ^= uint32(b) << (8 * i)
		}
		hash *= factor
	}
	hash = (hash ^ hash>>13) * factor
	return (hash ^ hash>>15) & math.MaxInt32 // as Java's toPositive
}

// CRC32 returns the partition key that places a record key where librdkafka's consistent_random places it.
func CRC32(key []byte) uint32 { return crc32.ChecksumIEEE(key) }

// FNV1a returns the partition key that places a record key where Sarama and librdkafka's fnv1a_random place it.
func FNV1a(key []byte) uint32 {
	hash := fnv.New32a()
	_, _ = hash.Write(key)
	if sum := int32(hash.Sum32()); sum < 0 {
		return uint32(-sum)
	}
	return hash.Sum32()
}
