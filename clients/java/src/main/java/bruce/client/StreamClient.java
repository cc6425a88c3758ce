package bruce.client;

import static java.net.StandardProtocolFamily.INET;
import static java.net.StandardProtocolFamily.UNIX;

import java.io.BufferedInputStream;
import java.io.Closeable;
import java.io.DataInputStream;
import java.io.IOException;
import java.net.BindException;
import java.net.InetSocketAddress;
import java.net.ProtocolException;
import java.net.SocketAddress;
import java.net.StandardSocketOptions;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.BooleanSupplier;

/**
 * Sends messages over a stream connection, which a thread of its own opens, writes, and opens again after a break. Threads
 * may share a client.
 *
 * <p>{@link #send} never waits for the daemon: it appends to a buffer of limited size. {@link #flush} waits for the outcome.
 */
public final class StreamClient implements Closeable {
    private static final int WRITE_SIZE = 64 << 10;
    private static final long FIRST_BACKOFF_MILLIS = 50;
    private static final long MAX_BACKOFF_MILLIS = 5000;
    /** Consecutive connections that may break within the same message. */
    private static final int MAX_BREAKS = 5;

    private final SocketAddress address;
    private final long maxBuffer;
    private final int maxMessage;
    private final long lingerMillis;
    private final long lingerBytes; // so many waiting bytes end a linger
    private final Duration closeTimeout;

    private final ReentrantLock flushLock = new ReentrantLock();
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition changed = lock.newCondition();
    private final Thread writer = new Thread(this::run, "bruce-client");

    // Guarded by `lock`.
    private final Deque<byte[]> waiting = new ArrayDeque<>();
    private final List<FlushRequest> requests = new ArrayList<>();
    private long waitingBytes;
    private volatile EnumMap<FlushLevel, Long> lost = noCounts(); // messages that may not have reached the level
    private final EnumMap<FlushLevel, Long> uncertain = noCounts(); // the lost ones that no exception has reported
    private Connection connection;
    private SocketChannel opened;
    private long backoffMillis; // between the start of the last attempt to connect and the next one
    private boolean isClosing;
    private boolean isAborted;
    private long sent;
    private long sentBytes;
    private long bufferFull;
    private long tooLarge;
    private long refused;
    private long closed;
    private long connections;

    // The writer's own.
    private final List<byte[]> batch = new ArrayList<>();
    private final ByteBuffer output = ByteBuffer.allocateDirect(WRITE_SIZE);
    private long triedNanos = System.nanoTime(); // the start of the last attempt to connect
    private boolean wasDenied; // the last attempt to connect failed for want of permission
    private boolean isDenied; // so did the one before it
    private boolean sawClosing; // the last attempt began after the start of close()
    private int breaks;
    private long token;

    /** One connection; the client's lock guards its counts. */
    private static final class Connection {
        final SocketChannel channel;
        final Map<Long, FlushRequest> awaiting = new HashMap<>();
        boolean hasEnded;
        long messages;
        FlushOutcome flushed = FlushOutcome.NONE;
        final EnumMap<FlushLevel, Long> confirmed = noCounts();

        Connection(SocketChannel channel) {
            this.channel = channel;
        }
    }

    private StreamClient(Builder builder) {
        address = builder.address;
        maxBuffer = builder.buffer;
        maxMessage = builder.maxMessage;
        lingerMillis = builder.linger.toMillis();
        lingerBytes = Math.min(WRITE_SIZE, maxBuffer / 2);
        closeTimeout = builder.closeTimeout;
        writer.setDaemon(true);
        writer.start();
    }

    /** Starts a client for the daemon's {@code input.unix_stream.path}. */
    public static Builder unix(Path path) {
        return new Builder(UnixDomainSocketAddress.of(path));
    }

    public static Builder unix(String path) {
        return unix(Path.of(path));
    }

    /** Starts a client for the daemon's {@code input.tcp.port} on this host. */
    public static Builder tcp(int port) {
        return new Builder(new InetSocketAddress("127.0.0.1", port));
    }

    /** Settings of a {@link StreamClient}. */
    public static final class Builder {
        private final SocketAddress address;
        private long buffer = 1 << 20;
        private int maxMessage = (2 << 20) + 4;
        private Duration linger = Duration.ZERO;
        private Duration closeTimeout = Duration.ofSeconds(1);

        private Builder(SocketAddress address) {
            this.address = address;
        }

