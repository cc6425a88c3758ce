/* Encoding of messages, see docs/protocol.md. */

#include "internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    ANY_PARTITION = 256,
    PARTITION_KEY = 257,
    ANY_PARTITION_BYTES = 28,
    PARTITION_KEY_BYTES = 32,
    PLAIN_VERSION = 0,
    HEADERS_VERSION = 1,
    NULLS_VERSION = 2,
    HEADER_BYTES = 6
};

const char *bruce_version(void)
{
    return BRUCE_VERSION;
}

const char *bruce_strerror(int error)
{
    switch ((enum bruce_error)error) {
    case BRUCE_OK: return "success";
    case BRUCE_TOPIC_EMPTY: return "the topic is empty";
    case BRUCE_TOPIC_TOO_LARGE: return "the topic has more than 32767 bytes";
    case BRUCE_HEADERS_TOO_LARGE: return "the record headers have more than 65535 bytes";
    case BRUCE_MESSAGE_TOO_LARGE: return "the message is longer than the daemon accepts";
    case BRUCE_BUFFER_TOO_SMALL: return "the message does not fit into the buffer";
    case BRUCE_PATH_TOO_LONG: return "the path of a socket has 1 to 107 bytes";
    case BRUCE_BUFFER_FULL: return "the client's buffer is full";
    case BRUCE_TIMED_OUT: return "the time limit passed";
    case BRUCE_BROKEN: return "the connection broke; some messages have an unknown outcome";
    case BRUCE_SHUTTING_DOWN: return "the daemon is shutting down; it delivers the rest after its restart";
    case BRUCE_REFUSED: return "the daemon refused the flush";
    }
    return strerror(error);
}

unsigned char *bruce_put(unsigned char *at, uint64_t number, int bytes)
{
    while (bytes--)
        *at++ = (unsigned char)(number >> (8 * bytes));
    return at;
}

uint64_t bruce_get(const unsigned char *at, int bytes)
{
    uint64_t number = 0;

    while (bytes--)
        number = number << 8 | *at++;
    return number;
}

static unsigned char *put_bytes(unsigned char *at, const void *bytes, size_t size)
{
    if (size)
        memcpy(at, bytes, size);
    return at + size;
}

static size_t topic_size(const bruce_message *message)
{
    if (message->topic_size || !message->topic)
        return message->topic_size;
    return strlen(message->topic);
}

static size_t key_size(const bruce_message *message)
{
    return message->key ? message->key_size : 0;
}

static size_t value_size(const bruce_message *message)
{
    return message->flags & BRUCE_NULL_VALUE ? 0 : message->value_size;
}

static int headers_size(const bruce_message *message, size_t *size)
{
    *size = 0;
    for (size_t i = 0; i < message->header_count; i++) {
        const bruce_header *header = &message->headers[i];
        size_t value = header->value ? header->value_size : 0, room = BRUCE_MAX_HEADERS - *size;

        if (header->name_size > BRUCE_MAX_TOPIC || value > BRUCE_MAX_HEADERS ||
            HEADER_BYTES + header->name_size + value > room)
            return BRUCE_HEADERS_TOO_LARGE;
        *size += HEADER_BYTES + header->name_size + value;
    }
    return BRUCE_OK;
}

/* The lowest version that can express the message: older daemons refuse later ones. */
static int version_of(const bruce_message *message, size_t headers)
{
    bool has_empty = !message->value_size || (message->key && !message->key_size);

    if (message->flags & BRUCE_NULL_VALUE || (message->flags & BRUCE_KEEP_EMPTY && has_empty))
        return NULLS_VERSION;
    return headers ? HEADERS_VERSION : PLAIN_VERSION;
}

