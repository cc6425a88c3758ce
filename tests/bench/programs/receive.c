/* The plain receiver that everything is compared with: recv() in a loop, and nothing else.
 *
 *     receive ADDRESS MESSAGES SENDERS
 *
 * ADDRESS is datagram:PATH or unix:PATH, a stream.  It waits for SENDERS connections, and reads with epoll_wait() and recv().
 *
 * Prints "READY", then "RECEIVED messages seconds cpu-seconds" after so many messages, or after five seconds without any.
 * The seconds run from the first message on; the CPU is this process's, user and system.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>

static double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

enum { MOST_SENDERS = 1024, ROOM = 1 << 18 };

static struct stream {
    int sock;
    size_t kept;
    char buffer[ROOM];
} *streams[MOST_SENDERS];

/* Count the whole messages, and keep the rest. */
static long cut(struct stream *stream) {
    long count = 0;
    uint32_t size;
    char *at = stream->buffer, *end = at + stream->kept;
    while (end - at >= (long)sizeof size) {
        memcpy(&size, at, sizeof size);
        if (end - at < (long)ntohl(size)) break;
        at += ntohl(size);
        count++;
    }
    memmove(stream->buffer, at, end - at);
    stream->kept = end - at;
    return count;
}

static long receive_streams(int listener, int senders, long wanted, double *start, double *cpu) {
    struct epoll_event events[MOST_SENDERS];
    long received = 0;
    int epoll = epoll_create1(0), ready;
    for (int i = 0; i < senders; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        streams[i] = calloc(1, sizeof *streams[i]);
        if (!streams[i] || (streams[i]->sock = accept(listener, NULL, NULL)) < 0) err(1, "accept");
        epoll_ctl(epoll, EPOLL_CTL_ADD, streams[i]->sock, &event);
    }
    *cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    while (received < wanted && (ready = epoll_wait(epoll, events, MOST_SENDERS, 5000)) > 0) {
        if (*start == 0) *start = seconds(CLOCK_MONOTONIC);
        for (int i = 0; i < ready; i++) {
            struct stream *stream = streams[events[i].data.u32];
            ssize_t count = recv(stream->sock, stream->buffer + stream->kept, ROOM - stream->kept, 0);
            if (count <= 0) epoll_ctl(epoll, EPOLL_CTL_DEL, stream->sock, NULL);
            if (count > 0) stream->kept += count;
            received += cut(stream);
        }
    }
    return received;
}

int main(int argc, char **argv) {
    static char buffer[ROOM];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = 5};
    if (argc != 4) errx(2, "usage: receive ADDRESS MESSAGES SENDERS");
    long wanted = atol(argv[2]), received = 0;
    int is_stream = strncmp(argv[1], "unix:", 5) == 0, senders = atoi(argv[3]);
    int sock = socket(AF_UNIX, is_stream ? SOCK_STREAM : SOCK_DGRAM, 0);
    strncpy(address.sun_path, strchr(argv[1], ':') + 1, sizeof address.sun_path - 1);
    if (sock < 0 || bind(sock, (struct sockaddr *)&address, sizeof address) < 0) err(1, "%s", argv[1]);
    if (is_stream && (senders > MOST_SENDERS || listen(sock, senders) < 0)) err(1, "%s", argv[1]);
    setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    puts("READY");
    fflush(stdout);
    double start = 0, cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    if (is_stream)
        received = receive_streams(sock, senders, wanted, &start, &cpu);
    else while (received < wanted && recv(sock, buffer, sizeof buffer, 0) >= 0)
        if (received++ == 0) start = seconds(CLOCK_MONOTONIC);
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("RECEIVED %ld %.6f %.6f\n", received, seconds(CLOCK_MONOTONIC) - start, cpu);
    return 0;
}
