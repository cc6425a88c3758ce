/* Stream client: a send buffer, a connection that is opened again after a break, and the barrier behind a flush.
 *
 * All input and output happens in service(), without blocking and under the lock; waiting happens without the lock, so a
 * thread in a flush does not delay others that send.  The daemon needs whole messages: after a break, the partly written
 * message is written again from its start. */

#include "internal.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    DEFAULT_BUFFER = 1 << 20,
    FIRST_ALLOCATION = 1 << 16,
    FULL_WRITE = 1 << 16,
    FIRST_BACKOFF_MS = 50,
    MAX_BACKOFF_MS = 5000,
    MAX_WAIT_MS = 50, /* a thread may close the connection on which another one waits */
    LEVELS = 3,
    MAX_BREAKS = 5,   /* consecutive connections that may break within the same message */
    BARRIER = 258,
    ANSWER = 259,
    BARRIER_BYTES = 24,
    ANSWER_BYTES = 44,
    REASON_BYTES = 10,
    MAX_ANSWER = ANSWER_BYTES + 256 * REASON_BYTES
};

enum barrier_status { DONE, TIME_LIMIT, SHUTDOWN, MALFORMED, UNSUPPORTED_VERSION, FENCED, NO_JOURNAL };

static const char *const reason_names[] = {
    [1] = "MALFORMED",
    [2] = "UNSUPPORTED_API_KEY",
    [3] = "UNSUPPORTED_VERSION",
    [4] = "NO_MEM",
    [5] = "BAD_TOPIC",
    [6] = "LONG_MSG",
    [7] = "RATE_LIMIT",
    [8] = "TOPIC_AUTOCREATE_FAIL",
    [9] = "NO_AVAILABLE_PARTITIONS",
    [10] = "KAFKA_ERROR_ACK",
    [11] = "DELIVERY_ATTEMPT_LIMIT",
    [12] = "SERVER_SHUTDOWN",
    [13] = "UNCLEAN_DISCONNECT",
    [14] = "BUG",
    [15] = "ABANDONED_ATTEMPT",
    [16] = "SENDER_NOT_ALLOWED",
    [17] = "OVER_QUOTA",
    [18] = "TOPIC_OVER_SHARE",
    [19] = "SPILL_LOST",
    [20] = "POSSIBLY_DELIVERED",
};

/* The daemon's counts of one connection, from its first message. */
struct counts {
    int64_t received, delivered, discarded;
    int64_t reasons[BRUCE_MAX_REASONS];
};

struct answer {
    uint64_t token; /* 0: none */
    enum barrier_status status;
    struct counts counts;
};

struct bruce_stream {
    pthread_mutex_t lock;
    pthread_cond_t flush_over;
    bool is_flushing; /* one thread at a time */
    unsigned generation;

    struct sockaddr_storage address;
    socklen_t address_size;
    bruce_stream_options options;

    unsigned char *buffer; /* whole messages from `start` to `end` */
    size_t capacity, start, end;
    size_t written; /* bytes of the first message that this connection has */
    size_t due_bytes;   /* a write is due with so many bytes in the buffer, ... */
    int64_t lingers_ms; /* ... or when the linger that began at this time is over */

    int socket; /* -1: none */
    int backoff_ms;
    int64_t next_attempt_ms;
    int denied; /* EACCES or EPERM of the last attempt to connect; 0 otherwise */
    bool is_denied_again; /* the attempt before it was denied, too */
    unsigned random;
    int breaks;

    int64_t written_messages;  /* completely, to this connection */
    struct counts flushed;     /* the daemon's counts at the last successful flush */
    int64_t confirmed[LEVELS]; /* of the written messages, by the level that they have reached at least */
    int64_t lost[LEVELS];      /* of earlier connections, by the level that they may not have reached */
    int64_t uncertain[LEVELS]; /* of the lost messages, those that no flush has reported */
    uint64_t last_token;
    uint64_t barrier_connection; /* number of the connection that got the last barrier; 0: none yet */
    struct answer answer;
    bool is_foreign; /* the peer does not speak our protocol */
    unsigned char input[MAX_ANSWER];
    size_t input_size;

    bruce_stream_stats stats;
};

const char *bruce_reason_name(int reason)
{
    if (reason < 1 || (size_t)reason >= sizeof reason_names / sizeof *reason_names)
        return "UNKNOWN";
    return reason_names[reason];
}

