// Send messages with the C++ header: cxx DATAGRAM-PATH STREAM-PATH TOPIC.  Exit code 0 if all are delivered.

#include <bruce.hpp>

#include <iostream>

int main(int argc, char **argv)
{
    using namespace std::chrono_literals;

    if (argc != 4)
        return 2;
    bruce::DatagramClient datagrams(argv[1]);
    bruce::StreamClient stream = bruce::StreamClient::open_unix(argv[2]);
    bruce::Message message{argv[3], "by datagram", "key"};
    message.headers = {{"from", "c++"}, {"none", std::nullopt}};
    bruce::check(datagrams.send(message));
    bruce::check(datagrams.wait(20s));
    bruce::check(datagrams.wait(-1s));
    bruce::check(stream.send({argv[3], "by stream", "key", bruce::murmur2("key")}));
    bruce::check(stream.send({argv[3], std::nullopt, "key"}));
    const bruce::Flush flush = stream.flush(20s);
    std::cout << flush.outcome.delivered << " delivered\n";
    return flush && flush.outcome.delivered == 2 && stream.close(1s) == BRUCE_OK ? 0 : 1;
}
