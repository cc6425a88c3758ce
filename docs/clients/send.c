/* Send a message from C with one sendto().
 *
 *     cc -o send send.c && ./send /run/bruce/in.dgram clicks user-7 hello
 *
 * Copy bruce_message(), bruce_send() and their helpers into your program. */

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MAX_TOPIC 32767
#define MAX_DATAGRAM 65536 /* the daemon's input.max_datagram_size */

/* Write a number in big-endian order; return the position after it. */
static unsigned char *put(unsigned char *at, uint64_t number, int bytes)
{
    while (bytes--)
        *at++ = (unsigned char)(number >> (8 * bytes));
    return at;
}

static unsigned char *put_bytes(unsigned char *at, const void *bytes, size_t size)
{
    if (size)
        memcpy(at, bytes, size);
    return at + size;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Write a message into a buffer; return its size, or 0 if it does not fit.  The daemon chooses the partition if
 * partition_key is NULL, else it is the key modulo the number of partitions. */
static size_t bruce_message(unsigned char *buffer, size_t room, const uint32_t *partition_key, const char *topic,
                            const void *key, size_t key_size, const void *value, size_t value_size)
{
    size_t topic_size = strlen(topic);
    size_t overhead = partition_key ? 32 : 28;

    if (topic_size == 0 || topic_size > MAX_TOPIC || key_size > room || value_size > room ||
        overhead + topic_size + key_size + value_size > room)
        return 0;

    unsigned char *at = put(buffer, overhead + topic_size + key_size + value_size, 4);
    at = put(at, partition_key ? 257 : 256, 2); /* ApiKey */
    at = put(at, 0, 2);                         /* ApiVersion */
    at = put(at, 0, 2);                         /* Flags */
    if (partition_key)
        at = put(at, *partition_key, 4);
    at = put_bytes(put(at, topic_size, 2), topic, topic_size);
    at = put(at, (uint64_t)now_ms(), 8);
    at = put_bytes(put(at, key_size, 4), key, key_size);
    at = put_bytes(put(at, value_size, 4), value, value_size);
    return (size_t)(at - buffer);
}

/* Send one message; return 0, or -1 with errno.  sendto() blocks while the daemon's queue is full; with MSG_DONTWAIT as
 * flags it fails with EAGAIN instead. */
static int bruce_send(int fd, const char *path, const void *message, size_t size)
{
    struct sockaddr_un daemon = {.sun_family = AF_UNIX};

    if (strlen(path) >= sizeof daemon.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(daemon.sun_path, path);
    return sendto(fd, message, size, 0, (struct sockaddr *)&daemon, sizeof daemon) < 0 ? -1 : 0;
}

int main(int argc, char **argv)
{
    static unsigned char message[MAX_DATAGRAM];

    if (argc != 5 && argc != 6) {
        fprintf(stderr, "usage: %s SOCKET TOPIC KEY VALUE [PARTITION-KEY]\n", argv[0]);
        return 2;
    }
    uint32_t partition_key = argc == 6 ? (uint32_t)strtoul(argv[5], NULL, 10) : 0;
    size_t size = bruce_message(message, sizeof message, argc == 6 ? &partition_key : NULL, argv[2], argv[3],
                                strlen(argv[3]), argv[4], strlen(argv[4]));
    if (size == 0) {
        fprintf(stderr, "%s: the topic has to have 1 to %d bytes, and the message at most %d\n", argv[0], MAX_TOPIC,
                MAX_DATAGRAM);
        return 1;
    }
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0); /* once in a program; a child may use it after fork() */
    if (fd < 0 || bruce_send(fd, argv[1], message, size) < 0) {
        fprintf(stderr, "%s: %s: %s\n", argv[0], argv[1], strerror(errno));
        return 1;
    }
    close(fd);
    return 0;
}
