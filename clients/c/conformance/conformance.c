/* The conformance program of libbruce, see clients/conformance/README.md. */

#include <bruce.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FIELDS = 10, MAX_HEADERS = 64, MAX_VALUE = 1 << 22 };

static bruce_datagram *datagram;
static bruce_stream *stream;
static char value[MAX_VALUE];

static const char *error_name(int error)
{
    static char number[16];

    switch (error) {
    case BRUCE_TOPIC_EMPTY: return "TOPIC_EMPTY";
    case BRUCE_TOPIC_TOO_LARGE: return "TOPIC_TOO_LARGE";
    case BRUCE_HEADERS_TOO_LARGE: return "HEADERS_TOO_LARGE";
    case BRUCE_MESSAGE_TOO_LARGE: return "MESSAGE_TOO_LARGE";
    case BRUCE_TIMED_OUT: return "TIMED_OUT";
    case BRUCE_BROKEN: return "BROKEN";
    case BRUCE_SHUTTING_DOWN: return "SHUTTING_DOWN";
    case BRUCE_REFUSED: return "REFUSED";
    case EACCES:
    case EPERM: return "NO_PERMISSION";
    default: snprintf(number, sizeof number, "%d", error); return number;
    }
}

static int report(int error)
{
    if (error)
        return printf("error %s\n", error_name(error));
    return printf("ok\n");
}

/* Decode hexadecimal digits in place. */
static size_t unhex(char *digits)
{
    size_t size = strlen(digits) / 2;

    for (size_t i = 0; i < size; i++) {
        char pair[3] = {digits[2 * i], digits[2 * i + 1], 0};

        digits[i] = (char)strtoul(pair, NULL, 16);
    }
    return size;
}

/* Decode a field: "-" is null, "=" and digits are bytes. */
static const void *bytes(char *field, size_t *size)
{
    *size = 0;
    if (*field != '=')
        return NULL;
    *size = unhex(field + 1);
    return field + 1;
}

static size_t read_headers(char *field, bruce_header *headers)
{
    size_t count = 0;

    if (*field == '-')
        return 0;
    for (char *one = strtok(field, ","); one && count < MAX_HEADERS; one = strtok(NULL, ",")) {
        char *second = strchr(one, ':');

        *second++ = 0;
        bruce_header *header = &headers[count++];
        header->name = one;
        header->name_size = unhex(one);
        header->value = *second == '-' ? NULL : second;
        header->value_size = *second == '-' ? 0 : unhex(second);
    }
    return count;
}

static void encode(char **field)
{
    static bruce_header headers[MAX_HEADERS];
    bruce_message message = {0};
    size_t size;

    message.topic = bytes(field[1], &message.topic_size);
    message.key = bytes(field[2], &message.key_size);
    message.value = bytes(field[3], &message.value_size);
    if (!message.value)
        message.flags |= BRUCE_NULL_VALUE;
    if (*field[4] != '.') {
        message.timestamp_ms = strtoll(field[4], NULL, 10);
        message.flags |= BRUCE_HAS_TIMESTAMP;
    }
    if (*field[5] != '.') {
        message.partition_key = (uint32_t)strtoul(field[5], NULL, 10);
        message.flags |= BRUCE_HAS_PARTITION_KEY;
    }
    if (*field[6] == '1')
        message.flags |= BRUCE_KEEP_EMPTY;
    message.headers = headers;
    message.header_count = read_headers(field[7], headers);
    int error = bruce_encoded_size(&message, &size);
    unsigned char *buffer = error ? NULL : malloc(size);
    if (!error)
        error = bruce_encode(&message, buffer, size, &size);
    if (error) {
        report(error);
        return;
    }
    printf("ok ");
    for (size_t i = 0; i < size; i++)
        printf("%02x", buffer[i]);
    printf("\n");
    free(buffer);
}

static void hash(char **field)
{
    size_t size;
    const void *key = bytes(field[2], &size);
    uint32_t hashed = strcmp(field[1], "murmur2") == 0 ? bruce_murmur2(key, size)
                      : strcmp(field[1], "crc32") == 0 ? bruce_crc32(key, size)
                                                       : bruce_fnv1a(key, size);

    printf("ok %" PRIu32 "\n", hashed);
}

/* Message `number`: twelve digits, padded. */
static bruce_message numbered(const char *topic, long number, size_t size)
{
    memset(value, 'x', size);
    snprintf(value, sizeof value, "%012ld", number);
    value[12] = size > 12 ? 'x' : 0;
    return (bruce_message){.topic = topic, .value = value, .value_size = size};
}

static long send_datagrams(const char *topic, long first, long count, size_t size, long pause_us)
{
    struct timespec pause = {pause_us / 1000000, pause_us % 1000000 * 1000};
    long sent = 0;

    for (long number = first; number < first + count; number++) {
        bruce_message message = numbered(topic, number, size);

        sent += bruce_datagram_send(datagram, &message) == BRUCE_OK;
        if (pause_us)
            nanosleep(&pause, NULL);
    }
    return sent;
}

static long send_stream(const char *topic, long first, long count, size_t size)
{
    long accepted = 0;

    for (long number = first; number < first + count; number++) {
        bruce_message message = numbered(topic, number, size);

        accepted += bruce_stream_send(stream, &message) == BRUCE_OK;
    }
    return accepted;
}

static void report_datagram_stats(void)
{
    bruce_datagram_stats stats;
    const char *separator = "";

    bruce_datagram_get_stats(datagram, &stats);
    printf("ok %" PRIu64 " %" PRIu64 " %" PRIu64 " ", stats.sent, stats.sent_bytes, stats.refused);
    for (int i = 0; i < BRUCE_MAX_ERRNO; i++)
        if (stats.refused_by[i]) {
            printf("%s%d=%" PRIu64, separator, i, stats.refused_by[i]);
            separator = ",";
        }
    printf(*separator ? "\n" : "-\n");
}

