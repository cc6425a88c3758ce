package bruce.client;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.zip.CRC32;

/** The hashes by which Kafka's producers place a record key; each is a {@link Message.Builder#partitionKey}. */
public final class PartitionKeys {
    private static final int MURMUR2_SEED = 0x9747b28c;
    private static final int MURMUR2_FACTOR = 0x5bd1e995;
    private static final int FNV_OFFSET = 0x811c9dc5;
    private static final int FNV_PRIME = 0x01000193;

    private PartitionKeys() {}

    /** The hash of Kafka's Java client. */
    public static int murmur2(byte[] key) {
        ByteBuffer in = ByteBuffer.wrap(key).order(ByteOrder.LITTLE_ENDIAN);
        int hash = MURMUR2_SEED ^ key.length;
        while (in.remaining() >= Integer.BYTES) {
            int word = in.getInt() * MURMUR2_FACTOR;
            word = (word ^ word >>> 24) * MURMUR2_FACTOR;
            hash = hash * MURMUR2_FACTOR ^ word;
        }
        if (in.hasRemaining()) {
            for (int shift = 0; in.hasRemaining(); shift += Byte.SIZE) {
                hash ^= (in.get() & 0xff) << shift;
            }
            hash *= MURMUR2_FACTOR;
        }
        hash = (hash ^ hash >>> 13) * MURMUR2_FACTOR;
        return (hash ^ hash >>> 15) & Integer.MAX_VALUE;
    }

    /** The hash of librdkafka's {@code consistent_random}. */
    public static int crc32(byte[] key) {
        CRC32 hash = new CRC32();
        hash.update(key);
        return (int) hash.getValue();
    }

    /** The hash of librdkafka's {@code fnv1a_random} and of Sarama. */
    public static int fnv1a(byte[] key) {
        int hash = FNV_OFFSET;
        for (byte each : key) {
            hash = (hash ^ (each & 0xff)) * FNV_PRIME;
        }
        return Math.abs(hash); // Integer.MIN_VALUE stays, which is right as an unsigned number
    }
}
