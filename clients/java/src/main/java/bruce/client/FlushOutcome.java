package bruce.client;

import java.util.HashMap;
import java.util.Map;

/**
 * Counts of the messages since the last successful flush, or since the connection was opened.
 *
 * @param received messages that reached the daemon
 * @param delivered messages that Kafka acknowledged
 * @param discarded messages that the daemon discarded
 * @param reasons the discarded ones by reason, such as BAD_TOPIC
 */
public record FlushOutcome(long received, long delivered, long discarded, Map<String, Long> reasons) {
    static final FlushOutcome NONE = new FlushOutcome(0, 0, 0, Map.of());

    FlushOutcome minus(FlushOutcome before) {
        Map<String, Long> since = new HashMap<>();
        reasons.forEach((reason, count) -> since.put(reason, count - before.reasons.getOrDefault(reason, 0L)));
        since.values().removeIf(count -> count == 0);
        return new FlushOutcome(
                received - before.received, delivered - before.delivered, discarded - before.discarded, since);
    }
}
