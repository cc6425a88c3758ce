/* Brokers that cost next to nothing: they look at the header of each record batch, and throw the records away unread.
 *
 *     sink TOPICS BROKERS DELAY
 *
 * TOPICS is a file with a line "name partitions" for each topic; its partitions are led by the brokers in turn, those of a
 * topic with minus so many partitions by nobody.  An answer to a produce request leaves DELAY ms after the request came.
 * Prints "READY" and the ports, for each line on its standard input "records batches refused wait", and ends with that
 * input.  `wait` is the 99th percentile of the ms from a record's timestamp, in each batch that of its first record, to the
 * batch, since the last line.
 *
 * A batch is refused that is not magic 2, or does not have the sequence number that is due in its partition; so is one
 * that comes again, which a broker would recognise: here nobody has a reason to send one again.  What is spoken:
 * ApiVersions 0, Metadata 1 to 4, Produce 3 to 12, InitProducerId 0; whatever is asked about topics, all are told.  In
 * Produce 9 and later lengths are varints, and structures end with tags, of which a request must have none.
 * Source: the Kafka protocol guide.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <err.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PRODUCE = 0, FETCH = 1, METADATA = 3, API_VERSIONS = 18, INIT_PRODUCER_ID = 22 };
enum { UNKNOWN_TOPIC = 3, NO_LEADER = 5, OUT_OF_ORDER = 45, UNSUPPORTED_VERSION = 35, INVALID_RECORD = 87 };
enum { FIRST_FLEXIBLE = 9, LAST_PRODUCE = 12 };
enum { BATCH_HEADER = 61, NAME_BYTES = 256, MOST_BROKERS = 128, MOST_SOCKETS = 1 << 12, SLOTS = 1 << 14, MOST_WAIT_MS = 1 << 14 };

/* --- bytes that go back ------------------------------------------------------------------------------------------ */

typedef struct {
    uint8_t *data;
    size_t size, room;
} Bytes;

static void put(Bytes *out, const void *data, size_t size) {
    if (out->size + size > out->room) {
        out->room = 2 * (out->size + size) + 256;
        out->data = realloc(out->data, out->room);
        if (out->data == NULL) err(1, "memory");
    }
    memcpy(out->data + out->size, data, size);
    out->size += size;
}

static void put8(Bytes *out, uint8_t value) { put(out, &value, 1); }
static void put16(Bytes *out, uint16_t value) { value = htobe16(value), put(out, &value, 2); }
static void put32(Bytes *out, uint32_t value) { value = htobe32(value), put(out, &value, 4); }
static void put64(Bytes *out, uint64_t value) { value = htobe64(value), put(out, &value, 8); }
static void put_varint(Bytes *out, uint32_t value) {
    for (; value > 0x7F; value >>= 7) put8(out, value | 0x80);
    put8(out, value);
}
static void put_string(Bytes *out, const char *text) { put16(out, strlen(text)), put(out, text, strlen(text)); }

static void set32(Bytes *out, size_t at, uint32_t value) {
    value = htobe32(value);
    memcpy(out->data + at, &value, 4);
}

/* --- the cluster ------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t producer, records;
    uint32_t sequence;
} Partition;

typedef struct {
    char name[NAME_BYTES];
    int partitions, is_led;
    Partition *state;
} Topic;

static Topic *topics;
static int topic_count, broker_count, slot_of[SLOTS];
static uint16_t ports[MOST_BROKERS];
static uint64_t records, batches, refused, next_producer = 1;
static uint64_t waits[MOST_WAIT_MS]; /* records by ms */

static uint32_t hash_of(const char *name) {
    uint32_t hash = 2166136261u;
    for (; *name; name++) hash = (hash ^ (uint8_t)*name) * 16777619u;
    return hash;
}

static int *slot(const char *name) {
    uint32_t at = hash_of(name) % SLOTS;
    while (slot_of[at] && strcmp(topics[slot_of[at] - 1].name, name)) at = (at + 1) % SLOTS;
    return &slot_of[at];
}

