/* Dory's datagram socket.  As in libdory_client, a send waits while the daemon's queue is full. */

#ifndef DORY_CLIENT_DORY_CLIENT_SOCKET_H
#define DORY_CLIENT_DORY_CLIENT_SOCKET_H

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <dory/client/status_codes.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dory_client_socket_t {
    int sock_fd;
    struct sockaddr_un server_addr;
} dory_client_socket_t;

void dory_client_socket_init(dory_client_socket_t *client_socket);

int dory_client_socket_bind(dory_client_socket_t *client_socket, const char *server_path);

int dory_client_socket_send(const dory_client_socket_t *client_socket, const void *msg, size_t msg_size);

void dory_client_socket_close(dory_client_socket_t *client_socket);

#ifdef __cplusplus
}
#endif

#endif
