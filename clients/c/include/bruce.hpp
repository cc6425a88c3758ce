/* libbruce for C++17: clients that close themselves, and results as bruce::Error. */

#ifndef BRUCE_HPP
#define BRUCE_HPP

#include <bruce.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bruce {

/* Why a call failed; `code()` is an errno value or a bruce_error. */
class Error : public std::runtime_error {
public:
    explicit Error(int code) : std::runtime_error(bruce_strerror(code)), code_(code) {}
    int code() const noexcept { return code_; }

private:
    int code_;
};

inline void check(int code)
{
    if (code != BRUCE_OK)
        throw Error(code);
}

struct Header {
    std::string_view name;
    std::optional<std::string_view> value;
};

/* A message; it refers to the caller's bytes.  Without a value it is a tombstone. */
struct Message {
    std::string_view topic;
    std::optional<std::string_view> value;
    std::optional<std::string_view> key = std::nullopt;
    std::optional<std::uint32_t> partition_key = std::nullopt;
    std::optional<std::chrono::system_clock::time_point> timestamp = std::nullopt;
    std::vector<Header> headers = {};
    bool keep_empty = false;
};

/* The C form of a message, valid while the message lives. */
class CMessage {
public:
    explicit CMessage(const Message &message)
    {
        message_.topic = message.topic.data();
        message_.topic_size = message.topic.size();
        if (message.topic.empty())
            message_.topic = nullptr;
        if (message.key) {
            message_.key = message.key->data() ? message.key->data() : "";
            message_.key_size = message.key->size();
        }
        set_value(message);
        if (message.partition_key) {
            message_.partition_key = *message.partition_key;
            message_.flags |= BRUCE_HAS_PARTITION_KEY;
        }
        if (message.timestamp) {
            using std::chrono::milliseconds;
            message_.timestamp_ms =
                std::chrono::duration_cast<milliseconds>(message.timestamp->time_since_epoch()).count();
            message_.flags |= BRUCE_HAS_TIMESTAMP;
        }
        if (message.keep_empty)
            message_.flags |= BRUCE_KEEP_EMPTY;
        set_headers(message.headers);
    }
    CMessage(const CMessage &) = delete;
    CMessage &operator=(const CMessage &) = delete;

    const bruce_message *get() const noexcept { return &message_; }

private:
    void set_value(const Message &message)
    {
        if (!message.value) {
            message_.flags |= BRUCE_NULL_VALUE;
            return;
        }
        message_.value = message.value->data();
        message_.value_size = message.value->size();
    }

    void set_headers(const std::vector<Header> &headers)
    {
        for (const Header &header : headers) {
            const char *value = nullptr;
            if (header.value)
                value = header.value->data() ? header.value->data() : "";
            headers_.push_back({header.name.data(), header.name.size(), value, header.value.value_or("").size()});
        }
        message_.headers = headers_.data();
        message_.header_count = headers_.size();
    }

    bruce_message message_{};
    std::vector<bruce_header> headers_;
};

inline std::string encode(const Message &message)
{
    const CMessage c(message);
    std::size_t size = 0;
    check(bruce_encoded_size(c.get(), &size));
    std::string bytes(size, '\0');
    check(bruce_encode(c.get(), bytes.data(), size, &size));
    return bytes;
}

inline std::uint32_t murmur2(std::string_view key) { return bruce_murmur2(key.data(), key.size()); }
inline std::uint32_t crc32(std::string_view key) { return bruce_crc32(key.data(), key.size()); }
inline std::uint32_t fnv1a(std::string_view key) { return bruce_fnv1a(key.data(), key.size()); }

namespace detail {
/* Return a timeout in ms for the C library: negative for no limit. */
inline int limit(std::chrono::milliseconds timeout)
{
    return static_cast<int>(std::clamp<std::int64_t>(timeout.count(), -1, std::numeric_limits<int>::max()));
}
} // namespace detail

/* Sends datagrams; only wait() blocks. */
class DatagramClient {
public:
    explicit DatagramClient(const std::string &path, const bruce_datagram_options &options = {})
    {
        bruce_datagram *opened = nullptr;
        check(bruce_datagram_open(&opened, path.c_str(), &options));
        client_.reset(opened);
    }

    /* Return 0, an errno value or a bruce_error: a full queue is no exception. */
    int send(const Message &message) { return bruce_datagram_send(client_.get(), CMessage(message).get()); }

    /* Wait for room in the daemon's queue, with a negative timeout without a limit; see bruce.h. */
    int wait(std::chrono::milliseconds timeout) { return bruce_datagram_wait(client_.get(), detail::limit(timeout)); }

    bruce_datagram_stats stats() const
    {
        bruce_datagram_stats stats;
        bruce_datagram_get_stats(client_.get(), &stats);
        return stats;
    }

private:
    struct Close {
        void operator()(bruce_datagram *client) const { bruce_datagram_close(client); }
    };
    std::unique_ptr<bruce_datagram, Close> client_;
};

/* The result of a flush: `code` is BRUCE_OK, or says why the outcome is not final. */
struct Flush {
    int code;
    bruce_outcome outcome;
    explicit operator bool() const noexcept { return code == BRUCE_OK; }
};

/* Sends over a stream connection, with a buffer; see bruce.h. */
class StreamClient {
public:
    static StreamClient open_unix(const std::string &path, const bruce_stream_options &options = {})
    {
        bruce_stream *opened = nullptr;
        check(bruce_stream_open_unix(&opened, path.c_str(), &options));
        return StreamClient(opened);
    }

    static StreamClient open_tcp(std::uint16_t port, const bruce_stream_options &options = {})
    {
        bruce_stream *opened = nullptr;
        check(bruce_stream_open_tcp(&opened, port, &options));
        return StreamClient(opened);
    }

    /* Return 0 or a bruce_error: a full buffer is no exception. */
    int send(const Message &message) { return bruce_stream_send(client_.get(), CMessage(message).get()); }

    int write(std::chrono::milliseconds timeout) { return bruce_stream_write(client_.get(), detail::limit(timeout)); }

    Flush flush(std::chrono::milliseconds timeout, bruce_level level = BRUCE_DELIVERED)
    {
        Flush flush{};
        flush.code = bruce_stream_flush(client_.get(), level, detail::limit(timeout), &flush.outcome);
        return flush;
    }

    bruce_stream_stats stats() const
    {
        bruce_stream_stats stats;
        bruce_stream_get_stats(client_.get(), &stats);
        return stats;
    }

    /* Write the rest for this long and close; the destructor takes a second at most. */
    int close(std::chrono::milliseconds timeout) { return bruce_stream_close(client_.release(), detail::limit(timeout)); }

private:
    explicit StreamClient(bruce_stream *opened) : client_(opened) {}

    struct Close {
        void operator()(bruce_stream *client) const { bruce_stream_close(client, 1000); }
    };
    std::unique_ptr<bruce_stream, Close> client_;
};

} // namespace bruce

#endif
