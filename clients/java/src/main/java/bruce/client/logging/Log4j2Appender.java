package bruce.client.logging;

import bruce.client.Message;
import bruce.client.StreamClient;
import bruce.client.StreamStats;
import java.io.Serializable;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import org.apache.logging.log4j.core.Appender;
import org.apache.logging.log4j.core.Core;
import org.apache.logging.log4j.core.Layout;
import org.apache.logging.log4j.core.LogEvent;
import org.apache.logging.log4j.core.appender.AbstractAppender;
import org.apache.logging.log4j.core.config.plugins.Plugin;
import org.apache.logging.log4j.core.config.plugins.PluginBuilderAttribute;
import org.apache.logging.log4j.core.config.plugins.PluginBuilderFactory;

/**
 * Sends each event of Log4j 2 as a message. It never waits for the daemon: events that do not fit the buffer are dropped and
 * counted.
 *
 * <pre>{@code
 * <Bruce name="KAFKA" socket="/run/bruce/in.stream" topic="logs">
 *   <PatternLayout pattern="%level %logger %msg"/>
 * </Bruce>
 * }</pre>
 */
@Plugin(name = "Bruce", category = Core.CATEGORY_NAME, elementType = Appender.ELEMENT_TYPE, printObject = true)
public final class Log4j2Appender extends AbstractAppender {
    private final String topic;
    private final boolean isKeyedByLogger;
    private final StreamClient client;

    private Log4j2Appender(Builder builder, Layout<? extends Serializable> layout, StreamClient client) {
        super(builder.getName(), builder.getFilter(), layout, builder.isIgnoreExceptions(), builder.getPropertyArray());
        topic = builder.topic;
        isKeyedByLogger = builder.keyedByLogger;
        this.client = client;
    }

    @Override
    public void append(LogEvent event) {
        Message.Builder message =
                Message.to(topic).value(getLayout().toByteArray(event)).timestampMillis(event.getTimeMillis());
        if (isKeyedByLogger) {
            message.key(event.getLoggerName());
        }
        client.send(message.build());
    }

    @Override
    public boolean stop(long timeout, TimeUnit timeUnit) {
        setStopping();
        client.close();
        setStopped();
        return true;
    }

    /** Returns the counts of the client. */
    public StreamStats stats() {
        return client.stats();
    }

    @PluginBuilderFactory
    public static Builder newBuilder() {
        return new Builder();
    }

    /** The attributes of the element {@code Bruce}. */
    public static final class Builder extends AbstractAppender.Builder<Builder>
            implements org.apache.logging.log4j.core.util.Builder<Log4j2Appender> {
        @PluginBuilderAttribute
        private String socket;

        @PluginBuilderAttribute
        private int port;

        @PluginBuilderAttribute
        private String topic;

        @PluginBuilderAttribute
        private boolean keyedByLogger;

        @PluginBuilderAttribute
        private long buffer = 1 << 20;

        @PluginBuilderAttribute
        private long closeTimeoutMillis = 1000;

        private Builder() {}

        @Override
        public Log4j2Appender build() {
            if (topic == null || (socket == null) == (port == 0)) {
                LOGGER.error("Appender {}: set topic, and either socket or port.", getName());
                return null;
            }
            StreamClient client = (socket != null ? StreamClient.unix(socket) : StreamClient.tcp(port))
                    .buffer(buffer)
                    .closeTimeout(Duration.ofMillis(closeTimeoutMillis))
                    .build();
            return new Log4j2Appender(this, getOrCreateLayout(), client);
        }

        /** Sets the daemon's {@code input.unix_stream.path}. */
        public Builder setSocket(String socket) {
            this.socket = socket;
            return this;
        }

        /** Sets the daemon's {@code input.tcp.port}. */
        public Builder setPort(int port) {
            this.port = port;
            return this;
        }

        public Builder setTopic(String topic) {
            this.topic = topic;
            return this;
        }

        /** With true, the name of the logger is the key of the record. */
        public Builder setKeyedByLogger(boolean keyedByLogger) {
            this.keyedByLogger = keyedByLogger;
            return this;
        }

        /** Sets the bytes of events that may wait for the daemon. */
        public Builder setBuffer(long buffer) {
            this.buffer = buffer;
            return this;
        }

        /** Sets the time for which the end of the appender writes the buffer. */
        public Builder setCloseTimeoutMillis(long closeTimeoutMillis) {
            this.closeTimeoutMillis = closeTimeoutMillis;
            return this;
        }
    }
}