/* --- opening ----------------------------------------------------------------------------------------------------- */

static void create_locks(bruce_stream *client)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&client->lock, NULL);
    pthread_cond_init(&client->flush_over, &monotonic);
    pthread_condattr_destroy(&monotonic);
    client->is_flushing = false;
}

static int open_stream(bruce_stream **client, const void *address, socklen_t size, const bruce_stream_options *options)
{
    bruce_stream *opened = calloc(1, sizeof *opened);

    if (!opened)
        return ENOMEM;
    if (options)
        opened->options = *options;
    if (!opened->options.buffer)
        opened->options.buffer = DEFAULT_BUFFER;
    if (!opened->options.max_message)
        opened->options.max_message = BRUCE_MAX_STREAM_MESSAGE;
    create_locks(opened);
    memcpy(&opened->address, address, size);
    opened->address_size = size;
    opened->socket = -1;
    opened->backoff_ms = FIRST_BACKOFF_MS;
    opened->random = (unsigned)bruce_clock_ms() ^ (unsigned)getpid();
    opened->generation = bruce_fork_generation();
    *client = opened;
    return BRUCE_OK;
}

int bruce_stream_open_unix(bruce_stream **client, const char *path, const bruce_stream_options *options)
{
    struct sockaddr_un address;
    int error = bruce_set_path(&address, path);

    return error ? error : open_stream(client, &address, sizeof address, options);
}

int bruce_stream_open_tcp(bruce_stream **client, uint16_t port, const bruce_stream_options *options)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    return open_stream(client, &address, sizeof address, options);
}

/* --- the buffer -------------------------------------------------------------------------------------------------- */

static size_t waiting_bytes(const bruce_stream *client)
{
    return client->end - client->start;
}

static bool is_barrier(const unsigned char *message)
{
    return bruce_get(message + 4, 2) == BARRIER;
}

/* Return `size` free bytes behind the last message, or NULL without memory. */
static unsigned char *reserve(bruce_stream *client, size_t size)
{
    size_t used = waiting_bytes(client);

    if (client->capacity - client->end >= size)
        return client->buffer + client->end;
    if (client->capacity < used + size) {
        size_t capacity = client->capacity ? client->capacity : FIRST_ALLOCATION;

        while (capacity < used + size)
            capacity *= 2;
        unsigned char *grown = realloc(client->buffer, capacity);
        if (!grown)
            return NULL;
        client->buffer = grown;
        client->capacity = capacity;
    }
    memmove(client->buffer, client->buffer + client->start, used);
    client->start = 0;
    client->end = used;
    return client->buffer + used;
}

static void remove_first(bruce_stream *client, size_t size)
{
    if (!is_barrier(client->buffer + client->start))
        client->stats.waiting--;
    client->start += size;
    if (client->start == client->end)
        client->start = client->end = 0;
}

static size_t first_size(const bruce_stream *client)
{
    return (size_t)bruce_get(client->buffer + client->start, 4);
}

static void on_written(bruce_stream *client, size_t bytes)
{
    size_t size;

    client->written += bytes;
    while (waiting_bytes(client) && client->written >= (size = first_size(client))) {
        if (is_barrier(client->buffer + client->start)) {
            client->barrier_connection = client->stats.connections;
        } else {
            client->written_messages++;
            client->stats.sent++;
            client->stats.sent_bytes += size;
        }
        remove_first(client, size);
        client->written -= size;
        client->breaks = 0;
        client->backoff_ms = FIRST_BACKOFF_MS;
    }
}

/* --- the connection ---------------------------------------------------------------------------------------------- */

static void disconnect(bruce_stream *client)
{
    int ended = client->socket;

    client->socket = -1; /* first: after a fork() in between, the child must not close another file of this number */
    close(ended);
    client->input_size = 0;
    for (int level = 0; level < LEVELS; level++) {
        client->lost[level] += client->written_messages - client->confirmed[level];
        client->uncertain[level] += client->written_messages - client->confirmed[level];
    }
    client->written_messages = 0;
    memset(&client->flushed, 0, sizeof client->flushed);
    memset(client->confirmed, 0, sizeof client->confirmed);
}

