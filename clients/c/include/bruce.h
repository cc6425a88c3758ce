/* libbruce: send messages to the bruce daemon, which delivers them to Kafka.
 *
 * A datagram client hands each message to the kernel and never blocks.  A stream client buffers messages, reconnects, and
 * learns the outcome with bruce_stream_flush().  Threads may share both.  After fork() the child's copy starts with a new
 * socket, an empty buffer and zero counts; the parent's continues unchanged.
 *
 * Functions that can fail return 0 (BRUCE_OK), a positive errno value, or a negative enum bruce_error. */

#ifndef BRUCE_H
#define BRUCE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define BRUCE_API __attribute__((visibility("default")))
#else
#define BRUCE_API
#endif

#define BRUCE_VERSION "1.0.0"

#define BRUCE_MAX_TOPIC 32767
#define BRUCE_MAX_HEADERS 65535        /* bytes of all record headers of a message */
#define BRUCE_MAX_DATAGRAM 65536       /* the daemon's input.max_datagram_size */
#define BRUCE_MAX_STREAM_MESSAGE 2097156 /* the daemon's input.max_stream_size + 4 */
#define BRUCE_MAX_REASONS 32
#define BRUCE_MAX_ERRNO 134

enum bruce_error {
    BRUCE_OK = 0,
    BRUCE_TOPIC_EMPTY = -1,
    BRUCE_TOPIC_TOO_LARGE = -2,
    BRUCE_HEADERS_TOO_LARGE = -3,
    BRUCE_MESSAGE_TOO_LARGE = -4,
    BRUCE_BUFFER_TOO_SMALL = -5,
    BRUCE_PATH_TOO_LONG = -6,
    BRUCE_BUFFER_FULL = -7,   /* the stream client's buffer; the message is dropped and counted */
    BRUCE_TIMED_OUT = -8,     /* a write, flush or close; the daemon still delivers what it has */
    BRUCE_BROKEN = -9,        /* the connection broke: some messages have an unknown outcome */
    BRUCE_SHUTTING_DOWN = -10, /* the daemon stops; its next start delivers the rest */
    BRUCE_REFUSED = -11       /* the daemon refused the flush: no journal, or a foreign protocol */
};

BRUCE_API const char *bruce_version(void);

/* Return a sentence for any result of this library; like strerror(), it may return a static buffer. */
BRUCE_API const char *bruce_strerror(int error);

/* --- messages ---------------------------------------------------------------------------------------------------- */

typedef struct bruce_header {
    const void *name;
    size_t name_size;
    const void *value; /* NULL: null */
    size_t value_size;
} bruce_header;

enum bruce_flags {
    BRUCE_HAS_PARTITION_KEY = 1, /* use partition_key */
    BRUCE_HAS_TIMESTAMP = 2,     /* use timestamp_ms; otherwise the message has the present time */
    BRUCE_NULL_VALUE = 4,        /* a tombstone: value is ignored */
    BRUCE_KEEP_EMPTY = 8         /* an empty value, and an empty key that is not NULL, stay empty; otherwise the key
                                    becomes null, and the daemon's configuration decides about the value */
};

/* A message.  Set all other fields to zero: bruce_message message = {.topic = "clicks", .value = v, .value_size = n}; */
typedef struct bruce_message {
    const char *topic;
    size_t topic_size; /* 0: topic ends with a NUL character */
    const void *key;   /* NULL: no key */
    size_t key_size;
    const void *value;
    size_t value_size;
    const bruce_header *headers;
    size_t header_count;
    int64_t timestamp_ms;   /* since 1970-01-01 UTC */
    uint32_t partition_key; /* modulo the number of partitions it selects one */
    unsigned flags;         /* enum bruce_flags */
} bruce_message;

/* Store the size that bruce_encode() needs. */
BRUCE_API int bruce_encoded_size(const bruce_message *message, size_t *size);

/* Write the message into a buffer and store its size. */
BRUCE_API int bruce_encode(const bruce_message *message, void *buffer, size_t capacity, size_t *size);

/* Return the partition_key that places a record key where a Kafka producer places it: the Java client (murmur2),
 * librdkafka's consistent_random (crc32), librdkafka's fnv1a_random and Sarama (fnv1a). */
BRUCE_API uint32_t bruce_murmur2(const void *key, size_t size);
BRUCE_API uint32_t bruce_crc32(const void *key, size_t size);
BRUCE_API uint32_t bruce_fnv1a(const void *key, size_t size);

/* --- datagrams --------------------------------------------------------------------------------------------------- */

typedef struct bruce_datagram bruce_datagram;

typedef struct bruce_datagram_options {
    size_t max_message; /* 0: BRUCE_MAX_DATAGRAM.  The daemon discards longer messages. */
    int send_buffer;    /* SO_SNDBUF in bytes, for messages beyond net.core.wmem_default; 0: the system's default */
} bruce_datagram_options;

/* Counts of this process: offered = sent + refused + invalid. */
typedef struct bruce_datagram_stats {
    uint64_t sent; /* the kernel has them */
    uint64_t sent_bytes;
    uint64_t refused;                           /* by the kernel, or longer than max_message (EMSGSIZE) */
    uint64_t refused_by[BRUCE_MAX_ERRNO];       /* the same by errno; [0] has those of other numbers */
    uint64_t invalid;                           /* not encodable: no topic, too many headers */
} bruce_datagram_stats;

/* Open a client for the daemon's input.unix_datagram.path; the daemon need not run yet.  options may be NULL. */
BRUCE_API int bruce_datagram_open(bruce_datagram **client, const char *path, const bruce_datagram_options *options);

