import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Sends a record for each key (a line in hexadecimal) with the default partitioner, and prints its partition. */
class ProduceKeys {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        BufferedReader keys = new BufferedReader(new InputStreamReader(System.in));
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            for (String line = keys.readLine(); line != null; line = keys.readLine()) {
                byte[] key = HexFormat.of().parseHex(line);
                System.out.println(producer.send(new ProducerRecord<>(arguments[1], key, key)).get().partition());
            }
        }
    }
}
