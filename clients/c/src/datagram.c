/* Datagram client: one send() for each message.
 *
 * The socket is connected, because the kernel needs twice the time to look up the path for each message.  A restart of
 * the daemon goes unnoticed: if the daemon has closed its socket, the message goes to the present owner of the path; and
 * the client connects again each second, in case the path has another owner although the old socket is still open.
 * For a connected socket poll() also waits for room in the daemon's queue.
 * Parent and child may share the socket after a fork, because datagrams are atomic; only the counts start again. */

#include "internal.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NEVER (-1)
#define CONNECT_EVERY_MS 1000

struct bruce_datagram {
    int socket;
    size_t max_message;
    struct sockaddr_un daemon;
    atomic_long connected_in; /* second of the monotonic clock; NEVER: the socket is not connected */
    atomic_uint generation;
    atomic_uint_fast64_t sent, sent_bytes, invalid;
    atomic_uint_fast64_t refused_by[BRUCE_MAX_ERRNO];
};

static int open_socket(int send_buffer)
{
    int opened = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (opened >= 0 && send_buffer)
        setsockopt(opened, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
    return opened;
}

int bruce_datagram_open(bruce_datagram **client, const char *path, const bruce_datagram_options *options)
{
    static const bruce_datagram_options defaults;
    bruce_datagram *opened = calloc(1, sizeof *opened);
    int error;

    if (!opened)
        return ENOMEM;
    if (!options)
        options = &defaults;
    opened->max_message = options->max_message ? options->max_message : BRUCE_MAX_DATAGRAM;
    atomic_init(&opened->connected_in, NEVER);
    atomic_init(&opened->generation, bruce_fork_generation());
    error = bruce_set_path(&opened->daemon, path);
    if (!error && (opened->socket = open_socket(options->send_buffer)) < 0)
        error = errno;
    if (error)
        free(opened);
    else
        *client = opened;
    return error;
}

static void reset_after_fork(bruce_datagram *client)
{
    unsigned generation = bruce_fork_generation();

    if (atomic_load(&client->generation) == generation || atomic_exchange(&client->generation, generation) == generation)
        return;
    atomic_store(&client->sent, 0);
    atomic_store(&client->sent_bytes, 0);
    atomic_store(&client->invalid, 0);
    for (int i = 0; i < BRUCE_MAX_ERRNO; i++)
        atomic_store(&client->refused_by[i], 0);
}

static int count_refused(bruce_datagram *client, int error)
{
    atomic_fetch_add(&client->refused_by[error < BRUCE_MAX_ERRNO ? error : 0], 1);
    return error;
}

/* Connect the socket once a second; return true if it is connected. */
static bool is_connected(bruce_datagram *client)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    if (atomic_load(&client->connected_in) == now.tv_sec)
        return true;
    if (connect(client->socket, (const struct sockaddr *)&client->daemon, sizeof client->daemon) < 0)
        return false;
    atomic_store(&client->connected_in, now.tv_sec);
    return true;
}

static bool is_closed_socket(int error)
{
    return error == ECONNREFUSED || error == ENOTCONN || error == ECONNRESET || error == EPIPE;
}

static ssize_t send_to_daemon(bruce_datagram *client, const void *message, size_t size)
{
    const int flags = MSG_DONTWAIT | MSG_NOSIGNAL;

    if (is_connected(client)) {
        ssize_t done = send(client->socket, message, size, flags);

        if (done >= 0 || !is_closed_socket(errno))
            return done;
        atomic_store(&client->connected_in, NEVER);
    }
    return sendto(client->socket, message, size, flags, (const struct sockaddr *)&client->daemon, sizeof client->daemon);
}

int bruce_datagram_send_encoded(bruce_datagram *client, const void *message, size_t size)
{
    ssize_t done;

    reset_after_fork(client);
    if (size > client->max_message)
        return count_refused(client, EMSGSIZE);
    do
        done = send_to_daemon(client, message, size);
    while (done < 0 && errno == EINTR);
    if (done < 0)
        return count_refused(client, errno);
    atomic_fetch_add(&client->sent, 1);
    atomic_fetch_add(&client->sent_bytes, size);
    return BRUCE_OK;
}

int bruce_datagram_send(bruce_datagram *client, const bruce_message *message)
{
    unsigned char small[SMALL_MESSAGE], *buffer = small;
    size_t size;
    int error = bruce_encoded_size(message, &size);

    reset_after_fork(client);
    if (error && error != BRUCE_MESSAGE_TOO_LARGE) {
        atomic_fetch_add(&client->invalid, 1);
        return error;
    }
    if (error || size > client->max_message)
        return count_refused(client, EMSGSIZE);
    if (size > sizeof small && !(buffer = malloc(size)))
        return count_refused(client, ENOMEM);
    bruce_write_message(message, buffer, size);
    error = bruce_datagram_send_encoded(client, buffer, size);
    if (buffer != small)
        free(buffer);
    return error;
}

int bruce_datagram_wait(bruce_datagram *client, int timeout_ms)
{
    struct pollfd room = {.fd = client->socket, .events = POLLOUT};
    int64_t deadline_ms = bruce_deadline_after(timeout_ms), left_ms;
    int ready;

    do {
        if (!is_connected(client))
            return BRUCE_OK; /* there is no daemon; bruce_datagram_send() says why */
        left_ms = deadline_ms - bruce_clock_ms();
        ready = poll(&room, 1, left_ms < 0 ? 0 : left_ms < CONNECT_EVERY_MS ? (int)left_ms : CONNECT_EVERY_MS);
        if (ready < 0 && errno != EINTR)
            return errno;
    } while (ready <= 0 && left_ms > 0);
    return ready > 0 ? BRUCE_OK : EAGAIN;
}

void bruce_datagram_get_stats(bruce_datagram *client, bruce_datagram_stats *stats)
{
    reset_after_fork(client);
    stats->sent = atomic_load(&client->sent);
    stats->sent_bytes = atomic_load(&client->sent_bytes);
    stats->invalid = atomic_load(&client->invalid);
    stats->refused = 0;
    for (int i = 0; i < BRUCE_MAX_ERRNO; i++)
        stats->refused += stats->refused_by[i] = atomic_load(&client->refused_by[i]);
}

void bruce_datagram_close(bruce_datagram *client)
{
    if (!client)
        return;
    close(client->socket);
    free(client);
}
