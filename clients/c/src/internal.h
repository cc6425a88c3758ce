#ifndef BRUCE_INTERNAL_H
#define BRUCE_INTERNAL_H

#include <bruce.h>

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#define SMALL_MESSAGE 4096

/* Big-endian integers of the protocol. */
unsigned char *bruce_put(unsigned char *at, uint64_t number, int bytes);
uint64_t bruce_get(const unsigned char *at, int bytes);

/* Write a message of a size that bruce_encoded_size() returned. */
void bruce_write_message(const bruce_message *message, unsigned char *buffer, size_t size);

int bruce_set_path(struct sockaddr_un *address, const char *path);

static inline int64_t bruce_clock_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Return the time of that clock at the end of a timeout; a negative timeout has no end. */
static inline int64_t bruce_deadline_after(int timeout_ms)
{
    return timeout_ms < 0 ? INT64_MAX : bruce_clock_ms() + timeout_ms;
}

/* Number of fork() calls between the first process and this one. */
unsigned bruce_fork_generation(void);

#endif
