package bruce.client;

import java.util.concurrent.TimeUnit;

/** A flush that waits for its answer. The client's lock guards it. */
final class FlushRequest {
    final FlushLevel level;
    private final long deadlineNanos;
    final long lostBefore; // messages of the level at the call of flush()

    boolean isOver;
    private FlushOutcome outcome;
    private FlushException failure;

    FlushRequest(FlushLevel level, long deadlineNanos, long lostBefore) {
        this.level = level;
        this.deadlineNanos = deadlineNanos;
        this.lostBefore = lostBefore;
    }

    long leftNanos() {
        return deadlineNanos - System.nanoTime();
    }

    /** Returns the time limit for the daemon; the rest is for the transfer of its answer. */
    long limitMillis() {
        return TimeUnit.NANOSECONDS.toMillis(leftNanos()) / 10 * 9;
    }

    void succeed(FlushOutcome outcome) {
        if (!isOver) {
            isOver = true;
            this.outcome = outcome;
        }
    }

    void fail(FlushException failure) {
        if (!isOver) {
            isOver = true;
            this.failure = failure;
        }
    }

    FlushOutcome result() throws FlushException {
        if (failure != null) {
            throw failure;
        }
        return outcome;
    }
}
