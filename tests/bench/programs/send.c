/* Senders that cost as little as a sender can: one blocking send() per message, nothing computed on the way.
 *
 *     send SOCKET FILE MESSAGES SENDERS RATE
 *
 * FILE holds the datagrams to send, back to back; each begins with its own size (32 bits, big-endian).  They are sent
 * round and round, by SENDERS processes with a socket each, who share MESSAGES and RATE (messages a second, 0 = never
 * pause).  A sender that is late catches up at once.  Prints "SENT messages seconds".
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <fcntl.h>
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

enum { MOST_DATAGRAMS = 1 << 16 };

static const char *datagrams[MOST_DATAGRAMS];
static int datagram_count;

static uint32_t size_of(const char *datagram) {
    uint32_t size;
    memcpy(&size, datagram, sizeof size);
    return ntohl(size);
}

static void read_datagrams(const char *path) {
    struct stat facts;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &facts) < 0) err(1, "%s", path);
    const char *at = mmap(NULL, facts.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
    if (at == MAP_FAILED) err(1, "%s", path);
    for (const char *end = at + facts.st_size; at < end && datagram_count < MOST_DATAGRAMS; at += size_of(at))
        datagrams[datagram_count++] = at;
}

static int connect_to(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, SOCK_DGRAM, 0);
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    if (sock < 0 || connect(sock, (struct sockaddr *)&address, sizeof address) < 0) err(1, "%s", path);
    return sock;
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

static void send_all(int sock, int first, long messages, double rate) {
    double start = now();
    for (long i = 0; i < messages; i++) {
        const char *datagram = datagrams[(first + i) % datagram_count];
        if (rate > 0) wait_until(start + i / rate);
        if (send(sock, datagram, size_of(datagram), 0) < 0) err(1, "send");
    }
}

int main(int argc, char **argv) {
    if (argc != 6) errx(2, "usage: send SOCKET FILE MESSAGES SENDERS RATE");
    long messages = atol(argv[3]);
    int senders = atoi(argv[4]), go[2], failed = 0, status;
    read_datagrams(argv[2]);
    if (senders < 1 || datagram_count == 0 || pipe(go) < 0) errx(1, "nothing to do");
    prctl(PR_SET_TIMERSLACK, 1UL); /* else each pause is 50 microseconds longer */
    for (int sender = 0; sender < senders; sender++) {
        if (fork() == 0) {
            char never;
            int sock = connect_to(argv[1]);
            prctl(PR_SET_PDEATHSIG, 9);
            close(go[1]);
            if (read(go[0], &never, 1) < 0) err(1, "read"); /* the end of the pipe is the starting signal */
            send_all(sock, sender * 7, messages * (sender + 1) / senders - messages * sender / senders,
                     atof(argv[5]) / senders);
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