static void report_stream_stats(void)
{
    bruce_stream_stats stats;

    bruce_stream_get_stats(stream, &stats);
    printf("ok %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
           stats.sent, stats.sent_bytes, stats.waiting, stats.dropped_buffer_full, stats.dropped_too_large,
           stats.dropped_refused, stats.dropped_closed, stats.connections);
}

static void open_stream(char **field)
{
    bruce_stream_options options = {.buffer = strtoul(field[2], NULL, 10), .linger_ms = atoi(field[3])};

    report(*field[1] == '/' ? bruce_stream_open_unix(&stream, field[1], &options)
                            : bruce_stream_open_tcp(&stream, (uint16_t)atoi(field[1]), &options));
}

static void print_flush(int error, const bruce_outcome *outcome)
{
    if (error) {
        printf("error %s %" PRId64, error_name(error), outcome->uncertain);
        return;
    }
    printf("ok %" PRId64 " %" PRId64 " %" PRId64 " ", outcome->received, outcome->delivered, outcome->discarded);
    for (size_t i = 0; i < outcome->reason_count; i++)
        printf("%s%s=%" PRId64, i ? "," : "", bruce_reason_name(outcome->reasons[i].reason), outcome->reasons[i].count);
    if (!outcome->reason_count)
        printf("-");
}

static void flush(char **field)
{
    enum bruce_level level = strcmp(field[1], "received") == 0    ? BRUCE_RECEIVED
                             : strcmp(field[1], "delivered") == 0 ? BRUCE_DELIVERED
                                                                  : BRUCE_DURABLE;
    bruce_outcome outcome;
    int error = bruce_stream_flush(stream, level, atoi(field[2]), &outcome);

    print_flush(error, &outcome);
    printf("\n");
}

struct flushed {
    int error;
    bruce_outcome outcome;
};

static void *flush_once(void *flushed)
{
    struct flushed *result = flushed;

    result->error = bruce_stream_flush(stream, BRUCE_DELIVERED, 20000, &result->outcome);
    return NULL;
}

static void flush_twice(void)
{
    struct flushed one, other;
    pthread_t thread;

    pthread_create(&thread, NULL, flush_once, &other);
    flush_once(&one);
    pthread_join(thread, NULL);
    print_flush(one.error, &one.outcome);
    printf(" ");
    print_flush(other.error, &other.outcome);
    printf("\n");
}

/* A child sends on its copies of both clients; its counts start at zero. */
static void fork_and_send(const char *topic, long first, long count)
{
    fflush(stdout);
    pid_t child = fork();

    if (child == 0) {
        bruce_datagram_stats datagrams;
        bruce_stream_stats streams;
        bruce_outcome outcome;

        long sent = send_datagrams(topic, first, count, 20, 1000);
        send_stream(topic, first + count, count, 20);
        int error = bruce_stream_flush(stream, BRUCE_DELIVERED, 20000, &outcome);
        bruce_datagram_get_stats(datagram, &datagrams);
        bruce_stream_get_stats(stream, &streams);
        _exit(error || sent != count || datagrams.sent != (uint64_t)count || streams.sent != (uint64_t)count ||
              outcome.delivered != count);
    }
    int status;
    waitpid(child, &status, 0);
    printf(status ? "error CHILD %d\n" : "ok\n", status);
}

static bool run(char **field)
{
    const char *command = field[0];

    if (strcmp(command, "encode") == 0)
        encode(field);
    else if (strcmp(command, "hash") == 0)
        hash(field);
    else if (strcmp(command, "datagram") == 0)
        report(bruce_datagram_open(&datagram, field[1], NULL));
    else if (strcmp(command, "datagram-send") == 0)
        printf("ok %ld\n", send_datagrams(field[1], atol(field[2]), atol(field[3]), strtoul(field[4], NULL, 10),
                                          atol(field[5])));
    else if (strcmp(command, "datagram-wait") == 0)
        printf("ok %d\n", bruce_datagram_wait(datagram, atoi(field[1])) == BRUCE_OK);
    else if (strcmp(command, "datagram-stats") == 0)
        report_datagram_stats();
    else if (strcmp(command, "stream") == 0)
        open_stream(field);
    else if (strcmp(command, "stream-send") == 0)
        printf("ok %ld\n", send_stream(field[1], atol(field[2]), atol(field[3]), strtoul(field[4], NULL, 10)));
    else if (strcmp(command, "stream-flush") == 0)
        flush(field);
    else if (strcmp(command, "stream-flush-twice") == 0)
        flush_twice();
    else if (strcmp(command, "stream-stats") == 0)
        report_stream_stats();
    else if (strcmp(command, "stream-close") == 0)
        report(bruce_stream_close(stream, atoi(field[1])));
    else if (strcmp(command, "fork") == 0)
        fork_and_send(field[1], atol(field[2]), atol(field[3]));
    else
        return false;
    return true;
}

int main(void)
{
    char *line = NULL;
    size_t capacity = 0;

    while (getline(&line, &capacity, stdin) > 0) {
        char *field[MAX_FIELDS] = {0}, *rest = line;

        for (int i = 0; i < MAX_FIELDS && (field[i] = strsep(&rest, " \n")) && rest; i++)
            ;
        if (!run(field))
            printf("unsupported\n");
        fflush(stdout);
    }
    free(line);
    bruce_datagram_close(datagram);
    return 0;
}