static void on_break(bruce_stream *client)
{
    disconnect(client);
    client->breaks = client->written ? client->breaks + 1 : 0;
    client->written = 0;
    if (client->breaks < MAX_BREAKS)
        return;
    client->breaks = 0;
    if (!is_barrier(client->buffer + client->start))
        client->stats.dropped_refused++;
    remove_first(client, first_size(client));
}

static void schedule_next_attempt(bruce_stream *client, int64_t now)
{
    client->random = client->random * 1103515245 + 12345;
    int half = client->backoff_ms / 2;
    client->next_attempt_ms = now + half + (int)(client->random >> 16) % (half + 1);
    client->backoff_ms = client->backoff_ms * 2 < MAX_BACKOFF_MS ? client->backoff_ms * 2 : MAX_BACKOFF_MS;
}

/* Connect a socket and return 0 or an errno value.  Over TCP the connection may still be on its way; on this host, a refusal
 * has arrived when connect() returns. */
static int connect_socket(const bruce_stream *client, int opened)
{
    int error = 0;
    socklen_t size = sizeof error;

    if (connect(opened, (const struct sockaddr *)&client->address, client->address_size) == 0)
        return 0;
    if (errno != EINPROGRESS)
        return errno;
    return getsockopt(opened, SOL_SOCKET, SO_ERROR, &error, &size) < 0 ? errno : error;
}

