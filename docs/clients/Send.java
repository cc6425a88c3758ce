// Send a message from Java 16 or later, by UNIX stream or TCP. Java lacks UNIX datagrams.
//
//     java Send.java /run/bruce/in.stream clicks user-7 hello
//     java Send.java 9000 clicks user-7 hello 12345
//
// Copy message(), connect() and send() into your program. Threads that share a SocketChannel need a lock around each
// whole message, as in send().

import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;

public final class Send {
    private static final int MAX_TOPIC = 32767;

    /** Encode one message, big-endian like any new ByteBuffer; a null partitionKey lets the daemon choose. */
    static ByteBuffer message(String topic, byte[] key, byte[] value, Integer partitionKey) {
        byte[] name = topic.getBytes(StandardCharsets.UTF_8); // lengths count bytes, not characters
        if (name.length == 0 || name.length > MAX_TOPIC) {
            throw new IllegalArgumentException("the topic has to have 1 to 32767 bytes");
        }
        int overhead = partitionKey == null ? 28 : 32;
        int size = Math.addExact(Math.addExact(overhead + name.length, key.length), value.length);
        ByteBuffer message = ByteBuffer.allocate(size);
        message.putInt(size);
        message.putShort((short) (partitionKey == null ? 256 : 257)); // ApiKey
        message.putShort((short) 0); // ApiVersion
        message.putShort((short) 0); // Flags
        if (partitionKey != null) {
            message.putInt(partitionKey);
        }
        message.putShort((short) name.length).put(name);
        message.putLong(System.currentTimeMillis());
        message.putInt(key.length).put(key);
        message.putInt(value.length).put(value);
        return message.flip();
    }

    /** Connect to the daemon's stream socket, given by path, or to its TCP port. */
    static SocketChannel connect(String address) throws IOException {
        if (!address.matches("\\d+")) {
            SocketChannel channel = SocketChannel.open(StandardProtocolFamily.UNIX);
            channel.connect(UnixDomainSocketAddress.of(address));
            return channel;
        }
        return SocketChannel.open(new InetSocketAddress("127.0.0.1", Integer.parseInt(address)));
    }

    /** Write the whole message; after a failure, connect again and send it again. */
    static void send(SocketChannel daemon, ByteBuffer message) throws IOException {
        synchronized (daemon) {
            while (message.hasRemaining()) {
                daemon.write(message);
            }
        }
    }

    public static void main(String[] arguments) throws IOException {
        if (arguments.length != 4 && arguments.length != 5) {
            System.err.println("usage: Send SOCKET|PORT TOPIC KEY VALUE [PARTITION-KEY]");
            System.exit(2);
        }
        byte[] key = arguments[2].getBytes(StandardCharsets.UTF_8);
        byte[] value = arguments[3].getBytes(StandardCharsets.UTF_8);
        Integer partitionKey = arguments.length == 5 ? Integer.parseUnsignedInt(arguments[4]) : null;
        try (SocketChannel daemon = connect(arguments[0])) {
            send(daemon, message(arguments[1], key, value, partitionKey));
        }
    }
}
