/* The calls of Dory's C client library, so that programs which use them need no change. */

#include "internal.h"

#include <dory/client/dory_client.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { ANY_PARTITION_BYTES = 28, PARTITION_KEY_BYTES = 32 };

const char *dory_get_build_id(void)
{
    return bruce_version();
}

static int find_size(size_t fixed, size_t topic, size_t key, size_t value, size_t *size)
{
    if (topic > BRUCE_MAX_TOPIC)
        return DORY_TOPIC_TOO_LARGE;
    if (key > INT32_MAX || value > INT32_MAX || fixed + topic + key + value > INT32_MAX)
        return DORY_MSG_TOO_LARGE;
    *size = fixed + topic + key + value;
    return DORY_OK;
}

int dory_find_any_partition_msg_size(size_t topic_len, size_t key_len, size_t value_len, size_t *out_size)
{
    return find_size(ANY_PARTITION_BYTES, topic_len, key_len, value_len, out_size);
}

int dory_find_partition_key_msg_size(size_t topic_len, size_t key_len, size_t value_len, size_t *out_size)
{
    return find_size(PARTITION_KEY_BYTES, topic_len, key_len, value_len, out_size);
}

static int write_message(const bruce_message *message, size_t fixed, void *buffer, size_t capacity)
{
    size_t size;
    int error = find_size(fixed, strlen(message->topic), message->key_size, message->value_size, &size);

    if (error)
        return error;
    if (size > capacity)
        return DORY_BUF_TOO_SMALL;
    bruce_write_message(message, buffer, size); /* also an empty topic, which Dory's library leaves to the daemon */
    return DORY_OK;
}

int dory_write_any_partition_msg(void *out_buf, size_t out_buf_size, const char *topic, int64_t timestamp,
                                 const void *key, size_t key_size, const void *value, size_t value_size)
{
    const bruce_message message = {.topic = topic,
                                   .key = key,
                                   .key_size = key_size,
                                   .value = value,
                                   .value_size = value_size,
                                   .timestamp_ms = timestamp,
                                   .flags = BRUCE_HAS_TIMESTAMP};

    return write_message(&message, ANY_PARTITION_BYTES, out_buf, out_buf_size);
}

int dory_write_partition_key_msg(void *out_buf, size_t out_buf_size, int32_t partition_key, const char *topic,
                                 int64_t timestamp, const void *key, size_t key_size, const void *value,
                                 size_t value_size)
{
    const bruce_message message = {.topic = topic,
                                   .key = key,
                                   .key_size = key_size,
                                   .value = value,
                                   .value_size = value_size,
                                   .timestamp_ms = timestamp,
                                   .partition_key = (uint32_t)partition_key,
                                   .flags = BRUCE_HAS_TIMESTAMP | BRUCE_HAS_PARTITION_KEY};

    return write_message(&message, PARTITION_KEY_BYTES, out_buf, out_buf_size);
}

void dory_client_socket_init(dory_client_socket_t *client_socket)
{
    memset(client_socket, 0, sizeof *client_socket);
    client_socket->sock_fd = -1;
}

int dory_client_socket_bind(dory_client_socket_t *client_socket, const char *server_path)
{
    if (client_socket->sock_fd >= 0)
        return DORY_CLIENT_SOCK_IS_OPENED;
    if (bruce_set_path(&client_socket->server_addr, server_path))
        return DORY_SERVER_SOCK_PATH_TOO_LONG;
    client_socket->sock_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return client_socket->sock_fd < 0 ? errno : DORY_OK;
}

int dory_client_socket_send(const dory_client_socket_t *client_socket, const void *msg, size_t msg_size)
{
    ssize_t done = sendto(client_socket->sock_fd, msg, msg_size, 0,
                          (const struct sockaddr *)&client_socket->server_addr, sizeof client_socket->server_addr);

    return done < 0 ? errno : DORY_OK;
}

void dory_client_socket_close(dory_client_socket_t *client_socket)
{
    if (client_socket->sock_fd >= 0)
        close(client_socket->sock_fd);
    dory_client_socket_init(client_socket);
}
