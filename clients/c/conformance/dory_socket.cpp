// A program for Dory's C++ class: dory-socket DATAGRAM-PATH TOPIC.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <dory/client/dory_client_socket.h>

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    const std::string topic = argv[2], key = "key", value = "by Dory's class";
    size_t size = 0;
    int ret = dory_find_any_partition_msg_size(topic.size(), key.size(), value.size(), &size);
    std::vector<std::uint8_t> message(size);
    if (ret == DORY_OK)
        ret = dory_write_any_partition_msg(message.data(), size, topic.c_str(), 1500000000000, key.data(), key.size(),
                                           value.data(), value.size());
    Dory::Client::TDoryClientSocket first;
    if (ret == DORY_OK)
        ret = first.Bind(argv[1]);
    Dory::Client::TDoryClientSocket second(std::move(first));
    if (ret == DORY_OK && (first.IsBound() || !second.IsBound()))
        ret = 3;
    if (ret == DORY_OK)
        ret = second.Send(message.data(), message.size());
    second.Close();
    return ret == DORY_OK && second.IsBound() ? 4 : ret;
}
