package bruce.client;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HexFormat;
import java.util.Locale;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.stream.Collectors;

/** The conformance program, see clients/conformance/README.md. */
final class Conformance {
    private StreamClient stream;

    private Conformance() {}

    public static void main(String[] arguments) throws Exception {
        Conformance program = new Conformance();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(program.run(line.split(" ")));
        }
    }

    private String run(String[] f) throws ExecutionException, InterruptedException {
        return switch (f[0]) {
            case "encode" -> encode(f);
            case "hash" -> "ok " + Integer.toUnsignedString(hash(f[1], field(f[2])));
            case "stream" -> open(f[1], Long.parseLong(f[2]), Duration.ofMillis(Long.parseLong(f[3])));
            case "stream-send" -> send(f[1], Integer.parseInt(f[2]), Integer.parseInt(f[3]), Integer.parseInt(f[4]));
            case "stream-flush" -> flush(f[1], Duration.ofMillis(Long.parseLong(f[2])));
            case "stream-flush-twice" -> flushTwice(Duration.ofSeconds(20));
            case "stream-stats" -> stats();
            case "stream-close" -> close();
            default -> "unsupported";
        };
    }

    private static byte[] field(String word) {
        return word.equals("-") ? null : HexFormat.of().parseHex(word, 1, word.length());
    }

    private static String text(String digits) {
        return new String(HexFormat.of().parseHex(digits), StandardCharsets.UTF_8);
    }

    private static String encode(String[] f) {
        try {
            Message.Builder message = Message.to(text(f[1].substring(1))).key(field(f[2])).value(field(f[3]));
            if (!f[4].equals(".")) {
                message.timestampMillis(Long.parseLong(f[4]));
            }
            if (!f[5].equals(".")) {
                message.partitionKey(Integer.parseUnsignedInt(f[5]));
            }
            if (f[6].equals("1")) {
                message.keepEmpty();
            }
            if (!f[7].equals("-")) {
                for (String pair : f[7].split(",")) {
                    String[] header = pair.split(":", 2);
                    message.header(text(header[0]), header[1].equals("-") ? null : field("=" + header[1]));
                }
            }
            return "ok " + HexFormat.of().formatHex(message.build().encode());
        } catch (IllegalArgumentException e) {
            return "error " + errorName(e.getMessage());
        }
    }

    private static String errorName(String text) {
        if (text.contains("headers")) {
            return "HEADERS_TOO_LARGE";
        }
        return text.contains("has 0") ? "TOPIC_EMPTY" : "TOPIC_TOO_LARGE";
    }

    private static int hash(String name, byte[] key) {
        return switch (name) {
            case "murmur2" -> PartitionKeys.murmur2(key);
            case "crc32" -> PartitionKeys.crc32(key);
            default -> PartitionKeys.fnv1a(key);
        };
    }

    private String open(String address, long buffer, Duration linger) {
        StreamClient.Builder builder = address.startsWith("/")
                ? StreamClient.unix(address)
                : StreamClient.tcp(Integer.parseInt(address));
        stream = builder.buffer(buffer).linger(linger).build();
        return "ok";
    }

    private String send(String topic, int first, int count, int size) {
        int accepted = 0;
        for (int number = first; number < first + count; number++) {
            String digits = String.format("%012d", number);
            String value = digits + "x".repeat(size - digits.length());
            accepted += stream.send(Message.to(topic).value(value).build()) ? 1 : 0;
        }
        return "ok " + accepted;
    }

    private String flush(String level, Duration timeout) throws InterruptedException {
        try {
            FlushOutcome outcome = stream.flush(timeout, FlushLevel.valueOf(level.toUpperCase(Locale.ROOT)));
            String reasons = outcome.reasons().entrySet().stream()
                    .map(each -> each.getKey() + "=" + each.getValue())
                    .collect(Collectors.joining(","));
            return "ok %d %d %d %s"
                    .formatted(
                            outcome.received(),
                            outcome.delivered(),
                            outcome.discarded(),
                            reasons.isEmpty() ? "-" : reasons);
        } catch (FlushException e) {
            return "error " + e.reason() + " " + e.uncertain();
        }
    }

    private String flushTwice(Duration timeout) throws ExecutionException, InterruptedException {
        FutureTask<String> other = new FutureTask<>(() -> flush("delivered", timeout));
        new Thread(other).start();
        return flush("delivered", timeout) + " " + other.get();
    }

    private String stats() {
        StreamStats s = stream.stats();
        return "ok %d %d %d %d %d %d %d %d"
                .formatted(
                        s.sent(),
                        s.sentBytes(),
                        s.waiting(),
                        s.bufferFull(),
                        s.tooLarge(),
                        s.refused(),
                        s.closed(),
                        s.connections());
    }

    private String close() {
        stream.close();
        return "ok";
    }
}
