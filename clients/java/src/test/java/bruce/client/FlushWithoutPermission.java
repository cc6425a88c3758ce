package bruce.client;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.time.Duration;

/** Flushes and closes clients of a socket in a directory that denies and admits the program in turn. */
final class FlushWithoutPermission {
    private final Path directory;
    private final Duration limit;

    private FlushWithoutPermission(Path directory, Duration limit) {
        this.directory = directory;
        this.limit = limit;
    }

    public static void main(String[] arguments) throws IOException, InterruptedException {
        new FlushWithoutPermission(Path.of(arguments[0]), Duration.ofSeconds(Long.parseLong(arguments[1]))).run();
    }

    private void run() throws IOException, InterruptedException {
        setMode("---------");
        StreamClient early = open();
        System.out.println(flush(early, Duration.ZERO));
        setMode("rwx------");
        System.out.println(flush(early, limit));
        setMode("---------");
        StreamClient denied = open();
        System.out.println(flush(denied, limit));
        denied.close();
        System.out.println(denied.stats().closed());
    }

    private void setMode(String mode) throws IOException {
        Files.setPosixFilePermissions(directory, PosixFilePermissions.fromString(mode));
    }

    private StreamClient open() {
        StreamClient client =
                StreamClient.unix(directory.resolve("in")).closeTimeout(limit).build();
        client.send(Message.to("t").value("v").build());
        return client;
    }

    private static String flush(StreamClient client, Duration timeout) throws InterruptedException {
        try {
            return "delivered " + client.flush(timeout).delivered();
        } catch (FlushException e) {
            return e.reason() + " " + e.getMessage();
        }
    }
}
