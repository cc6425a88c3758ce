/* A fork while another thread's call replaces the buffer of a stream client: the child must not touch the old buffer.
 *
 * The program replaces realloc() and free() of libbruce (ld --wrap), and forks within the first.  It exits with 0 if the
 * child sends on the client and closes it without a use of the old buffer. */

#include <bruce.h>

#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { POISON = 0xEE, VALUE = 100000 };

static bruce_stream *stream;
static unsigned char *old_buffer;
static size_t old_size;
static int child_status = -1;

void *__real_realloc(void *old, size_t size);
void __real_free(void *pointer);
void *__wrap_realloc(void *old, size_t size);
void __wrap_free(void *pointer);

static int send_value(size_t size)
{
    static char value[VALUE];
    bruce_message message = {.topic = "t", .topic_size = 1, .value = value, .value_size = size};

    return bruce_stream_send(stream, &message);
}

static int act_as_child(void)
{
    if (send_value(10) != 0)
        return 2;
    for (size_t i = 0; i < old_size; i++)
        if (old_buffer[i] != POISON)
            return 3;
    bruce_stream_close(stream, 0);
    return 0;
}

void *__wrap_realloc(void *old, size_t size)
{
    if (!old || child_status >= 0)
        return __real_realloc(old, size);
    old_buffer = old; /* it stays allocated, so that nothing else has its address */
    old_size = malloc_usable_size(old);
    unsigned char *grown = malloc(size);
    memcpy(grown, old, old_size < size ? old_size : size);
    memset(old, POISON, old_size);
    pid_t child = fork();
    if (child == 0)
        _exit(act_as_child());
    waitpid(child, &child_status, 0);
    return grown;
}

void __wrap_free(void *pointer)
{
    if (pointer && pointer == old_buffer)
        _exit(4);
    __real_free(pointer);
}

int main(int count, char **arguments)
{
    if (count != 2 || bruce_stream_open_unix(&stream, arguments[1], NULL) != 0)
        return 1;
    if (send_value(10) != 0 || send_value(VALUE) != 0)
        return 1;
    bruce_stream_close(stream, 0);
    if (child_status != 0)
        fprintf(stderr, "the child ended with status %#x\n", child_status);
    return child_status != 0;
}