/* Send one message without blocking.  EAGAIN: the daemon's queue or the send buffer is full; ENOENT, ECONNREFUSED: no
 * daemon. */
BRUCE_API int bruce_datagram_send(bruce_datagram *client, const bruce_message *message);

/* The same with encoded bytes. */
BRUCE_API int bruce_datagram_send_encoded(bruce_datagram *client, const void *message, size_t size);

/* Wait for at most timeout_ms, negative: without a limit, until the daemon's queue has room and three quarters of the send
 * buffer are free, or there is no daemon.  EAGAIN: not in time; a send may succeed nevertheless.  Another sender may be
 * faster, so send in a loop:
 *     while ((error = bruce_datagram_send(client, &message)) == EAGAIN) bruce_datagram_wait(client, -1); */
BRUCE_API int bruce_datagram_wait(bruce_datagram *client, int timeout_ms);

BRUCE_API void bruce_datagram_get_stats(bruce_datagram *client, bruce_datagram_stats *stats);

BRUCE_API void bruce_datagram_close(bruce_datagram *client);

/* --- streams ----------------------------------------------------------------------------------------------------- */

typedef struct bruce_stream bruce_stream;

typedef struct bruce_stream_options {
    size_t buffer;      /* bytes of messages that may wait for the daemon; 0: 1 MiB */
    size_t max_message; /* 0: BRUCE_MAX_STREAM_MESSAGE.  The daemon closes the connection at a longer message. */
    int linger_ms;      /* collect messages this long for one write; 0: write each at once */
} bruce_stream_options;

/* Counts of this process: accepted = sent + waiting + dropped_refused + dropped_closed. */
typedef struct bruce_stream_stats {
    uint64_t sent; /* written completely to a connection; only a flush tells their outcome */
    uint64_t sent_bytes;
    uint64_t waiting;              /* in the buffer */
    uint64_t dropped_buffer_full;  /* not accepted */
    uint64_t dropped_too_large;    /* not accepted */
    uint64_t dropped_invalid;      /* not accepted */
    uint64_t dropped_refused;      /* the daemon closed five connections within this message */
    uint64_t dropped_closed;       /* in the buffer at the end of bruce_stream_close() */
    uint64_t connections;
} bruce_stream_stats;

enum bruce_level {
    BRUCE_RECEIVED = 0,  /* the daemon has the messages, which survive its restart */
    BRUCE_DELIVERED = 1, /* each one is acknowledged by Kafka, or discarded */
    BRUCE_DURABLE = 2    /* as BRUCE_DELIVERED, or in the daemon's journal on disk */
};

typedef struct bruce_reason_count {
    int reason; /* bruce_reason_name() */
    int64_t count;
} bruce_reason_count;

/* Outcome of the messages since the last successful flush, or since the connection was opened. */
typedef struct bruce_outcome {
    int64_t received;
    int64_t delivered;
    int64_t discarded;
    int64_t uncertain; /* with BRUCE_BROKEN: written to a connection that broke; each may be delivered or not */
    size_t reason_count;
    bruce_reason_count reasons[BRUCE_MAX_REASONS]; /* why messages were discarded */
} bruce_outcome;

/* Create a client for the daemon's input.unix_stream.path, or for its input.tcp.port on this host.  The first message
 * connects.  options may be NULL. */
BRUCE_API int bruce_stream_open_unix(bruce_stream **client, const char *path, const bruce_stream_options *options);
BRUCE_API int bruce_stream_open_tcp(bruce_stream **client, uint16_t port, const bruce_stream_options *options);

/* Accept a message into the buffer, and write as much as the connection takes without blocking.  The library has no
 * thread: bytes that do not fit the connection wait for the next call of a function below. */
BRUCE_API int bruce_stream_send(bruce_stream *client, const bruce_message *message);

/* The same with encoded bytes. */
BRUCE_API int bruce_stream_send_encoded(bruce_stream *client, const void *message, size_t size);

/* Write the whole buffer, for at most timeout_ms; negative: without a limit.  A connection that breaks is opened again,
 * with pauses of up to 5 s.  Returns BRUCE_TIMED_OUT while bytes are left.  With 0 it suits a timer of an event loop.
 * Without a limit, returns EACCES or EPERM at once if the socket's mode (input.unix_stream.mode) denies the connection. */
BRUCE_API int bruce_stream_write(bruce_stream *client, int timeout_ms);

/* Wait until all earlier messages have reached the level.  outcome may be NULL.
 *
 * BRUCE_OK: the outcome is final.  BRUCE_TIMED_OUT: flush again for the outcome.  BRUCE_BROKEN: outcome->uncertain
 * messages may be lost; the client does not send them again, and the next flush concerns later messages only.
 * EACCES, EPERM: as for bruce_stream_write(). */
BRUCE_API int bruce_stream_flush(bruce_stream *client, enum bruce_level level, int timeout_ms, bruce_outcome *outcome);

BRUCE_API void bruce_stream_get_stats(bruce_stream *client, bruce_stream_stats *stats);

/* Write the buffer for at most timeout_ms, and free the client.  If messages were dropped, returns BRUCE_TIMED_OUT, or
 * EACCES or EPERM as bruce_stream_write() does.  No other thread may use the client. */
BRUCE_API int bruce_stream_close(bruce_stream *client, int timeout_ms);

/* Return the name of a reason, such as "BAD_TOPIC"; "UNKNOWN" for a number of a later daemon. */
BRUCE_API const char *bruce_reason_name(int reason);

#ifdef __cplusplus
}
#endif

#endif