int bruce_encoded_size(const bruce_message *message, size_t *size)
{
    size_t topic = topic_size(message), headers, total;
    int error = headers_size(message, &headers);

    if (error)
        return error;
    if (topic == 0)
        return BRUCE_TOPIC_EMPTY;
    if (topic > BRUCE_MAX_TOPIC)
        return BRUCE_TOPIC_TOO_LARGE;
    if (key_size(message) > INT32_MAX || value_size(message) > INT32_MAX)
        return BRUCE_MESSAGE_TOO_LARGE;
    total = message->flags & BRUCE_HAS_PARTITION_KEY ? PARTITION_KEY_BYTES : ANY_PARTITION_BYTES;
    total += topic + key_size(message) + value_size(message);
    if (version_of(message, headers) != PLAIN_VERSION)
        total += 4 + headers;
    if (total > INT32_MAX)
        return BRUCE_MESSAGE_TOO_LARGE;
    *size = total;
    return BRUCE_OK;
}

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static unsigned char *put_key(unsigned char *at, const bruce_message *message, int version)
{
    bool keeps_empty = message->flags & BRUCE_KEEP_EMPTY && message->key;
    bool is_null = version == NULLS_VERSION && !key_size(message) && !keeps_empty;

    at = bruce_put(at, is_null ? UINT32_MAX : key_size(message), 4);
    return put_bytes(at, message->key, key_size(message));
}

static unsigned char *put_headers(unsigned char *at, const bruce_message *message)
{
    size_t size;

    headers_size(message, &size);
    at = bruce_put(at, size, 4);
    for (size_t i = 0; i < message->header_count; i++) {
        const bruce_header *header = &message->headers[i];

        at = put_bytes(bruce_put(at, header->name_size, 2), header->name, header->name_size);
        at = bruce_put(at, header->value ? header->value_size : UINT32_MAX, 4);
        if (header->value)
            at = put_bytes(at, header->value, header->value_size);
    }
    return at;
}

void bruce_write_message(const bruce_message *message, unsigned char *buffer, size_t size)
{
    bool has_partition_key = message->flags & BRUCE_HAS_PARTITION_KEY;
    bool is_null = message->flags & BRUCE_NULL_VALUE;
    size_t topic = topic_size(message), headers;
    unsigned char *at = bruce_put(buffer, size, 4);

    headers_size(message, &headers);
    int version = version_of(message, headers);
    at = bruce_put(at, has_partition_key ? PARTITION_KEY : ANY_PARTITION, 2);
    at = bruce_put(at, (uint64_t)version, 2);
    at = bruce_put(at, 0, 2); /* Flags */
    if (has_partition_key)
        at = bruce_put(at, message->partition_key, 4);
    at = put_bytes(bruce_put(at, topic, 2), message->topic, topic);
    at = bruce_put(at, (uint64_t)(message->flags & BRUCE_HAS_TIMESTAMP ? message->timestamp_ms : now_ms()), 8);
    at = put_key(at, message, version);
    at = bruce_put(at, is_null ? UINT32_MAX : message->value_size, 4);
    at = put_bytes(at, message->value, value_size(message));
    if (version != PLAIN_VERSION)
        put_headers(at, message);
}

int bruce_encode(const bruce_message *message, void *buffer, size_t capacity, size_t *size)
{
    int error = bruce_encoded_size(message, size);

    if (error)
        return error;
    if (*size > capacity)
        return BRUCE_BUFFER_TOO_SMALL;
    bruce_write_message(message, buffer, *size);
    return BRUCE_OK;
}

int bruce_set_path(struct sockaddr_un *address, const char *path)
{
    size_t length = strlen(path);

    if (length == 0 || length >= sizeof address->sun_path)
        return BRUCE_PATH_TOO_LONG;
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path, path, length + 1);
    return BRUCE_OK;
}

/* --- forks ------------------------------------------------------------------------------------------------------- */

static volatile unsigned generation;
static pthread_once_t fork_handler_once = PTHREAD_ONCE_INIT;

static void on_fork_in_child(void)
{
    generation++;
}

static void install_fork_handler(void)
{
    pthread_atfork(NULL, NULL, on_fork_in_child);
}

unsigned bruce_fork_generation(void)
{
    pthread_once(&fork_handler_once, install_fork_handler);
    return generation;
}