        /** Sets the bytes of messages that may wait for the daemon; the default is 1 MiB. */
        public Builder buffer(long bytes) {
            buffer = bytes;
            return this;
        }

        /** Sets the daemon's {@code input.max_stream_size} + 4. The daemon closes the connection at a longer message. */
        public Builder maxMessage(int bytes) {
            maxMessage = bytes;
            return this;
        }

        /** Sets the time to collect messages for one write; the default is none. */
        public Builder linger(Duration linger) {
            this.linger = linger;
            return this;
        }

        /** Sets the time for which {@link StreamClient#close()} writes the buffer; the default is a second. */
        public Builder closeTimeout(Duration timeout) {
            closeTimeout = timeout;
            return this;
        }

        /** Creates the client. The first message connects, so the daemon need not run yet. */
        public StreamClient build() {
            return new StreamClient(this);
        }
    }

    // --- sending -----------------------------------------------------------------------------------------------------

    /**
     * Accepts a message into the buffer.
     *
     * @return false if it was dropped and counted: the buffer is full, the message too large, or the client closed
     */
    public boolean send(Message message) {
        byte[] encoded = message.encode();
        lock.lock();
        try {
            if (isClosing) {
                closed++;
                return false;
            }
            if (encoded.length > maxMessage) {
                tooLarge++;
                return false;
            }
            if (waitingBytes > 0 && waitingBytes + encoded.length > maxBuffer) {
                bufferFull++;
                return false;
            }
            waiting.addLast(encoded);
            boolean isFull = waitingBytes < lingerBytes && waitingBytes + encoded.length >= lingerBytes;
            waitingBytes += encoded.length;
            if (waiting.size() == 1 || isFull) {
                changed.signalAll(); // a wake-up for each message would cost more than the message
            }
            return true;
        } finally {
            lock.unlock();
        }
    }

    /** Returns the counts so far. */
    public StreamStats stats() {
        lock.lock();
        try {
            return new StreamStats(
                    sent, sentBytes, waiting.size(), bufferFull, tooLarge, refused, closed, connections);
        } finally {
            lock.unlock();
        }
    }

    // --- flushing ----------------------------------------------------------------------------------------------------

    /** Waits until each earlier message is acknowledged by Kafka or discarded. */
    public FlushOutcome flush(Duration timeout) throws FlushException, InterruptedException {
        return flush(timeout, FlushLevel.DELIVERED);
    }

    /**
     * Waits until all earlier messages have reached the level.
     *
     * @throws FlushException if some have no final outcome; its reason says whether to flush again
     */
    public FlushOutcome flush(Duration timeout, FlushLevel level) throws FlushException, InterruptedException {
        FlushRequest request = new FlushRequest(level, System.nanoTime() + timeout.toNanos(), lost.get(level));
        if (!flushLock.tryLock(request.leftNanos(), TimeUnit.NANOSECONDS)) {
            throw timedOut();
        }
        try {
            return await(request);
        } finally {
            flushLock.unlock();
        }
    }

    private FlushException timedOut() {
        lock.lock();
        try {
            String text = connection == null
                    ? "The time limit passed without a connection to " + address + "; flush again."
                    : "The time limit passed. The daemon still delivers the rest; flush again.";
            return new FlushException(FlushException.Reason.TIMED_OUT, text);
        } finally {
            lock.unlock();
        }
    }

    private FlushOutcome await(FlushRequest request) throws FlushException, InterruptedException {
        lock.lock();
        try {
            register(request);
            while (!request.isOver && request.leftNanos() > 0) {
                changed.awaitNanos(request.leftNanos());
            }
            if (!request.isOver) {
                request.fail(timedOut());
            }
            return request.result();
        } finally {
            request.isOver = true; // also after an interrupt
            lock.unlock();
        }
    }

    private void register(FlushRequest request) throws FlushException {
        if (isClosing) {
            throw closedException();
        }
        long messages = takeUncertain(request);
        if (messages > 0) {
            throw FlushException.broken(messages);
        }
        requests.add(request);
        changed.signalAll();
    }

    /**
     * Returns the number of messages that may not have reached the level, and leaves others for a stronger one. While a flush
     * waits for another one, that one may report them for both.
     */
    private long takeUncertain(FlushRequest request) {
        long unreported = uncertain.get(request.level);
        uncertain.replaceAll((level, count) -> Math.max(0, count - unreported));
        return Math.max(unreported, lost.get(request.level) - request.lostBefore);
    }

