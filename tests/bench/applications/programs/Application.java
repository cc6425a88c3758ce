// An application in Java: the arguments and the conversation are those of application.py.

import bruce.client.Message;
import bruce.client.StreamClient;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

final class Application {
    interface Sender {
        void send() throws Exception;

        void flush() throws Exception;
    }

    private static Sender stream(String path, String topic, byte[] value) {
        StreamClient client = StreamClient.unix(path).linger(Duration.ofMillis(10)).build();
        return new Sender() {
            public void send() {
                while (!client.send(Message.to(topic).value(value).build())) {
                    LockSupport.parkNanos(100_000);
                }
            }

            public void flush() throws Exception {
                client.flush(Duration.ofSeconds(60));
            }
        };
    }

    private static Sender kafka(String broker, String topic, byte[] value) {
        Map<String, Object> settings =
                Map.of("bootstrap.servers", broker, "linger.ms", 500, "batch.size", 65_536, "enable.idempotence", true);
        var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        return new Sender() {
            public void send() {
                producer.send(new ProducerRecord<>(topic, value));
            }

            public void flush() {
                producer.flush();
            }
        };
    }

    public static void main(String[] arguments) throws Exception {
        byte[] value = "x".repeat(Integer.parseInt(arguments[3])).getBytes();
        Sender sender = arguments[0].equals("stream")
                ? stream(arguments[1], arguments[2], value)
                : kafka(arguments[1], arguments[2], value);
        System.out.println("READY");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; System.out.println("SENT")) {
            String[] words = line.split(" ");
            run(sender, Integer.parseInt(words[0]), Double.parseDouble(words[1]), words[2].equals("1"));
            sender.flush();
        }
        System.exit(0);
    }

    private static void run(Sender sender, int messages, double rate, boolean dry) throws Exception {
        long start = System.nanoTime();
        for (int number = 0; number < messages; number++) {
            if (rate > 0) {
                LockSupport.parkNanos(start + (long) (number / rate * 1e9) - System.nanoTime());
            }
            if (!dry) {
                sender.send();
            }
        }
    }
}
