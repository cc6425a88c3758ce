package bruce.client;

import org.apache.logging.log4j.LogManager;
import org.slf4j.LoggerFactory;

/** Logs one event through each appender; {@code src/test/resources} has the configurations. */
final class LogWithAppenders {
    private LogWithAppenders() {}

    public static void main(String[] arguments) {
        LoggerFactory.getLogger("logback.logger").warn("größe by {}", "logback");
        LogManager.getLogger("log4j.logger").warn("größe by {}", "log4j");
        ((ch.qos.logback.classic.LoggerContext) LoggerFactory.getILoggerFactory()).stop();
        LogManager.shutdown();
    }
}
