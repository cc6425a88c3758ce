/* The calls of Dory's C client library, for programs that were written for it: link with -lbruce instead of -ldory_client.
 *
 * Functions return DORY_OK, a negative code of status_codes.h, or a positive errno value. */

#ifndef DORY_CLIENT_DORY_CLIENT_H
#define DORY_CLIENT_DORY_CLIENT_H

#include <assert.h> /* programs may rely on this and the next headers, as Dory's includes them */
#include <stddef.h>
#include <stdint.h>
#include <sys/un.h>

#include <dory/client/status_codes.h>

typedef struct dory_client_socket {
    int sock_fd; /* negative: closed */
    struct sockaddr_un server_addr;
} dory_client_socket_t;

#ifdef __cplusplus
extern "C" {
#endif

/* Return the version of libbruce. */
const char *dory_get_build_id(void);

/* Store the size of the message that the call below writes. */
int dory_find_any_partition_msg_size(size_t topic_size, size_t key_size, size_t value_size, size_t *out_size);

int dory_find_partition_key_msg_size(size_t topic_size, size_t key_size, size_t value_size, size_t *out_size);

/* Write a message; `timestamp` is in milliseconds since 1970-01-01 UTC. */
int dory_write_any_partition_msg(void *out_buf, size_t out_buf_size, const char *topic, int64_t timestamp,
                                 const void *key, size_t key_size, const void *value, size_t value_size);

int dory_write_partition_key_msg(void *out_buf, size_t out_buf_size, int32_t partition_key, const char *topic,
                                 int64_t timestamp, const void *key, size_t key_size, const void *value,
                                 size_t value_size);

void dory_client_socket_init(dory_client_socket_t *client_socket);

/* Open a datagram socket for the daemon's path. */
int dory_client_socket_bind(dory_client_socket_t *client_socket, const char *server_path);

/* Send one datagram, and wait while the daemon's queue is full, as Dory's library does. */
int dory_client_socket_send(const dory_client_socket_t *client_socket, const void *msg, size_t msg_size);

/* Close the socket, if it is open. */
void dory_client_socket_close(dory_client_socket_t *client_socket);

#ifdef __cplusplus
}
#endif

#endif