static void read_topics(const char *path) {
    FILE *file = fopen(path, "r");
    Topic topic = {0};
    if (file == NULL) err(1, "%s", path);
    while (fscanf(file, "%255s %d", topic.name, &topic.partitions) == 2 && topic_count < SLOTS / 2) {
        topic.is_led = topic.partitions > 0;
        topic.partitions = abs(topic.partitions);
        topics = realloc(topics, (topic_count + 1) * sizeof *topics);
        topic.state = calloc(topic.partitions, sizeof *topic.state);
        if (topics == NULL || topic.state == NULL) err(1, "memory");
        for (int index = 0; index < topic.partitions; index++) topic.state[index].producer = -1;
        topics[topic_count++] = topic;
        *slot(topic.name) = topic_count;
    }
    fclose(file);
}

static int leader_of(int topic, int partition) {
    return topics[topic].is_led ? 1 + (topic + partition) % broker_count : -1;
}

static void put_brokers(Bytes *out) {
    put32(out, broker_count);
    for (int id = 1; id <= broker_count; id++) {
        put32(out, id), put_string(out, "127.0.0.1"), put32(out, ports[id - 1]);
        put16(out, -1); /* rack */
    }
}

static void put_topic(Bytes *out, int number) {
    put16(out, 0), put_string(out, topics[number].name), put8(out, 0), put32(out, topics[number].partitions);
    for (int index = 0; index < topics[number].partitions; index++) {
        int leader = leader_of(number, index);
        put16(out, leader < 0 ? NO_LEADER : 0), put32(out, index), put32(out, leader);
        put32(out, 1), put32(out, leader), put32(out, 1), put32(out, leader);
    }
}

static void put_metadata(Bytes *out, int version) {
    if (version >= 3) put32(out, 0); /* throttle */
    put_brokers(out);
    if (version >= 2) put_string(out, "sink");
    put32(out, 1), put32(out, topic_count);
    for (int number = 0; number < topic_count; number++) put_topic(out, number);
}

static void put_versions(Bytes *out, int version) {
    static const uint16_t spoken[][3] = {
        {PRODUCE, 3, LAST_PRODUCE}, {METADATA, 1, 4}, {API_VERSIONS, 0, 0}, {INIT_PRODUCER_ID, 0, 0},
        {FETCH, 4, 4}, /* is never served, but librdkafka concludes from it that record batches are taken */
    };
    put16(out, version ? UNSUPPORTED_VERSION : 0), put32(out, sizeof spoken / sizeof *spoken);
    for (size_t api = 0; api < sizeof spoken / sizeof *spoken; api++)
        for (int field = 0; field < 3; field++) put16(out, spoken[api][field]);
}

/* --- a connection ------------------------------------------------------------------------------------------------ */

typedef struct Answer {
    struct Answer *next;
    int64_t due_ms;
    Bytes bytes;
} Answer;

typedef struct {
    int fd;
    int64_t left;    /* of the frame, behind what was parsed */
    int64_t thrown;  /* bytes to throw away before anything is parsed */
    int step, api, version, acks, topics_left, partitions_left;
    Topic *topic;
    Bytes out;
    size_t written, have, count_at, partitions_at;
    Answer *first, **last;
    uint8_t in[512];
} Connection;

enum { IS_LISTENER = 1 };
enum { FRAME, REQUEST, PRODUCE_HEAD, TOPIC, PARTITION, END };

