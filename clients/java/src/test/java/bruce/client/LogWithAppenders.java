package bruce.client;

import org.apache.logging.log4j.LogManager;
import org.slf4j.LoggerFactory;

/**
 * Logs one event through each appender of the arguments, and ends at once; {@code src/test/resources} has the
 * configurations.
 */
final class LogWithAppenders {
    private LogWithAppenders() {}

    public static void main(String[] arguments) {
        for (String name : arguments) {
            switch (name) {
                case "logback" -> LoggerFactory.getLogger("logback.logger").warn("größe by {}", name);
                default -> LogManager.getLogger("log4j.logger").warn("größe by {}", name);
            }
        }
        System.out.println("ended");
    }
}
