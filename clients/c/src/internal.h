#ifndef BRUCE_INTERNAL_H
#define BRUCE_INTERNAL_H

#include <bruce.h>

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

#define SMALL_MESSAGE 4096

/* Big-endian integers of the protocol. */
unsigned char *bruce_put(unsigned char *at, uint64_t number, int bytes);
uint64_t bruce_get(const unsigned char *at, int bytes);

/* Write a message of a size that bruce_encoded_size() returned. */
void bruce_write_message(const bruce_message *message, unsigned char *buffer, size_t size);

int bruce_set_path(struct sockaddr_un *address, const char *path);

/* Number of fork() calls between the first process and this one. */
unsigned bruce_fork_generation(void);

#endif
