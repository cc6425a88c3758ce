package bruce.client.logging;

import bruce.client.Message;
import bruce.client.StreamClient;
import bruce.client.StreamStats;
import ch.qos.logback.classic.spi.ILoggingEvent;
import ch.qos.logback.core.UnsynchronizedAppenderBase;
import ch.qos.logback.core.encoder.Encoder;
import java.time.Duration;

/**
 * Sends each event of Logback as a message. It never waits for the daemon: events that do not fit the buffer are dropped and
 * counted. Without the {@code shutdownHook}, the events in the buffer are lost at the end of the program.
 *
 * <pre>{@code
 * <shutdownHook class="ch.qos.logback.core.hook.DefaultShutdownHook"/>
 * <appender name="KAFKA" class="bruce.client.logging.LogbackAppender">
 *   <socket>/run/bruce/in.stream</socket>
 *   <topic>logs</topic>
 *   <encoder><pattern>%level %logger %msg%n</pattern></encoder>
 * </appender>
 * }</pre>
 */
public final class LogbackAppender extends UnsynchronizedAppenderBase<ILoggingEvent> {
    private String socket;
    private int port;
    private String topic;
    private boolean keyedByLogger;
    private long buffer = 1 << 20;
    private long closeTimeoutMillis = 1000;
    private Encoder<ILoggingEvent> encoder;
    private StreamClient client;

    @Override
    public void start() {
        if (topic == null || encoder == null || (socket == null) == (port == 0)) {
            addError("Set <topic>, <encoder>, and either <socket> or <port>.");
            return;
        }
        client = (socket != null ? StreamClient.unix(socket) : StreamClient.tcp(port))
                .buffer(buffer)
                .closeTimeout(Duration.ofMillis(closeTimeoutMillis))
                .build();
        super.start();
    }

    @Override
    protected void append(ILoggingEvent event) {
        Message.Builder message =
                Message.to(topic).value(encoder.encode(event)).timestampMillis(event.getTimeStamp());
        if (keyedByLogger) {
            message.key(event.getLoggerName());
        }
        client.send(message.build());
    }

    @Override
    public void stop() {
        if (isStarted()) {
            super.stop();
            client.close();
        }
    }

    /** Returns the counts of the client. */
    public StreamStats stats() {
        return client.stats();
    }

    /** Sets the daemon's {@code input.unix_stream.path}. */
    public void setSocket(String socket) {
        this.socket = socket;
    }

    /** Sets the daemon's {@code input.tcp.port}. */
    public void setPort(int port) {
        this.port = port;
    }

    public void setTopic(String topic) {
        this.topic = topic;
    }

    /** With true, the name of the logger is the key of the record. */
    public void setKeyedByLogger(boolean keyedByLogger) {
        this.keyedByLogger = keyedByLogger;
    }

    /** Sets the bytes of events that may wait for the daemon. */
    public void setBuffer(long buffer) {
        this.buffer = buffer;
    }

    /** Sets the time for which {@link #stop} writes the buffer. */
    public void setCloseTimeoutMillis(long closeTimeoutMillis) {
        this.closeTimeoutMillis = closeTimeoutMillis;
    }

    public void setEncoder(Encoder<ILoggingEvent> encoder) {
        this.encoder = encoder;
    }
}
