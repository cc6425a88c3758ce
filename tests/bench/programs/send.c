/* Senders that cost as little as a sender can: one blocking send() after the other, nothing computed on the way.
 *
 *     send ADDRESS FILE MESSAGES SENDERS RATE PER_WRITE STAMP BARE
 *
 * ADDRESS is datagram:PATH, unix:PATH (a stream) or tcp:PORT of 127.0.0.1.  FILE holds the messages to send, back to back;
 * each begins with its own size (32 bits, big-endian).  They are sent round and round, by SENDERS processes with a socket
 * each, who share MESSAGES and RATE (messages a second, 0 = never pause); up to PER_WRITE in one write, for streams.  A
 * sender that is late catches up at once.  With STAMP 1 the last eight bytes of each message become the nanoseconds of
 * CLOCK_MONOTONIC at which it is sent; with BARE 1 they are datagrams and their sizes are left out.  With a rate, the
 * timestamp of each AnyPartition message becomes the time at which it is sent.  Prints "SENT messages seconds".
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <err.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_MESSAGES = 1 << 16, ANY_PARTITION = 256, TOPIC_AT = 12 };

static char *messages_at[MOST_MESSAGES];
static int message_count;

static uint32_t size_of(const char *message) {
    uint32_t size;
    memcpy(&size, message, sizeof size);
    return ntohl(size);
}

static void read_messages(const char *path) {
    struct stat facts;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &facts) < 0) err(1, "%s", path);
    char *at = mmap(NULL, facts.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_POPULATE, file, 0);
    if (at == MAP_FAILED) err(1, "%s", path);
    for (const char *end = at + facts.st_size; at < end && message_count < MOST_MESSAGES; at += size_of(at))
        messages_at[message_count++] = at;
}

static int connected(int domain, int type, const struct sockaddr *address, socklen_t size, const char *name) {
    int sock = socket(domain, type, 0);
    if (sock < 0 || connect(sock, address, size) < 0) err(1, "%s", name);
    return sock;
}

static int connect_to(const char *name) {
    const char *rest = strchr(name, ':') + 1;
    if (strncmp(name, "tcp:", 4) == 0) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(rest))};
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return connected(AF_INET, SOCK_STREAM, (struct sockaddr *)&address, sizeof address, name);
    }
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, rest, sizeof address.sun_path - 1);
    int type = strncmp(name, "unix:", 5) == 0 ? SOCK_STREAM : SOCK_DGRAM;
    return connected(AF_UNIX, type, (struct sockaddr *)&address, sizeof address, name);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void wait_until(double due) {
    struct timespec t = {.tv_sec = (time_t)due, .tv_nsec = (long)((due - (time_t)due) * 1e9)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static void stamp(char *message) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t ns = t.tv_sec * 1000000000ULL + t.tv_nsec;
    memcpy(message + size_of(message) - sizeof ns, &ns, sizeof ns);
}

/* Set the timestamp, which follows the topic. */
static void date(char *message) {
    uint16_t api, topic_size;
    struct timespec t;
    memcpy(&api, message + 4, sizeof api), memcpy(&topic_size, message + TOPIC_AT - 2, sizeof topic_size);
    if (ntohs(api) != ANY_PARTITION) return;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t ms = htobe64(t.tv_sec * 1000ULL + t.tv_nsec / 1000000);
    memcpy(message + TOPIC_AT + ntohs(topic_size), &ms, sizeof ms);
}

static void send_all(int sock, int first, long messages, double rate, int per_write, int stamped, int bare) {
    double start = now();
    for (long i = 0, count; i < messages; i += count) {
        int next = (first + i) % message_count;
        size_t size = 0;
        if (rate > 0) wait_until(start + i / rate);
        for (count = 0; count < per_write && i + count < messages && next + count < message_count; count++) {
            if (stamped) stamp(messages_at[next + count]);
            if (rate > 0 && !bare) date(messages_at[next + count]);
            size += size_of(messages_at[next + count]);
        }
        size_t left_out = bare ? sizeof(uint32_t) : 0;
        if (send(sock, messages_at[next] + left_out, size - left_out, 0) < 0) err(1, "send");
    }
}

int main(int argc, char **argv) {
    if (argc != 9) errx(2, "usage: send ADDRESS FILE MESSAGES SENDERS RATE PER_WRITE STAMP BARE");
    long messages = atol(argv[3]);
    int senders = atoi(argv[4]), go[2], failed = 0, status;
    read_messages(argv[2]);
    if (senders < 1 || message_count == 0 || pipe(go) < 0) errx(1, "nothing to do");
    prctl(PR_SET_TIMERSLACK, 1UL); /* else each pause is 50 microseconds longer */
    for (int sender = 0; sender < senders; sender++) {
        if (fork() == 0) {
            char never;
            int sock = connect_to(argv[1]);
            prctl(PR_SET_PDEATHSIG, 9);
            close(go[1]);
            if (read(go[0], &never, 1) < 0) err(1, "read"); /* the end of the pipe is the starting signal */
            send_all(sock, sender * 7, messages * (sender + 1) / senders - messages * sender / senders,
                     atof(argv[5]) / senders, atoi(argv[6]), atoi(argv[7]), atoi(argv[8]));
            _exit(0);
        }
    }
    double start = now();
    close(go[1]);
    while (wait(&status) > 0) failed |= status;
    if (failed) errx(1, "a sender failed");
    printf("SENT %ld %.6f\n", messages, now() - start);
    return 0;
}