    private static EnumMap<FlushLevel, Long> noCounts() {
        EnumMap<FlushLevel, Long> counts = new EnumMap<>(FlushLevel.class);
        for (FlushLevel level : FlushLevel.values()) {
            counts.put(level, 0L);
        }
        return counts;
    }

    // --- closing -----------------------------------------------------------------------------------------------------

    /**
     * Writes the buffer within the close timeout, and not without permission to connect, and closes the connection.
     * {@link #stats} counts dropped messages. An interrupt does not shorten the wait, and stays set.
     */
    @Override
    public void close() {
        lock.lock();
        try {
            isClosing = true;
            changed.signalAll();
        } finally {
            lock.unlock();
        }
        joinWriter(TimeUnit.MILLISECONDS.toNanos(closeTimeout.toMillis()));
        abort();
        joinWriter(Long.MAX_VALUE);
    }

    private void joinWriter(long nanos) {
        long end = System.nanoTime() + nanos;
        boolean wasInterrupted = false;
        for (long left = nanos; left > 0 && writer.isAlive(); left = end - System.nanoTime()) {
            try {
                TimeUnit.NANOSECONDS.timedJoin(writer, left);
            } catch (InterruptedException e) {
                wasInterrupted = true;
            }
        }
        if (wasInterrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private void abort() {
        lock.lock();
        try {
            isAborted = true;
            closed += waiting.size();
            waiting.clear();
            waitingBytes = 0;
            closeQuietly(opened); // ends a connect or write that waits for the daemon
            changed.signalAll();
        } finally {
            lock.unlock();
        }
    }

    private static void closeQuietly(SocketChannel channel) {
        if (channel == null) {
            return;
        }
        try {
            channel.close();
        } catch (IOException e) {
            // The descriptor is released all the same.
        }
    }

    // --- the writer --------------------------------------------------------------------------------------------------

    private void run() {
        List<FlushRequest> due = new ArrayList<>();
        while (awaitWork(due)) {
            try {
                connect(due);
                writeMessages();
                writeBarriers(due);
            } catch (IOException e) {
                disconnect(due);
            }
            due.clear();
        }
        disconnect(List.of());
        failRequests();
    }

    /** Ends the flushes that wait when the client is closed. */
    private void failRequests() {
        lock.lock();
        try {
            requests.forEach(request -> request.fail(closedException()));
            requests.clear();
            changed.signalAll();
        } finally {
            lock.unlock();
        }
    }

    private static FlushException closedException() {
        return new FlushException(FlushException.Reason.CLOSED, "The client is closed.");
    }

    /**
     * Waits for something to write, and takes the requests, which concern the messages that are waiting now.
     *
     * @return false at the end of the client
     */
    private boolean awaitWork(List<FlushRequest> due) {
        boolean hasWaited = false;
        lock.lock();
        try {
            while (true) {
                if (connection != null && connection.hasEnded) {
                    disconnect(List.of());
                }
                if (isOver() || (sawClosing && isDenied)) {
                    return false;
                }
                if (!waiting.isEmpty() || !requests.isEmpty()) {
                    break;
                }
                changed.awaitUninterruptibly();
                hasWaited = true;
            }
            if (hasWaited && lingerMillis > 0) {
                BooleanSupplier isDue = () -> isClosing || !requests.isEmpty() || waitingBytes >= lingerBytes;
                pause(TimeUnit.MILLISECONDS.toNanos(lingerMillis), isDue);
            }
            sawClosing = isClosing;
            due.addAll(requests);
            requests.clear();
            return true;
        } finally {
            lock.unlock();
        }
    }

    /** Tells whether there is nothing more to write; the caller has the lock. */
    private boolean isOver() {
        return isAborted || (isClosing && waiting.isEmpty());
    }

    /** Waits until the condition holds, or the client is aborted, or closes with an empty buffer. */
    private void pause(long nanos, BooleanSupplier isDue) {
        lock.lock();
        try {
            long left = nanos;
            while (left > 0 && !isOver() && !isDue.getAsBoolean()) {
                left = changed.awaitNanos(left);
            }
        } catch (InterruptedException e) {
            // The thread is ours; nothing else interrupts it.
        } finally {
            lock.unlock();
        }
    }

    /** Opens a connection if there is none and the pause after the last attempt is over. */
    private void connect(List<FlushRequest> due) throws IOException {
        if (connection != null) {
            return;
        }
        pauseBeforeAttempt();
        SocketChannel channel = SocketChannel.open(address instanceof UnixDomainSocketAddress ? UNIX : INET);
        try {
            register(channel);
            channel.connect(address);
            if (!(address instanceof UnixDomainSocketAddress)) {
                channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
            }
        } catch (IOException e) {
            closeQuietly(channel);
            noteDenial(e, due);
            throw e;
        }
        wasDenied = false;
        isDenied = false;
        onConnected(new Connection(channel));
    }

    /**
     * Ends the flushes at the second denial in a row, because a daemon that starts sets the owner after it creates the socket.
     * The pause stays short, so that each later call fails soon.
     */
    private void noteDenial(IOException error, List<FlushRequest> due) {
        boolean isDenial = address instanceof UnixDomainSocketAddress && isDenial(error);
        isDenied = isDenial && wasDenied;
        wasDenied = isDenial;
        if (isDenial) {
            resetBackoff();
        }
        if (isDenied) {
            failAll(due);
        }
    }

    /** Tells EACCES and EPERM, of which the JDK leaves a class and a text, from the other errors of a UNIX socket. */
    private static boolean isDenial(IOException error) {
        return error instanceof BindException || String.valueOf(error.getMessage()).startsWith("Operation not permitted");
    }

    private void failAll(List<FlushRequest> due) {
        String text = "No permission to connect to " + address + ": senders need write permission on the socket "
                + "(input.unix_stream.mode, such as \"0222\") and access to its directory.";
        lock.lock();
        try {
            due.forEach(request -> request.fail(new FlushException(FlushException.Reason.NO_PERMISSION, text)));
            changed.signalAll();
        } finally {
            lock.unlock();
        }
    }

    private void register(SocketChannel channel) throws IOException {
        lock.lock();
        try {
            opened = channel;
            if (isOver()) {
                throw new IOException("The client is closed.");
            }
        } finally {
            lock.unlock();
        }
    }

    private void onConnected(Connection connected) {
        lock.lock();
        try {
            connection = connected;
            connections++;
        } finally {
            lock.unlock();
        }
        Thread reader = new Thread(() -> readAnswers(connected), "bruce-client-answers");
        reader.setDaemon(true);
        reader.start();
    }

    /**
     * Waits for the next attempt to connect. The pause counts from the start of the last one, also if that one succeeded: a
     * daemon may close each connection at once.
     */
    private void pauseBeforeAttempt() {
        lock.lock();
        try {
            long millis = ThreadLocalRandom.current().nextLong(backoffMillis / 2, backoffMillis + 1);
            backoffMillis = Math.max(FIRST_BACKOFF_MILLIS, Math.min(2 * backoffMillis, MAX_BACKOFF_MILLIS));
            pause(triedNanos + TimeUnit.MILLISECONDS.toNanos(millis) - System.nanoTime(), () -> false);
        } finally {
            lock.unlock();
        }
        triedNanos = System.nanoTime();
    }

    private void resetBackoff() {
        lock.lock();
        try {
            backoffMillis = FIRST_BACKOFF_MILLIS;
        } finally {
            lock.unlock();
        }
    }

    /** Writes the messages that are waiting, in writes of several messages. */
    private void writeMessages() throws IOException {
        for (ByteBuffer bytes = nextBatch(); bytes != null; bytes = nextBatch()) {
            try {
                write(bytes);
            } catch (IOException e) {
                onBreak(bytes.position());
                throw e;
            }
            onWritten(batch.size());
        }
    }

    private void write(ByteBuffer bytes) throws IOException {
        while (bytes.hasRemaining()) {
            connection.channel.write(bytes);
        }
    }

    private ByteBuffer nextBatch() {
        batch.clear();
        output.clear();
        lock.lock();
        try {
            for (byte[] message : waiting) {
                if (message.length > output.remaining()) {
                    break;
                }
                output.put(message);
                batch.add(message);
            }
            if (batch.isEmpty() && !waiting.isEmpty()) {
                batch.add(waiting.peekFirst());
                return ByteBuffer.wrap(waiting.peekFirst());
            }
            return batch.isEmpty() ? null : output.flip();
        } finally {
            lock.unlock();
        }
    }

    /** Removes the first messages of the batch, which the connection has. */
    private void onWritten(int messages) {
        lock.lock();
        try {
            for (byte[] message : batch.subList(0, messages)) {
                sent++;
                sentBytes += message.length;
                connection.messages++;
                removeFirst(message);
            }
        } finally {
            lock.unlock();
        }
        if (messages > 0) {
            breaks = 0;
            resetBackoff();
        }
    }

    private void removeFirst(byte[] message) {
        if (isAborted) {
            closed--; // abort() has removed and counted it
            return;
        }
        waiting.removeFirst();
        waitingBytes -= message.length;
    }

    /** Drops a message if five connections broke within it; otherwise the next one gets it again from its start. */
    private void onBreak(int written) {
        int whole = 0;
        int left = written;
        while (whole < batch.size() && left >= batch.get(whole).length) {
            left -= batch.get(whole++).length;
        }
        onWritten(whole);
        if (left == 0) {
            return;
        }
        if (++breaks < MAX_BREAKS) {
            return;
        }
        breaks = 0;
        lock.lock();
        try {
            if (!isAborted) {
                refused++;
                removeFirst(batch.get(whole));
            }
        } finally {
            lock.unlock();
        }
    }

    private void writeBarriers(List<FlushRequest> due) throws IOException {
        for (FlushRequest request : due) {
            lock.lock();
            try {
                if (request.isOver) {
                    continue;
                }
                connection.awaiting.put(++token, request);
            } finally {
                lock.unlock();
            }
            write(Barrier.request(token, request.level, request.limitMillis()));
        }
    }

    /**
     * Drops the connection, and counts the messages whose outcome no later connection reports. Flushes that wait for them fail;
     * others are asked again on the next connection.
     */
    private void disconnect(List<FlushRequest> due) {
        lock.lock();
        try {
            List<FlushRequest> unanswered = new ArrayList<>(due);
            unanswered.addAll(requests);
            requests.clear();
            if (connection != null) {
                closeQuietly(connection.channel);
                long messages = connection.messages;
                EnumMap<FlushLevel, Long> sum = lost.clone();
                connection.confirmed.forEach((level, count) -> sum.merge(level, messages - count, Long::sum));
                connection.confirmed.forEach((level, count) -> uncertain.merge(level, messages - count, Long::sum));
                lost = sum;
                connection.awaiting.values().removeAll(due);
                unanswered.addAll(connection.awaiting.values());
                connection = null;
            }
            unanswered.forEach(this::retry);
            changed.signalAll();
        } finally {
            lock.unlock();
        }
    }

    private void retry(FlushRequest request) {
        if (request.isOver) {
            return;
        }
        long messages = takeUncertain(request);
        if (messages > 0) {
            request.fail(FlushException.broken(messages));
        } else {
            requests.add(request);
        }
    }

    // --- the reader of a connection ----------------------------------------------------------------------------------

    private void readAnswers(Connection from) {
        try (DataInputStream in = new DataInputStream(new BufferedInputStream(Channels.newInputStream(from.channel)))) {
            while (true) {
                Barrier.Answer answer = Barrier.readAnswer(in);
                lock.lock();
                try {
                    settle(from, answer);
                    changed.signalAll();
                } finally {
                    lock.unlock();
                }
            }
        } catch (IOException e) {
            onReadError(from, e);
        }
    }

    /** Leaves the rest to the writer, which alone knows the number of written messages. */
    private void onReadError(Connection from, IOException error) {
        lock.lock();
        try {
            if (error instanceof ProtocolException) {
                FlushException refusal = new FlushException(FlushException.Reason.REFUSED, error.getMessage());
                from.awaiting.values().forEach(request -> request.fail(refusal));
            }
            from.hasEnded = true;
            changed.signalAll();
        } finally {
            lock.unlock();
        }
    }

    private void settle(Connection from, Barrier.Answer answer) {
        resetBackoff();
        FlushRequest request = from.awaiting.remove(answer.token());
        if (request == null || request.isOver) {
            return;
        }
        switch (answer.status()) {
            case Barrier.Answer.DONE -> {
                request.succeed(answer.counts().minus(from.flushed));
                from.flushed = answer.counts();
                from.confirmed.replaceAll((level, count) ->
                        request.level.includes(level) ? from.flushed.received() : count);
            }
            case Barrier.Answer.TIME_LIMIT -> request.fail(timedOut());
            case Barrier.Answer.SHUTTING_DOWN -> request.fail(new FlushException(
                    FlushException.Reason.SHUTTING_DOWN, "The daemon shuts down. It delivers the rest after its restart."));
            default -> request.fail(new FlushException(
                    FlushException.Reason.REFUSED, "The daemon refused the flush: it keeps no journal, or is too old."));
        }
    }
}