static int64_t clock_ms(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int64_t now_ms(void) { return clock_ms(CLOCK_MONOTONIC); }

static uint16_t get16(const uint8_t *at) { return at[0] << 8 | at[1]; }
static uint32_t get32(const uint8_t *at) { return (uint32_t)get16(at) << 16 | get16(at + 2); }
static uint64_t get64(const uint8_t *at) { return (uint64_t)get32(at) << 32 | get32(at + 4); }

static void count_wait(int64_t timestamp, uint32_t count) {
    int64_t wait = clock_ms(CLOCK_REALTIME) - timestamp;
    waits[wait < 0 ? 0 : wait < MOST_WAIT_MS ? wait : MOST_WAIT_MS - 1] += count;
}

static int64_t longest_wait(void) {
    uint64_t sum = 0, passed = 0, at = 0;
    for (int ms = 0; ms < MOST_WAIT_MS; ms++) sum += waits[ms];
    while (at < MOST_WAIT_MS - 1 && (passed += waits[at]) * 100 < sum * 99) at++;
    memset(waits, 0, sizeof waits);
    return at;
}

/* What a broker answers for a batch, of which the first bytes are given. */
static int judge(Topic *topic, uint32_t index, const uint8_t *batch, int64_t *offset) {
    if (topic == NULL || index >= (uint32_t)topic->partitions) return UNKNOWN_TOPIC;
    Partition *partition = &topic->state[index];
    int64_t producer = get64(batch + 43);
    uint32_t sequence = get32(batch + 53), count = get32(batch + 57);
    if (batch[16] != 2) return INVALID_RECORD;
    if (producer >= 0 && producer == partition->producer && sequence != partition->sequence) return OUT_OF_ORDER;
    partition->producer = producer;
    partition->sequence = (sequence + count) & 0x7FFFFFFF;
    *offset = partition->records;
    partition->records += count, records += count, batches++;
    count_wait(get64(batch + 27), count);
    return 0;
}

static int is_flexible(const Connection *it) { return it->api == PRODUCE && it->version >= FIRST_FLEXIBLE; }

static void put_tags(Connection *it) {
    if (is_flexible(it)) put8(&it->out, 0);
}

static void put_count(Connection *it, uint32_t count) {
    if (is_flexible(it)) put_varint(&it->out, count + 1);
    else put32(&it->out, count);
}

static void put_partition(Connection *it, uint32_t index, int error, int64_t offset) {
    put32(&it->out, index), put16(&it->out, error), put64(&it->out, offset), put64(&it->out, -1);
    if (it->version >= 5) put64(&it->out, 0);
    if (it->version >= 8) put_count(it, 0); /* no record errors */
    if (is_flexible(it)) put8(&it->out, 0); /* no message */
    else if (it->version >= 8) put16(&it->out, -1);
    put_tags(it);
    refused += error != 0;
}

/* Read a length of `fixed` bytes, or a varint, at *used of what has been read; 0 if more is needed. */
static int get_length(const Connection *it, size_t fixed, size_t *used, uint32_t *length) {
    const uint8_t *at = it->in + *used, *end = it->in + it->have;
    if (!is_flexible(it)) {
        if (*used + fixed > it->have) return 0;
        *length = fixed == 2 ? get16(at) : get32(at), *used += fixed;
        return 1;
    }
    uint32_t value = 0;
    for (int shift = 0; at < end && shift < 35; shift += 7) {
        value |= (uint32_t)(*at & 0x7F) << shift;
        if (*at++ < 0x80) {
            *length = value - 1, *used = at - it->in;
            return 1;
        }
    }
    return 0;
}

/* The steps: each returns how many bytes of what has been read are used up, or 0 if more are needed. */

static size_t begin_frame(Connection *it) {
    if (it->have < 4) return 0;
    it->left = get32(it->in) + 4, it->step = REQUEST;
    return 4;
}

static size_t begin_request(Connection *it) {
    if (it->have < 10) return 0;
    size_t used = 10 + (int16_t)get16(it->in + 8) * ((int16_t)get16(it->in + 8) > 0);
    it->api = get16(it->in), it->version = get16(it->in + 2), it->acks = 1;
    used += is_flexible(it); /* no tags */
    if (used > it->have) return 0;
    put32(&it->out, 0), put(&it->out, it->in + 4, 4), put_tags(it);
    it->step = it->api == PRODUCE ? PRODUCE_HEAD : END;
    return used;
}

static size_t begin_produce(Connection *it) { /* no transaction: its id is null */
    size_t used = is_flexible(it) ? 1 : 2;
    uint32_t count;
    if (it->have < used + 6) return 0;
    int16_t acks = get16(it->in + used);
    used += 6;
    if (!get_length(it, 4, &used, &count)) return 0;
    it->acks = acks, it->topics_left = count;
    put_count(it, count), it->step = count ? TOPIC : END;
    return used;
}

static size_t begin_topic(Connection *it) {
    char name[NAME_BYTES] = {0};
    size_t used = 0, name_at;
    uint32_t size, count;
    if (!get_length(it, 2, &used, &size)) return 0;
    name_at = used, used += size;
    if (used > it->have || !get_length(it, 4, &used, &count)) return 0;
    memcpy(name, it->in + name_at, size < NAME_BYTES ? size : 0);
    int number = *slot(name);
    it->topic = number ? &topics[number - 1] : NULL, it->partitions_left = count;
    if (is_flexible(it)) put_varint(&it->out, strlen(name) + 1), put(&it->out, name, strlen(name));
    else put_string(&it->out, name);
    put_count(it, count), it->step = PARTITION;
    return used;
}

static size_t take_partition(Connection *it) {
    size_t used = 4;
    uint32_t size;
    int64_t offset = -1;
    if (it->have < used || !get_length(it, 4, &used, &size) || it->have < used + BATCH_HEADER) return 0;
    int error = judge(it->topic, get32(it->in), it->in + used, &offset);
    put_partition(it, get32(it->in), error, offset);
    it->thrown = (int64_t)size - BATCH_HEADER + is_flexible(it); /* the tags of the partition */
    if (--it->partitions_left == 0) {
        put_tags(it), it->thrown += is_flexible(it); /* the tags of the topic */
        it->step = --it->topics_left ? TOPIC : END;
    }
    return used + BATCH_HEADER;
}

static size_t step(Connection *it) {
    switch (it->step) {
    case FRAME: return begin_frame(it);
    case REQUEST: return begin_request(it);
    case PRODUCE_HEAD: return begin_produce(it);
    case TOPIC: return begin_topic(it);
    case PARTITION: return take_partition(it);
    }
    if (it->thrown == 0) it->thrown = it->left;
    return 0;
}

static void answer(Connection *it, int delay_ms) {
    if (it->api == PRODUCE) put32(&it->out, 0), put_tags(it); /* throttle */
    if (it->api == METADATA) put_metadata(&it->out, it->version);
    if (it->api == API_VERSIONS) put_versions(&it->out, it->version);
    if (it->api == INIT_PRODUCER_ID) put32(&it->out, 0), put16(&it->out, 0), put64(&it->out, next_producer++), put16(&it->out, 0);
    set32(&it->out, 0, it->out.size - 4);
    Answer *made = calloc(1, sizeof *made);
    if (made == NULL) err(1, "memory");
    *made = (Answer){.due_ms = it->api == PRODUCE && delay_ms ? now_ms() + delay_ms : 0, .bytes = it->out};
    it->out = (Bytes){0};
    if (it->api == PRODUCE && it->acks == 0) {
        free(made->bytes.data), free(made);
        return;
    }
    *it->last = made, it->last = &made->next;
}

/* Parse what has been read. */
static void parse(Connection *it, int delay_ms) {
    for (;;) {
        int64_t thrown = it->thrown < (int64_t)it->have ? it->thrown : (int64_t)it->have;
        size_t used = thrown > 0 ? (size_t)thrown : step(it);
        if (thrown > 0) it->thrown -= thrown;
        memmove(it->in, it->in + used, it->have -= used);
        it->left -= used;
        if (it->step == END && it->left <= 0 && it->thrown <= 0) {
            answer(it, delay_ms);
            it->step = FRAME, it->thrown = 0;
        } else if (used == 0 && (it->step != END || it->thrown == 0 || it->have == 0)) {
            return;
        }
    }
}

/* Read what there is; 0 when the connection is over. */
static int receive(Connection *it, int delay_ms) {
    for (;;) {
        int throws = it->thrown > 0 && it->have == 0;
        ssize_t got = throws ? recv(it->fd, NULL, it->thrown, MSG_TRUNC | MSG_DONTWAIT)
                             : recv(it->fd, it->in + it->have, sizeof it->in - it->have, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 1;
        if (got <= 0) return 0;
        if (throws) it->thrown -= got, it->left -= got;
        else it->have += got;
        parse(it, delay_ms);
    }
}

/* Send the answers that are due; ms until the next one is, -1 if there is none. */
static int send_answers(Connection *it) {
    while (it->first != NULL) {
        int64_t left = it->first->due_ms ? it->first->due_ms - now_ms() : 0;
        if (left > 0) return left;
        ssize_t sent = send(it->fd, it->first->bytes.data + it->written, it->first->bytes.size - it->written, MSG_NOSIGNAL);
        if (sent < 0) return errno == EAGAIN ? 1 : -1;
        if ((it->written += sent) < it->first->bytes.size) return 1;
        Answer *done = it->first;
        it->first = done->next, it->written = 0;
        if (it->first == NULL) it->last = &it->first;
        free(done->bytes.data), free(done);
    }
    return -1;
}

/* --- sockets ----------------------------------------------------------------------------------------------------- */

static int bound(uint16_t *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int sock = socket(AF_INET, SOCK_STREAM, 0);
    if (sock < 0 || bind(sock, (struct sockaddr *)&address, size) < 0) err(1, "socket");
    getsockname(sock, (struct sockaddr *)&address, &size);
    *port = ntohs(address.sin_port);
    return sock;
}

/* `what` is the address of a connection, twice the number of a listener and 1, or 0 for the standard input. */
static void watch(int epoll, int fd, uint64_t what) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = what};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0) err(1, "epoll");
}

