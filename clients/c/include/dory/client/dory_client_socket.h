/* Dory's C++ class for a datagram socket. */

#ifndef DORY_CLIENT_DORY_CLIENT_SOCKET_H
#define DORY_CLIENT_DORY_CLIENT_SOCKET_H

#include <algorithm>
#include <cstring>
#include <utility>

#include <dory/client/dory_client.h>

namespace Dory {

namespace Client {

/* Owns a socket, which its destructor closes. */
class TDoryClientSocket {
public:
    TDoryClientSocket() noexcept { dory_client_socket_init(&socket_); }
    TDoryClientSocket(TDoryClientSocket &&other) noexcept : TDoryClientSocket() { Swap(other); }
    TDoryClientSocket &operator=(TDoryClientSocket &&other) noexcept
    {
        if (this != &other) {
            Close();
            Swap(other);
        }
        return *this;
    }
    TDoryClientSocket(const TDoryClientSocket &) = delete;
    TDoryClientSocket &operator=(const TDoryClientSocket &) = delete;
    virtual ~TDoryClientSocket() { Close(); }

    void Swap(TDoryClientSocket &other) noexcept { std::swap(socket_, other.socket_); }

    int Bind(const char *server_path) noexcept { return dory_client_socket_bind(&socket_, server_path); }
    bool IsBound() const noexcept { return socket_.sock_fd >= 0; }
    int Send(const void *msg, size_t msg_size) const noexcept
    {
        return dory_client_socket_send(&socket_, msg, msg_size);
    }
    void Close() noexcept { dory_client_socket_close(&socket_); }

private:
    dory_client_socket_t socket_;
};

} // namespace Client

} // namespace Dory

#endif
