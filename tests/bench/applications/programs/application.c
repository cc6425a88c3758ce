/* An application in C: the arguments and the conversation are those of application.py; KIND librdkafka needs
 * -DWITH_LIBRDKAFKA. */
#define _GNU_SOURCE
#include <bruce.h>
#include <err.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#ifdef WITH_LIBRDKAFKA
#include <librdkafka/rdkafka.h>
#endif

enum { LINGER_MS = 10, FLUSH_MS = 60000 };

static const char *topic_name;
static bruce_message message;
static bruce_datagram *datagrams;
static bruce_stream *stream;

static void pause_until(double due) {
    struct timespec t = {.tv_sec = (time_t)due, .tv_nsec = (long)((due - (time_t)due) * 1e9)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void send_nothing(void) {}
static void flush_nothing(void) {}

static void send_datagram(void) {
    int error;
    while ((error = bruce_datagram_send(datagrams, &message)) == EAGAIN) bruce_datagram_wait(datagrams, -1);
    if (error) errx(1, "datagram: %s", bruce_strerror(error));
}

static void send_stream(void) {
    int error;
    while ((error = bruce_stream_send(stream, &message)) == BRUCE_BUFFER_FULL) bruce_stream_write(stream, -1);
    if (error) errx(1, "stream: %s", bruce_strerror(error));
}

static void flush_stream(void) {
    int error = bruce_stream_flush(stream, BRUCE_DELIVERED, FLUSH_MS, NULL);
    if (error) errx(1, "flush: %s", bruce_strerror(error));
}

#ifdef WITH_LIBRDKAFKA
static rd_kafka_t *kafka;
static rd_kafka_topic_t *kafka_topic;

static void set(rd_kafka_conf_t *settings, const char *name, const char *value) {
    char text[512];
    if (rd_kafka_conf_set(settings, name, value, text, sizeof text) != RD_KAFKA_CONF_OK) errx(1, "%s", text);
}

static void open_kafka(const char *broker) {
    char text[512];
    rd_kafka_conf_t *settings = rd_kafka_conf_new();
    set(settings, "bootstrap.servers", broker);
    set(settings, "enable.idempotence", "true");
    set(settings, "linger.ms", "500");
    set(settings, "batch.size", "65536");
    if (!(kafka = rd_kafka_new(RD_KAFKA_PRODUCER, settings, text, sizeof text))) errx(1, "%s", text);
    kafka_topic = rd_kafka_topic_new(kafka, topic_name, NULL);
}

static void send_kafka(void) {
    while (rd_kafka_produce(kafka_topic, RD_KAFKA_PARTITION_UA, RD_KAFKA_MSG_F_COPY, (void *)message.value,
                            message.value_size, NULL, 0, NULL))
        rd_kafka_poll(kafka, 10);
}

static void flush_kafka(void) {
    if (rd_kafka_flush(kafka, FLUSH_MS)) errx(1, "flush: the time is up");
}
#endif

int main(int argc, char **argv) {
    void (*send)(void), (*flush)(void) = flush_nothing;
    long count;
    double rate;
    int dry;
    if (argc != 5) errx(2, "usage: application KIND ADDRESS TOPIC SIZE");
    topic_name = argv[3];
    char *value = malloc(atol(argv[4]));
    memset(value, 'x', atol(argv[4]));
    message = (bruce_message){.topic = topic_name, .value = value, .value_size = atol(argv[4])};
    prctl(PR_SET_TIMERSLACK, 1UL);
    if (!strcmp(argv[1], "datagram")) {
        if (bruce_datagram_open(&datagrams, argv[2], NULL)) errx(1, "%s", argv[2]);
        send = send_datagram;
    } else if (!strcmp(argv[1], "stream")) {
        if (bruce_stream_open_unix(&stream, argv[2], &(bruce_stream_options){.linger_ms = LINGER_MS})) errx(1, "%s", argv[2]);
        send = send_stream, flush = flush_stream;
    } else {
#ifdef WITH_LIBRDKAFKA
        open_kafka(argv[2]);
        send = send_kafka, flush = flush_kafka;
#else
        errx(2, "built without librdkafka");
#endif
    }
    puts("READY");
    fflush(stdout);
    while (scanf("%ld %lf %d", &count, &rate, &dry) == 3) {
        double start = now();
        for (long number = 0; number < count; number++) {
            if (rate > 0) pause_until(start + number / rate);
            (dry ? send_nothing : send)();
        }
        flush();
        puts("SENT");
        fflush(stdout);
    }
    return 0;
}