/* Open a connection, if there is none and the pause after the last attempt is over. */
static bool is_connected(bruce_stream *client)
{
    int64_t now = bruce_clock_ms();
    int on = 1;

    if (client->socket >= 0)
        return true;
    if (now < client->next_attempt_ms)
        return false;
    schedule_next_attempt(client, now);
    bool was_denied = client->denied != 0;
    client->denied = 0;
    client->is_denied_again = false;
    int opened = socket(client->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (opened < 0)
        return false;
    int error = connect_socket(client, opened);
    if (error) {
        if (error == EACCES || error == EPERM) {
            client->denied = error;
            client->is_denied_again = was_denied;
            client->backoff_ms = FIRST_BACKOFF_MS; /* so that each later call fails soon */
        }
        close(opened);
        return false;
    }
    if (client->address.ss_family == AF_INET)
        setsockopt(opened, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    client->socket = opened;
    client->stats.connections++;
    return true;
}

static void read_answer(struct answer *answer, const unsigned char *frame)
{
    size_t reasons = (size_t)bruce_get(frame + 42, 2);

    memset(answer, 0, sizeof *answer);
    answer->token = bruce_get(frame + 8, 8);
    answer->status = (enum barrier_status)bruce_get(frame + 16, 2);
    answer->counts.received = (int64_t)bruce_get(frame + 18, 8);
    answer->counts.delivered = (int64_t)bruce_get(frame + 26, 8);
    answer->counts.discarded = (int64_t)bruce_get(frame + 34, 8);
    for (const unsigned char *at = frame + ANSWER_BYTES; reasons--; at += REASON_BYTES) {
        size_t reason = (size_t)bruce_get(at, 2);

        answer->counts.reasons[reason < BRUCE_MAX_REASONS ? reason : 0] += (int64_t)bruce_get(at + 2, 8);
    }
}

/* Split the received bytes into answers; return false for anything else. */
static bool split_answers(bruce_stream *client)
{
    size_t at = 0;

    while (client->input_size - at >= 6) {
        const unsigned char *frame = client->input + at;
        size_t size = (size_t)bruce_get(frame, 4);

        if (bruce_get(frame + 4, 2) != ANSWER || size < ANSWER_BYTES || size > MAX_ANSWER)
            return false;
        if (client->input_size - at < size)
            break;
        if (size != ANSWER_BYTES + REASON_BYTES * (size_t)bruce_get(frame + 42, 2))
            return false;
        read_answer(&client->answer, frame);
        at += size;
    }
    memmove(client->input, client->input + at, client->input_size - at);
    client->input_size -= at;
    return true;
}

/* Read answers that are there; return false if the connection is over. */
static bool read_answers(bruce_stream *client)
{
    for (;;) {
        ssize_t got = recv(client->socket, client->input + client->input_size, MAX_ANSWER - client->input_size,
                           MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return errno == EAGAIN || errno == ENOTCONN; /* a TCP connection may still be on its way */
        if (got == 0)
            return false;
        client->input_size += (size_t)got;
        if (!split_answers(client)) {
            client->is_foreign = true;
            return false;
        }
    }
}

/* Write until the buffer is empty or the connection full; return false if the connection is over. */
static bool write_buffer(bruce_stream *client)
{
    while (waiting_bytes(client)) {
        size_t left = waiting_bytes(client) - client->written;
        ssize_t done = send(client->socket, client->buffer + client->start + client->written, left,
                            MSG_DONTWAIT | MSG_NOSIGNAL);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return errno == EAGAIN;
        on_written(client, (size_t)done);
    }
    return true;
}

/* Do all input and output that is possible without blocking. */
static void service(bruce_stream *client)
{
    if (!is_connected(client))
        return;
    if (!read_answers(client) || !write_buffer(client))
        on_break(client);
}

/* Give other threads the lock until the connection is ready, the next attempt is due or the deadline passes. */
static void wait_unlocked(bruce_stream *client, int64_t deadline_ms)
{
    int64_t now = bruce_clock_ms(), until = deadline_ms;
    struct pollfd ready = {.fd = client->socket, .events = POLLIN};

    if (waiting_bytes(client))
        ready.events |= POLLOUT;
    if (client->socket < 0 && client->next_attempt_ms < until)
        until = client->next_attempt_ms;
    int64_t wait = until - now;
    wait = wait < 0 ? 0 : wait > MAX_WAIT_MS ? MAX_WAIT_MS : wait;
    pthread_mutex_unlock(&client->lock);
    poll(&ready, 1, (int)wait);
    pthread_mutex_lock(&client->lock);
}

/* --- forks ------------------------------------------------------------------------------------------------------- */

static void lock(bruce_stream *client)
{
    unsigned generation = bruce_fork_generation();

    if (client->generation != generation) { /* this is a child, in which no other thread has used the client yet */
        create_locks(client);
        if (client->socket >= 0)
            disconnect(client);
        client->buffer = NULL; /* lost: another thread may have been replacing it */
        client->capacity = client->start = client->end = client->written = 0;
        memset(client->uncertain, 0, sizeof client->uncertain);
        client->breaks = 0;
        memset(&client->stats, 0, sizeof client->stats);
        client->generation = generation;
    }
    pthread_mutex_lock(&client->lock);
}

/* --- sending ----------------------------------------------------------------------------------------------------- */

/* Return room for a message, or the reason to drop it. */
static int admit(bruce_stream *client, size_t size, unsigned char **room)
{
    if (size > client->options.max_message) {
        client->stats.dropped_too_large++;
        return BRUCE_MESSAGE_TOO_LARGE;
    }
    if (waiting_bytes(client) && waiting_bytes(client) + size > client->options.buffer)
        service(client);
    if (waiting_bytes(client) && waiting_bytes(client) + size > client->options.buffer) {
        client->stats.dropped_buffer_full++;
        return BRUCE_BUFFER_FULL;
    }
    if (!(*room = reserve(client, size))) {
        client->stats.dropped_buffer_full++;
        return ENOMEM;
    }
    return BRUCE_OK;
}

static void on_accepted(bruce_stream *client, size_t size)
{
    int64_t now = client->options.linger_ms > 0 ? bruce_clock_ms() : 0;

    if (!waiting_bytes(client)) {
        client->due_bytes = FULL_WRITE;
        client->lingers_ms = now;
    }
    client->end += size;
    client->stats.waiting++;
    if (waiting_bytes(client) < client->due_bytes && now - client->lingers_ms < client->options.linger_ms)
        return;
    service(client);
    /* What a full connection did not take waits for a full write or linger: each try costs two system calls. */
    client->due_bytes = waiting_bytes(client) + FULL_WRITE;
    client->lingers_ms = now;
}

int bruce_stream_send(bruce_stream *client, const bruce_message *message)
{
    unsigned char *room;
    size_t size;
    int error = bruce_encoded_size(message, &size);

    lock(client);
    if (error) {
        client->stats.dropped_invalid++;
    } else if (!(error = admit(client, size, &room))) {
        bruce_write_message(message, room, size);
        on_accepted(client, size);
    }
    pthread_mutex_unlock(&client->lock);
    return error;
}

int bruce_stream_send_encoded(bruce_stream *client, const void *message, size_t size)
{
    unsigned char *room;
    int error = BRUCE_OK;

    lock(client);
    if (size < 8 || bruce_get(message, 4) != size) { /* it would break the framing */
        client->stats.dropped_invalid++;
        error = EINVAL;
    } else if (!(error = admit(client, size, &room))) {
        memcpy(room, message, size);
        on_accepted(client, size);
    }
    pthread_mutex_unlock(&client->lock);
    return error;
}

/* Return true if a wait without a limit would not end, because only the administrator can give the permission.  The
 * first denial does not count: a daemon that starts sets the owner after it creates the socket. */
static bool is_denied(const bruce_stream *client, int64_t deadline_ms)
{
    return client->is_denied_again && deadline_ms == INT64_MAX;
}

/* Let a call that would fail for want of permission connect first: the permission may be there by now. */
static void retry_after_denial(bruce_stream *client, int64_t deadline_ms)
{
    if (is_denied(client, deadline_ms))
        client->next_attempt_ms = 0;
}

static int write_all(bruce_stream *client, int64_t deadline_ms)
{
    retry_after_denial(client, deadline_ms);
    for (;;) {
        service(client);
        if (!waiting_bytes(client))
            return BRUCE_OK;
        if (is_denied(client, deadline_ms))
            return client->denied;
        if (bruce_clock_ms() >= deadline_ms)
            return BRUCE_TIMED_OUT;
        wait_unlocked(client, deadline_ms);
    }
}

int bruce_stream_write(bruce_stream *client, int timeout_ms)
{
    lock(client);
    int error = write_all(client, bruce_deadline_after(timeout_ms));
    pthread_mutex_unlock(&client->lock);
    return error;
}

/* --- flushing ---------------------------------------------------------------------------------------------------- */

static int append_barrier(bruce_stream *client, enum bruce_level level, int64_t deadline_ms)
{
    int64_t left = deadline_ms == INT64_MAX ? INT_MAX : (deadline_ms - bruce_clock_ms()) / 10 * 9; /* the rest: transfer */
    unsigned char *at = reserve(client, BARRIER_BYTES);

    if (!at)
        return ENOMEM;
    client->barrier_connection = 0;
    client->last_token++;
    at = bruce_put(at, BARRIER_BYTES, 4);
    at = bruce_put(at, BARRIER, 2);
    at = bruce_put(at, 0, 4); /* ApiVersion, Flags */
    at = bruce_put(at, client->last_token, 8);
    at = bruce_put(at, level, 2);
    bruce_put(at, (uint64_t)(left < 0 ? 0 : left > INT_MAX ? INT_MAX : left), 4);
    client->end += BARRIER_BYTES;
    return BRUCE_OK;
}

/* Remove the barrier of a flush that gave up, if the daemon has none of it. */
static void remove_barrier(bruce_stream *client)
{
    unsigned char *last = client->buffer + client->end - BARRIER_BYTES;

    if (client->barrier_connection || waiting_bytes(client) < BARRIER_BYTES)
        return;
    if (waiting_bytes(client) == BARRIER_BYTES && client->written)
        return;
    if (bruce_get(last, 4) == BARRIER_BYTES && is_barrier(last) && bruce_get(last + 10, 8) == client->last_token)
        client->end -= BARRIER_BYTES;
}

static void set_outcome(bruce_outcome *outcome, const struct counts *now, const struct counts *before)
{
    outcome->received = now->received - before->received;
    outcome->delivered = now->delivered - before->delivered;
    outcome->discarded = now->discarded - before->discarded;
    for (int reason = 0; reason < BRUCE_MAX_REASONS; reason++) {
        int64_t count = now->reasons[reason] - before->reasons[reason];

        if (count)
            outcome->reasons[outcome->reason_count++] = (bruce_reason_count){reason, count};
    }
}

static int settle(bruce_stream *client, enum bruce_level level, bruce_outcome *outcome)
{
    set_outcome(outcome, &client->answer.counts, &client->flushed);
    switch (client->answer.status) {
    case DONE:
        client->flushed = client->answer.counts;
        for (int each = 0; each < LEVELS; each++)
            if (each == BRUCE_RECEIVED || each == (int)level || level == BRUCE_DELIVERED) /* the strongest one */
                client->confirmed[each] = client->flushed.received;
        return BRUCE_OK;
    case TIME_LIMIT: return BRUCE_TIMED_OUT;
    case SHUTDOWN: return BRUCE_SHUTTING_DOWN;
    default: return BRUCE_REFUSED;
    }
}

/* Report the messages that may not have reached the level; others may be left for a stronger one. */
static int take_uncertain(bruce_stream *client, enum bruce_level level, int64_t lost_before, bruce_outcome *outcome)
{
    int64_t unreported = client->uncertain[level];
    int64_t lost = client->lost[level] - lost_before; /* another thread's flush may have reported these */

    for (int each = 0; each < LEVELS; each++)
        client->uncertain[each] -= client->uncertain[each] < unreported ? client->uncertain[each] : unreported;
    outcome->uncertain = unreported > lost ? unreported : lost;
    return outcome->uncertain ? BRUCE_BROKEN : BRUCE_OK;
}

static int await_answer(bruce_stream *client, enum bruce_level level, int64_t deadline_ms, bruce_outcome *outcome)
{
    for (;;) {
        service(client);
        if (take_uncertain(client, level, client->lost[level], outcome))
            return BRUCE_BROKEN;
        if (client->answer.token == client->last_token)
            return settle(client, level, outcome);
        if (client->is_foreign)
            return BRUCE_REFUSED;
        if (is_denied(client, deadline_ms))
            return client->denied;
        if (bruce_clock_ms() >= deadline_ms)
            return BRUCE_TIMED_OUT;
        bool has_ended = client->socket < 0 || client->barrier_connection != client->stats.connections;
        if (client->barrier_connection && has_ended && append_barrier(client, level, deadline_ms))
            return ENOMEM;
        wait_unlocked(client, deadline_ms);
    }
}

/* Wait for the flush of another thread; return false at the deadline. */
static bool begin_flush(bruce_stream *client, int64_t deadline_ms)
{
    const struct timespec until = {deadline_ms / 1000, deadline_ms % 1000 * 1000000};

    while (client->is_flushing) {
        if (deadline_ms == INT64_MAX)
            pthread_cond_wait(&client->flush_over, &client->lock);
        else if (bruce_clock_ms() >= deadline_ms)
            return false;
        else
            pthread_cond_timedwait(&client->flush_over, &client->lock, &until);
    }
    client->is_flushing = true;
    return true;
}

static void end_flush(bruce_stream *client)
{
    client->is_flushing = false;
    pthread_cond_signal(&client->flush_over);
}

static int flush_locked(bruce_stream *client, enum bruce_level level, int64_t deadline_ms, bruce_outcome *outcome)
{
    int error;

    client->is_foreign = false;
    retry_after_denial(client, deadline_ms);
    error = append_barrier(client, level, deadline_ms);
    if (!error)
        error = await_answer(client, level, deadline_ms, outcome);
    if (error)
        remove_barrier(client);
    return error;
}

int bruce_stream_flush(bruce_stream *client, enum bruce_level level, int timeout_ms, bruce_outcome *outcome)
{
    int64_t deadline_ms = bruce_deadline_after(timeout_ms);
    bruce_outcome unused;
    int error = BRUCE_TIMED_OUT;

    if (!outcome)
        outcome = &unused;
    memset(outcome, 0, sizeof *outcome);
    if ((unsigned)level >= LEVELS)
        return BRUCE_REFUSED;
    lock(client);
    int64_t lost_before = client->lost[level];
    if (begin_flush(client, deadline_ms)) {
        error = take_uncertain(client, level, lost_before, outcome);
        if (!error)
            error = flush_locked(client, level, deadline_ms, outcome);
        end_flush(client);
    }
    pthread_mutex_unlock(&client->lock);
    return error;
}

void bruce_stream_get_stats(bruce_stream *client, bruce_stream_stats *stats)
{
    lock(client);
    *stats = client->stats;
    pthread_mutex_unlock(&client->lock);
}

int bruce_stream_close(bruce_stream *client, int timeout_ms)
{
    if (!client)
        return BRUCE_OK;
    lock(client);
    int error = write_all(client, bruce_deadline_after(timeout_ms));
    client->stats.dropped_closed += client->stats.waiting;
    if (client->socket >= 0) {
        shutdown(client->socket, SHUT_WR);
        recv(client->socket, client->input, MAX_ANSWER, MSG_DONTWAIT); /* over TCP, unread answers would reset it */
        close(client->socket);
    }
    pthread_mutex_unlock(&client->lock);
    pthread_mutex_destroy(&client->lock);
    pthread_cond_destroy(&client->flush_over);
    free(client->buffer);
    free(client);
    return error;
}
