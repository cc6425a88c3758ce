/* The plain receiver that everything is compared with: recv() in a loop, and nothing else.
 *
 *     receive SOCKET MESSAGES
 *
 * Prints "READY", then "RECEIVED messages seconds cpu-seconds" after so many messages, or after five seconds without any.
 * The seconds run from the first message on; the CPU is this process's, user and system.
 */
#define _GNU_SOURCE
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
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

int main(int argc, char **argv) {
    static char buffer[1 << 18];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = 5};
    if (argc != 3) errx(2, "usage: receive SOCKET MESSAGES");
    long wanted = atol(argv[2]), received = 0;
    int sock = socket(AF_UNIX, SOCK_DGRAM, 0);
    strncpy(address.sun_path, argv[1], sizeof address.sun_path - 1);
    if (sock < 0 || bind(sock, (struct sockaddr *)&address, sizeof address) < 0) err(1, "%s", argv[1]);
    setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    puts("READY");
    fflush(stdout);
    double start = 0, cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    while (received < wanted && recv(sock, buffer, sizeof buffer, 0) >= 0)
        if (received++ == 0) start = seconds(CLOCK_MONOTONIC);
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("RECEIVED %ld %.6f %.6f\n", received, seconds(CLOCK_MONOTONIC) - start, cpu);
    return 0;
}
