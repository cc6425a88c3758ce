package bruce.client;

/**
 * Counts of messages: offered = sent + waiting + the dropped ones.
 *
 * @param sent completely written to a connection; only a flush tells their outcome
 * @param sentBytes the bytes of these
 * @param waiting in the client's buffer
 * @param bufferFull refused by {@code send}
 * @param tooLarge refused by {@code send}
 * @param refused dropped, because the daemon closed five connections within the message
 * @param closed in the buffer when the client was closed, or sent afterwards
 * @param connections opened connections
 */
public record StreamStats(
        long sent,
        long sentBytes,
        long waiting,
        long bufferFull,
        long tooLarge,
        long refused,
        long closed,
        long connections) {}
