/* A program for Dory's C client library, unchanged but for its arguments: dory-example DATAGRAM-PATH TOPIC. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <dory/client/dory_client.h>

static int send_message(const dory_client_socket_t *sock, const char *topic, const char *key, const char *value,
                        int has_partition_key)
{
    size_t size;
    int64_t now = (int64_t)time(NULL) * 1000;
    int ret = has_partition_key
                  ? dory_find_partition_key_msg_size(strlen(topic), strlen(key), strlen(value), &size)
                  : dory_find_any_partition_msg_size(strlen(topic), strlen(key), strlen(value), &size);

    if (ret != DORY_OK)
        return ret;
    void *buf = malloc(size);
    ret = has_partition_key
              ? dory_write_partition_key_msg(buf, size, 7, topic, now, key, strlen(key), value, strlen(value))
              : dory_write_any_partition_msg(buf, size, topic, now, key, strlen(key), value, strlen(value));
    if (ret == DORY_OK)
        ret = dory_client_socket_send(sock, buf, size);
    free(buf);
    return ret;
}

int main(int argc, char **argv)
{
    dory_client_socket_t sock;

    if (argc != 3)
        return 2;
    dory_client_socket_init(&sock);
    int ret = dory_client_socket_bind(&sock, argv[1]);
    if (ret == DORY_OK)
        ret = send_message(&sock, argv[2], "key", "any partition", 0);
    if (ret == DORY_OK)
        ret = send_message(&sock, argv[2], "key", "by partition key", 1);
    if (ret == DORY_OK && dory_client_socket_bind(&sock, argv[1]) != DORY_CLIENT_SOCK_IS_OPENED)
        ret = 3;
    dory_client_socket_close(&sock);
    if (ret != DORY_OK)
        fprintf(stderr, "%s: %d\n", dory_get_build_id(), ret);
    return ret == DORY_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