static Connection *connection_of(int fd) {
    Connection *it = calloc(1, sizeof *it);
    if (it == NULL) err(1, "memory");
    it->fd = fd, it->last = &it->first;
    return it;
}

static void welcome(int epoll, int listener) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK), on = 1;
    if (fd < 0) return;
    if (fd >= MOST_SOCKETS) errx(1, "more than %d connections", MOST_SOCKETS);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    watch(epoll, fd, (uintptr_t)connection_of(fd));
}

static int tell(void) {
    char line[16];
    if (read(0, line, sizeof line) <= 0) return 0;
    printf("%lu %lu %lu %ld\n", records, batches, refused, longest_wait());
    fflush(stdout);
    return 1;
}

int main(int argc, char **argv) {
    static Connection *waiting[MOST_SOCKETS]; /* by descriptor: those that owe answers */
    struct epoll_event events[64];
    int epoll = epoll_create1(0), timeout, is_over = 0, listeners[MOST_BROKERS], last = 0;
    if (argc != 4) errx(2, "usage: sink TOPICS BROKERS DELAY");
    broker_count = atoi(argv[2]);
    int delay_ms = atoi(argv[3]);
    if (broker_count < 1 || broker_count > MOST_BROKERS) errx(2, "1 to %d brokers", MOST_BROKERS);
    read_topics(argv[1]);
    for (int index = 0; index < broker_count; index++) {
        listeners[index] = bound(&ports[index]);
        listen(listeners[index], 64);
        watch(epoll, listeners[index], (uint64_t)index << 1 | IS_LISTENER);
    }
    watch(epoll, 0, 0);
    printf("READY");
    for (int index = 0; index < broker_count; index++) printf(" %d", ports[index]);
    printf("\n");
    fflush(stdout);
    while (!is_over) {
        timeout = -1;
        for (int fd = 0; fd <= last; fd++) {
            int left = waiting[fd] ? send_answers(waiting[fd]) : -1;
            if (left < 0) waiting[fd] = NULL;
            else if (timeout < 0 || left < timeout) timeout = left;
        }
        int count = epoll_wait(epoll, events, 64, timeout);
        for (int index = 0; index < count; index++) {
            Connection *it = events[index].data.ptr;
            if (it == NULL) is_over = !tell();
            else if (events[index].data.u64 & IS_LISTENER) welcome(epoll, listeners[events[index].data.u64 >> 1]);
            else if (!receive(it, delay_ms)) close(it->fd), waiting[it->fd] = NULL, free(it);
            else if (it->first) waiting[it->fd] = it, last = it->fd > last ? it->fd : last;
        }
    }
    return 0;
}
