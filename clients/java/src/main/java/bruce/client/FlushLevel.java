package bruce.client;

/** The stage that messages must reach before a flush returns. */
public enum FlushLevel {
    /** The daemon has them, and they survive its restart. */
    RECEIVED,
    /** Each one is acknowledged by Kafka, or discarded. */
    DELIVERED,
    /** As {@link #DELIVERED}, or in the daemon's journal on disk. */
    DURABLE;

    /** Returns true if messages that have reached this level have reached the other one, too. */
    boolean includes(FlushLevel other) {
        return this == DELIVERED || other == RECEIVED || other == this;
    }
}
