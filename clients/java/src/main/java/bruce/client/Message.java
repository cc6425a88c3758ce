package bruce.client;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.nio.ByteBuffer;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;

/** A message, which becomes a Kafka record. Build one with {@link #to}. */
public final class Message {
    static final int MAX_TOPIC = Short.MAX_VALUE;
    static final int MAX_HEADERS = 65535;

    private static final int ANY_PARTITION = 256;
    private static final int PARTITION_KEY = 257;
    private static final int PLAIN_VERSION = 0;
    private static final int HEADERS_VERSION = 1;
    private static final int NULLS_VERSION = 2;
    private static final int ANY_PARTITION_BYTES = 28;
    private static final int HEADER_BYTES = 6;
    private static final int NULL = -1;

    private record Header(byte[] name, byte[] value) {
        int size() {
            return HEADER_BYTES + name.length + (value == null ? 0 : value.length);
        }
    }

    private final byte[] topic;
    private final byte[] key;
    private final byte[] value;
    private final Integer partitionKey;
    private final Long timestamp;
    private final List<Header> headers;
    private final int headersSize;
    private final boolean keepsEmpty;

    private Message(Builder builder) {
        topic = builder.topic;
        key = builder.key;
        value = builder.value;
        partitionKey = builder.partitionKey;
        timestamp = builder.timestamp;
        headers = List.copyOf(builder.headers);
        headersSize = builder.headersSize;
        keepsEmpty = builder.keepsEmpty;
    }

    /** Starts a message to a topic. */
    public static Builder to(String topic) {
        return new Builder(topic.getBytes(UTF_8));
    }

    /** Returns the lowest version that can express the message, because older daemons refuse later ones. */
    private int version() {
        boolean hasEmpty = value == null || value.length == 0 || (key != null && key.length == 0);
        if (value == null || (keepsEmpty && hasEmpty)) {
            return NULLS_VERSION;
        }
        return headers.isEmpty() ? PLAIN_VERSION : HEADERS_VERSION;
    }

    private long size() {
        long size = (long) ANY_PARTITION_BYTES + topic.length + length(key) + length(value);
        if (partitionKey != null) {
            size += Integer.BYTES;
        }
        return version() == PLAIN_VERSION ? size : size + Integer.BYTES + headersSize;
    }

    private static int length(byte[] field) {
        return field == null ? 0 : field.length;
    }

    /**
     * Encodes the message for the daemon.
     *
     * @throws IllegalArgumentException if it is larger than an array
     */
    public byte[] encode() {
        long size = size();
        if (size > Integer.MAX_VALUE - 8) {
            throw new IllegalArgumentException("A message of " + size + " bytes is too large.");
        }
        int version = version();
        ByteBuffer out = ByteBuffer.allocate((int) size).putInt((int) size);
        out.putShort((short) (partitionKey == null ? ANY_PARTITION : PARTITION_KEY));
        out.putShort((short) version).putShort((short) 0); // Flags
        if (partitionKey != null) {
            out.putInt(partitionKey);
        }
        out.putShort((short) topic.length).put(topic);
        out.putLong(timestamp == null ? System.currentTimeMillis() : timestamp);
        boolean keyIsNull = version == NULLS_VERSION && length(key) == 0 && (key == null || !keepsEmpty);
        put(out, key, keyIsNull);
        put(out, value, value == null);
        if (version != PLAIN_VERSION) {
            putHeaders(out);
        }
        return out.array();
    }

    private void putHeaders(ByteBuffer out) {
        out.putInt(headersSize);
        for (Header header : headers) {
            out.putShort((short) header.name.length).put(header.name);
            put(out, header.value, header.value == null);
        }
    }

    private static void put(ByteBuffer out, byte[] field, boolean isNull) {
        out.putInt(isNull ? NULL : length(field));
        if (field != null) {
            out.put(field);
        }
    }

    /** Builds a {@link Message}. It does not copy arrays. */
    public static final class Builder {
        private final byte[] topic;
        private byte[] key;
        private byte[] value = {};
        private Integer partitionKey;
        private Long timestamp;
        private final List<Header> headers = new ArrayList<>(0);
        private int headersSize;
        private boolean keepsEmpty;

        private Builder(byte[] topic) {
            if (topic.length == 0 || topic.length > MAX_TOPIC) {
                throw new IllegalArgumentException("A topic has 1 to 32767 bytes, and this one has " + topic.length + ".");
            }
            this.topic = topic;
        }

        /** Sets the key of the record; null is no key. */
        public Builder key(byte[] key) {
            this.key = key;
            return this;
        }

        public Builder key(String key) {
            return key(key.getBytes(UTF_8));
        }

        /** Sets the value; null is a tombstone. */
        public Builder value(byte[] value) {
            this.value = value;
            return this;
        }

        public Builder value(String value) {
            return value(value.getBytes(UTF_8));
        }

        /**
         * Chooses the partition: this number, as an unsigned one, modulo the number of partitions. {@link PartitionKeys}
         * has those of record keys.
         */
        public Builder partitionKey(int partitionKey) {
            this.partitionKey = partitionKey;
            return this;
        }

        /** Sets the time of the record; otherwise it is the time of the encoding. */
        public Builder timestamp(Instant timestamp) {
            return timestampMillis(timestamp.toEpochMilli());
        }

        public Builder timestampMillis(long timestamp) {
            this.timestamp = timestamp;
            return this;
        }

        /**
         * Adds a record header; the value may be null.
         *
         * @throws IllegalArgumentException if all headers together have more than 65535 bytes
         */
        public Builder header(String name, byte[] value) {
            Header header = new Header(Objects.requireNonNull(name).getBytes(UTF_8), value);
            if (header.name.length > MAX_TOPIC || (long) headersSize + header.size() > MAX_HEADERS) {
                throw new IllegalArgumentException("The record headers have more than 65535 bytes.");
            }
            headersSize += header.size();
            headers.add(header);
            return this;
        }

        public Builder header(String name, String value) {
            return header(name, value.getBytes(UTF_8));
        }

        /**
         * Keeps an empty key or value empty. Otherwise an empty key becomes null, and the daemon's configuration decides about
         * an empty value.
         */
        public Builder keepEmpty() {
            keepsEmpty = true;
            return this;
        }

        public Message build() {
            return new Message(this);
        }
    }
}
