package bruce.client;

import java.io.DataInputStream;
import java.io.IOException;
import java.net.ProtocolException;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;

/** The frames of a flush: the request, and the daemon's answer. */
final class Barrier {
    private static final int REQUEST = 258;
    private static final int ANSWER = 259;
    private static final int REQUEST_BYTES = 24;
    private static final int ANSWER_BYTES = 44;
    private static final int REASON_BYTES = 10;

    private static final String[] REASONS = {
        "", "MALFORMED", "UNSUPPORTED_API_KEY", "UNSUPPORTED_VERSION", "NO_MEM", "BAD_TOPIC", "LONG_MSG", "RATE_LIMIT",
        "TOPIC_AUTOCREATE_FAIL", "NO_AVAILABLE_PARTITIONS", "KAFKA_ERROR_ACK", "DELIVERY_ATTEMPT_LIMIT",
        "SERVER_SHUTDOWN", "UNCLEAN_DISCONNECT", "BUG", "ABANDONED_ATTEMPT", "SENDER_NOT_ALLOWED", "OVER_QUOTA",
        "TOPIC_OVER_SHARE", "SPILL_LOST", "POSSIBLY_DELIVERED",
    };

    /** An answer; its counts are those of the connection, from the first message. */
    record Answer(long token, int status, FlushOutcome counts) {
        static final int DONE = 0;
        static final int TIME_LIMIT = 1;
        static final int SHUTTING_DOWN = 2;
    }

    private Barrier() {}

    static ByteBuffer request(long token, FlushLevel level, long limitMillis) {
        int limit = (int) Math.max(0, Math.min(limitMillis, Integer.MAX_VALUE));
        return ByteBuffer.allocate(REQUEST_BYTES)
                .putInt(REQUEST_BYTES)
                .putShort((short) REQUEST)
                .putInt(0) // ApiVersion, Flags
                .putLong(token)
                .putShort((short) level.ordinal())
                .putInt(limit)
                .flip();
    }

    static Answer readAnswer(DataInputStream in) throws IOException {
        int size = in.readInt();
        int kind = in.readInt();
        long token = in.readLong();
        int status = in.readUnsignedShort();
        long received = in.readLong();
        long delivered = in.readLong();
        long discarded = in.readLong();
        int count = in.readUnsignedShort();
        if (kind != ANSWER << Short.SIZE || size != ANSWER_BYTES + REASON_BYTES * count) {
            throw new ProtocolException("The peer is not the daemon.");
        }
        Map<String, Long> reasons = new HashMap<>();
        for (int i = 0; i < count; i++) {
            int reason = in.readUnsignedShort();
            reasons.put(reason > 0 && reason < REASONS.length ? REASONS[reason] : "REASON_" + reason, in.readLong());
        }
        return new Answer(token, status, new FlushOutcome(received, delivered, discarded, reasons));
    }
}
