import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.Utils;

/** Prints, for each key (a line in hexadecimal), its positive hash and its partition of as many as the argument says. */
class KeyHashes {
    public static void main(String[] arguments) throws Exception {
        int partitions = Integer.parseInt(arguments[0]);
        BufferedReader keys = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String line = keys.readLine(); line != null; line = keys.readLine()) {
            byte[] key = HexFormat.of().parseHex(line);
            out.append(Utils.toPositive(Utils.murmur2(key))).append(' ');
            out.append(BuiltInPartitioner.partitionForKey(key, partitions)).append('\n');
        }
        System.out.print(out);
    }
}
