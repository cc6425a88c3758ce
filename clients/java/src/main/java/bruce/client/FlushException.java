package bruce.client;

import java.io.IOException;

/** Some messages have no final outcome. */
public final class FlushException extends IOException {
    private static final long serialVersionUID = 1L;

    /** Why a flush failed. */
    public enum Reason {
        /** The daemon still delivers the messages: flush again for the outcome. */
        TIMED_OUT,
        /** The daemon stops, and delivers the rest after its restart. */
        SHUTTING_DOWN,
        /** The socket's mode, or that of its directory, denies the connection. The messages stay in the buffer. */
        NO_PERMISSION,
        /** The connection broke, see {@link FlushException#uncertain}. */
        BROKEN,
        /** The daemon keeps no journal, or is too old; or the peer is not the daemon. */
        REFUSED,
        /** The client was closed. */
        CLOSED
    }

    private final Reason reason;
    private final long uncertain;

    FlushException(Reason reason, String text) {
        this(reason, text, 0);
    }

    private FlushException(Reason reason, String text, long uncertain) {
        super(text);
        this.reason = reason;
        this.uncertain = uncertain;
    }

    static FlushException broken(long uncertain) {
        String text = "The connection broke; of the " + uncertain + " messages written to it, an unknown number arrived.";
        return new FlushException(Reason.BROKEN, text, uncertain);
    }

    public Reason reason() {
        return reason;
    }

    /**
     * Returns the number of messages, the first ones that no flush of this level confirmed, that were written to a
     * connection which broke. Each may be delivered or not, and the client does not send them again. The next flush concerns
     * later messages only.
     */
    public long uncertain() {
        return uncertain;
    }
}
