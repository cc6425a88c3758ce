<?php

/**
 * Sends messages to the bruce daemon, which delivers them to Kafka. Copy this file; it needs PHP 8.1 or later with the
 * extension "sockets".
 *
 *     require 'Bruce.php';
 *
 *     $client = new Bruce\DatagramClient('/run/bruce/in.dgram');
 *     $client->send(new Bruce\Message('clicks', 'hello', key: 'user-7'));
 *
 *     $stream = new Bruce\StreamClient('/run/bruce/in.stream');
 *     $stream->send(new Bruce\Message('clicks', 'hello'));
 *     echo $stream->flush(timeout: 10)->delivered;
 *
 * After a fork, the child's copy of a client starts with a new connection, an empty buffer and zero counts.
 */

declare(strict_types=1);

namespace Bruce;

const VERSION = '1.0.0';
const MAX_DATAGRAM = 64 << 10; // the daemon's input.max_datagram_size
const MAX_STREAM_MESSAGE = (2 << 20) + 4; // the daemon's input.max_stream_size + 4

/** The protocol cannot express a message: its topic is empty, or a part is too large. */
final class MessageError extends \InvalidArgumentException
{
    public function __construct(public readonly string $reason, string $text)
    {
        parent::__construct($text);
    }
}

/** Some messages have no final outcome. */
final class FlushError extends \RuntimeException
{
    private const TEXTS = [
        'TIMED_OUT' => 'The time limit passed. The daemon still delivers the rest; flush again.',
        'NO_CONNECTION' => 'The time limit passed without a connection to the daemon; flush again.',
        'NO_PERMISSION' => 'No permission to connect: senders need write permission on the socket '
            . '(input.unix_stream.mode, such as "0222") and access to its directory.',
        'SHUTTING_DOWN' => 'The daemon shuts down. It delivers the rest after its restart.',
        'BROKEN' => 'The connection broke; an unknown number of the messages written to it arrived.',
        'REFUSED' => 'The daemon refused the flush: it keeps no journal, or is too old.',
        'CLOSED' => 'The client is closed.',
    ];

    /**
     * @param string $reason TIMED_OUT or SHUTTING_DOWN (flush again), NO_PERMISSION, BROKEN, REFUSED (no journal), or
     *     CLOSED (close() was called before)
     * @param int $uncertain with BROKEN: this number of messages, the first ones that no flush of this level confirmed, may
     *     be delivered or not; the client does not send them again
     */
    public function __construct(
        public readonly string $reason,
        public readonly int $uncertain = 0,
        ?string $text = null,
    ) {
        parent::__construct(self::TEXTS[$text ?? $reason]);
    }
}

/** The hashes by which Kafka's producers place a record key; each result is a partition key. */
final class PartitionKey
{
    private const MASK = 0xffffffff;
    private const FACTOR = 0x5bd1e995;

    /** The hash of Kafka's Java client. */
    public static function murmur2(string $key): int
    {
        $length = strlen($key);
        $whole = $length & ~3;
        $hash = 0x9747b28c ^ $length;
        foreach ($whole ? unpack('V*', substr($key, 0, $whole)) : [] as $word) {
            $word = self::multiply($word, self::FACTOR);
            $word = self::multiply($word ^ $word >> 24, self::FACTOR);
            $hash = self::multiply($hash, self::FACTOR) ^ $word;
        }
        if ($whole < $length) {
            for ($at = $whole; $at < $length; $at++) {
                $hash ^= ord($key[$at]) << 8 * ($at - $whole);
            }
            $hash = self::multiply($hash, self::FACTOR);
        }
        $hash = self::multiply($hash ^ $hash >> 13, self::FACTOR);
        return ($hash ^ $hash >> 15) & 0x7fffffff;
    }

    /** The hash of librdkafka's consistent_random. */
    public static function crc32(string $key): int
    {
        return \crc32($key);
    }

    /** The hash of librdkafka's fnv1a_random and of Sarama. */
    public static function fnv1a(string $key): int
    {
        $hash = hexdec(hash('fnv1a32', $key));
        return $hash > 0x7fffffff ? -$hash & self::MASK : $hash;
    }

    /** Return the low 32 bits of a product that may be too large for an integer. */
    private static function multiply(int $one, int $other): int
    {
        return ($one * ($other & 0xffff) + (($one * ($other >> 16) & 0xffff) << 16)) & self::MASK;
    }
}

/** A message, which becomes a Kafka record. */
final class Message
{
    public const MAX_TOPIC = 32767;
    public const MAX_HEADERS = 65535;

    private const ANY_PARTITION = 256;
    private const PARTITION_KEY = 257;
    private const PLAIN_VERSION = 0;
    private const HEADERS_VERSION = 1;
    private const NULLS_VERSION = 2;
    private const NULL = "\xff\xff\xff\xff"; // -1

    /**
     * @param ?string $value null is a tombstone
     * @param ?int $partitionKey selects a partition, modulo the number of partitions; otherwise the daemon chooses
     * @param ?int $timestampMs milliseconds since 1970-01-01 UTC; otherwise the present time
     * @param array<array{string, ?string}> $headers pairs of name and value
     * @param bool $keepEmpty keeps an empty key or value from becoming null
     */
    public function __construct(
        private readonly string $topic,
        private readonly ?string $value,
        private readonly ?string $key = null,
        private readonly ?int $partitionKey = null,
        private readonly ?int $timestampMs = null,
        private readonly array $headers = [],
        private readonly bool $keepEmpty = false,
    ) {
        if ($topic === '') {
            throw new MessageError('TOPIC_EMPTY', 'The topic is empty.');
        }
        if (strlen($topic) > self::MAX_TOPIC) {
            throw new MessageError('TOPIC_TOO_LARGE', 'The topic has more than 32767 bytes.');
        }
    }

    public function encode(): string
    {
        $headers = $this->encodeHeaders();
        $version = $this->version($headers);
        $body = $this->partitionKey === null ? '' : pack('N', $this->partitionKey);
        $body .= pack('n', strlen($this->topic)) . $this->topic;
        $body .= pack('J', $this->timestampMs ?? (int) (microtime(true) * 1000));
        $body .= $this->encodeKey($version) . self::field($this->value);
        if ($version !== self::PLAIN_VERSION) {
            $body .= pack('N', strlen($headers)) . $headers;
        }
        $kind = $this->partitionKey === null ? self::ANY_PARTITION : self::PARTITION_KEY;
        return pack('Nnnn', 10 + strlen($body), $kind, $version, 0) . $body;
    }

    /** Return the lowest version that can express the message, because older daemons refuse later ones. */
    private function version(string $headers): int
    {
        $hasEmpty = $this->value === '' || $this->key === '';
        if ($this->value === null || ($this->keepEmpty && $hasEmpty)) {
            return self::NULLS_VERSION;
        }
        return $headers === '' ? self::PLAIN_VERSION : self::HEADERS_VERSION;
    }

    private function encodeKey(int $version): string
    {
        if ($version !== self::NULLS_VERSION) {
            return self::field((string) $this->key);
        }
        return self::field($this->key === '' && !$this->keepEmpty ? null : $this->key);
    }

    private function encodeHeaders(): string
    {
        $encoded = '';
        foreach ($this->headers as [$name, $value]) {
            $isTooLong = strlen($name) > self::MAX_TOPIC;
            $encoded .= pack('n', strlen($name)) . $name . self::field($value);
            if ($isTooLong || strlen($encoded) > self::MAX_HEADERS) {
                throw new MessageError('HEADERS_TOO_LARGE', 'The record headers have more than 65535 bytes.');
            }
        }
        return $encoded;
    }

    private static function field(?string $bytes): string
    {
        return $bytes === null ? self::NULL : pack('N', strlen($bytes)) . $bytes;
    }
}

/**
 * Sends datagrams without blocking. A restart of the daemon goes unnoticed, because the client connects again when the
 * daemon has closed its socket, and every second, because another socket may have the path.
 */
final class DatagramClient
{
    private const RECONNECT_AFTER_NS = 1_000_000_000;
    private const MAX_PATH = 107;
    private const CLOSED = [SOCKET_ECONNREFUSED, SOCKET_EPIPE, SOCKET_ENOTCONN, SOCKET_ECONNRESET];

    private \Socket $socket;
    private int $connectAtNs = 0;
    private int $lastError = 0;
    private int $pid = 0;
    private int $sent = 0;
    private int $sentBytes = 0;
    /** @var array<int, int> */
    private array $refused = [];

    public function __construct(
        private readonly string $path,
        private readonly int $maxMessage = MAX_DATAGRAM,
        ?int $sendBuffer = null,
    ) {
        $this->socket = socket_create(AF_UNIX, SOCK_DGRAM, 0);
        if ($sendBuffer !== null) {
            socket_set_option($this->socket, SOL_SOCKET, SO_SNDBUF, $sendBuffer);
        }
        $this->resetAfterFork();
    }

    /** Send one message. Return false if it was refused and counted. */
    public function send(Message $message): bool
    {
        return $this->sendEncoded($message->encode());
    }

    public function sendEncoded(string $message): bool
    {
        $this->resetAfterFork();
        $error = strlen($message) > $this->maxMessage ? SOCKET_EMSGSIZE : $this->transmit($message);
        if ($error !== 0) {
            $this->refused[$error] = ($this->refused[$error] ?? 0) + 1;
            $this->lastError = $error;
            return false;
        }
        $this->sent++;
        $this->sentBytes += strlen($message);
        return true;
    }

    /** Return the errno of the last refused message; 0: none was refused. */
    public function lastError(): int
    {
        return $this->lastError;
    }

    /**
     * Wait until the daemon's queue has room and three quarters of the send buffer are free, or there is no daemon. Return
     * false after this time in seconds; a send may succeed nevertheless. Another sender may be faster, so send in a loop
     * while `lastError()` is SOCKET_EAGAIN.
     */
    public function wait(float $timeout = 30): bool
    {
        $deadlineNs = hrtime(true) + $timeout * 1e9;
        do {
            if ($this->connectIfDue() !== 0) {
                return true; // without a connection, the kernel knows no queue
            }
            $limitNs = max(0, min($deadlineNs - hrtime(true), self::RECONNECT_AFTER_NS));
            $read = $except = null;
            $write = [$this->socket];
            if (@socket_select($read, $write, $except, 0, (int) ($limitNs / 1000)) > 0) {
                return true;
            }
        } while (hrtime(true) < $deadlineNs);
        return false;
    }

    /** Return the errno. */
    private function transmit(string $message): int
    {
        if (($error = $this->connectIfDue()) !== 0) {
            return $error;
        }
        $error = $this->write($message);
        if (in_array($error, self::CLOSED, true)) {
            $error = $this->connect() ?: $this->write($message);
        }
        return $error;
    }

    private function connectIfDue(): int
    {
        return hrtime(true) < $this->connectAtNs ? 0 : $this->connect();
    }

    private function connect(): int
    {
        $this->connectAtNs = 0;
        if (strlen($this->path) > self::MAX_PATH) {
            return SOCKET_ENAMETOOLONG; // for which PHP would throw
        }
        if (!@socket_connect($this->socket, $this->path)) {
            return $this->takeError();
        }
        $this->connectAtNs = hrtime(true) + self::RECONNECT_AFTER_NS;
        return 0;
    }

    private function write(string $message): int
    {
        $size = strlen($message);
        do {
            $done = @socket_send($this->socket, $message, $size, MSG_DONTWAIT);
            $error = $done === false ? $this->takeError() : 0;
        } while ($error === SOCKET_EINTR);
        return $error;
    }

    private function takeError(): int
    {
        $error = socket_last_error($this->socket);
        socket_clear_error($this->socket);
        return $error;
    }

    /**
     * Return the counts of this process: offered = sent + sum of refused, by errno.
     *
     * @return array{sent: int, sent_bytes: int, refused: array<int, int>}
     */
    public function stats(): array
    {
        $this->resetAfterFork();
        return ['sent' => $this->sent, 'sent_bytes' => $this->sentBytes, 'refused' => $this->refused];
    }

    private function resetAfterFork(): void
    {
        if ($this->pid !== getmypid()) {
            $this->pid = getmypid();
            $this->sent = $this->sentBytes = 0;
            $this->refused = [];
        }
    }
}

/** Counts of the messages since the last successful flush, or since the connection was opened. */
final class Outcome
{
    /** @param array<string, int> $reasons the discarded messages by reason, such as BAD_TOPIC */
    public function __construct(
        public readonly int $received = 0,
        public readonly int $delivered = 0,
        public readonly int $discarded = 0,
        public readonly array $reasons = [],
    ) {
    }

    /** Return the outcome since an earlier one of the same connection. */
    public function minus(self $before): self
    {
        $reasons = [];
        foreach ($this->reasons as $reason => $count) {
            $reasons[$reason] = $count - ($before->reasons[$reason] ?? 0);
        }
        return new self(
            $this->received - $before->received,
            $this->delivered - $before->delivered,
            $this->discarded - $before->discarded,
            array_filter($reasons),
        );
    }
}

/** The frames of a flush: the request, and the daemon's answer. */
final class Barrier
{
    public const REQUEST = 258;
    private const ANSWER = 259;
    private const REQUEST_BYTES = 24;
    private const ANSWER_BYTES = 44;
    private const REASON_BYTES = 10;
    private const LEVELS = ['received' => 0, 'delivered' => 1, 'durable' => 2];
    public const NO_COUNTS = ['received' => 0, 'delivered' => 0, 'durable' => 0];
    private const REASONS = [
        1 => 'MALFORMED', 'UNSUPPORTED_API_KEY', 'UNSUPPORTED_VERSION', 'NO_MEM', 'BAD_TOPIC', 'LONG_MSG', 'RATE_LIMIT',
        'TOPIC_AUTOCREATE_FAIL', 'NO_AVAILABLE_PARTITIONS', 'KAFKA_ERROR_ACK', 'DELIVERY_ATTEMPT_LIMIT',
        'SERVER_SHUTDOWN', 'UNCLEAN_DISCONNECT', 'BUG', 'ABANDONED_ATTEMPT', 'SENDER_NOT_ALLOWED', 'OVER_QUOTA',
        'TOPIC_OVER_SHARE', 'SPILL_LOST', 'POSSIBLY_DELIVERED',
    ];

    public static function request(int $token, string $level, float $limitMs): string
    {
        $limit = (int) max(0, min($limitMs, 0x7fffffff));
        return pack('NnnnJnN', self::REQUEST_BYTES, self::REQUEST, 0, 0, $token, self::LEVELS[$level], $limit);
    }

    public static function isRequest(string $message): bool
    {
        return unpack('n', $message, 4)[1] === self::REQUEST;
    }

    /**
     * Remove a whole answer from the front of the bytes, or return null.
     *
     * @return ?array{token: int, status: int, counts: Outcome} its counts are those of the connection
     */
    public static function takeAnswer(string &$unread): ?array
    {
        if (strlen($unread) < self::ANSWER_BYTES) {
            return null;
        }
        $head = unpack('Nsize/nkind/nversion/Jtoken/nstatus/Jreceived/Jdelivered/Jdiscarded/nreasons', $unread);
        $size = self::ANSWER_BYTES + self::REASON_BYTES * $head['reasons'];
        if ($head['kind'] !== self::ANSWER || $head['size'] !== $size) {
            throw new FlushError('REFUSED');
        }
        if (strlen($unread) < $size) {
            return null;
        }
        $reasons = [];
        for ($at = self::ANSWER_BYTES; $at < $size; $at += self::REASON_BYTES) {
            ['reason' => $reason, 'count' => $count] = unpack('nreason/Jcount', $unread, $at);
            $reasons[self::REASONS[$reason] ?? "REASON_$reason"] = $count;
        }
        $unread = substr($unread, $size);
        $counts = new Outcome($head['received'], $head['delivered'], $head['discarded'], $reasons);
        return ['token' => $head['token'], 'status' => $head['status'], 'counts' => $counts];
    }
}

/** The connection ended. */
final class ConnectionEnded extends \RuntimeException
{
}

/**
 * Sends messages over a UNIX stream socket, or TCP, with a buffer of limited size, and connects again after a break.
 *
 * The client has no thread: send() writes as much as the connection takes, and the rest waits for the next call. In a
 * program with pauses, call write() from time to time.
 */
final class StreamClient
{
    private const FIRST_BACKOFF_S = 0.05;
    private const MAX_BACKOFF_S = 5.0;
    private const MAX_BREAKS = 5; // consecutive connections that may break within the same message
    private const WRITE_SIZE = 1 << 16;
    private const NO_SIGNAL = 0x4000; // MSG_NOSIGNAL, which PHP has no name for
    private const WOULD_BLOCK = [SOCKET_EAGAIN, SOCKET_EINTR, SOCKET_EINPROGRESS];

    private int $pid = 0;
    private ?\Socket $socket = null;
    /** @var \SplQueue<string> */
    private \SplQueue $messages;
    private int $bytes;
    private int $written; // bytes of the first message that this connection has
    private string $unread;
    private float $backoff;
    private float $nextAttempt;
    private int $denials; // consecutive attempts to connect that failed for want of permission
    private int $breaks;
    /** @var array<string, int> of ended connections, by level: messages that may not have reached it */
    private array $uncertain;
    private int $writtenMessages;
    private Outcome $flushed;
    /** @var array<string, int> of the written messages, by level */
    private array $confirmed;
    private int $token;
    private ?int $barrierConnection; // the connection that got the last barrier
    /** @var ?array{token: int, status: int, counts: Outcome} */
    private ?array $answer;
    private bool $isClosed;
    /** @var array<string, int> */
    private array $stats;

    /**
     * @param string|int $address the daemon's input.unix_stream.path, or its input.tcp.port on this host
     * @param int $buffer bytes of messages that may wait for the daemon
     */
    public function __construct(
        private readonly string|int $address,
        private readonly int $buffer = 1 << 20,
        private readonly int $maxMessage = MAX_STREAM_MESSAGE,
    ) {
        $this->resetAfterFork();
    }

    /** Accept a message into the buffer. Return false if it was dropped and counted. */
    public function send(Message $message): bool
    {
        return $this->sendEncoded($message->encode());
    }

    public function sendEncoded(string $message): bool
    {
        $this->resetAfterFork();
        if ($this->isClosed) {
            return $this->drop('closed');
        }
        if (strlen($message) > $this->maxMessage) {
            return $this->drop('too_large');
        }
        if ($this->isFullFor($message)) {
            $this->step();
        }
        if ($this->isFullFor($message)) {
            return $this->drop('buffer_full');
        }
        $this->append($message);
        $this->step();
        return true;
    }

    /**
     * Write the whole buffer, for at most this time in seconds, and not without permission to connect. Return false while
     * bytes are left.
     *
     * @throws FlushError if the client is closed
     */
    public function write(float $timeout = 0): bool
    {
        $this->resetAfterFork();
        $this->checkOpen();
        $deadline = self::now() + $timeout;
        $this->retryAfterDenial();
        while (true) {
            $this->step();
            if ($this->messages->isEmpty()) {
                return true;
            }
            if ($this->isDenied() || self::now() >= $deadline) {
                return false;
            }
            $this->pause($deadline);
        }
    }

    /**
     * Wait until all earlier messages have reached the level: "received", "delivered" or "durable".
     *
     * @throws FlushError
     */
    public function flush(float $timeout = 30, string $level = 'delivered'): Outcome
    {
        $this->resetAfterFork();
        $this->checkOpen();
        if (!isset($this->uncertain[$level])) {
            throw new \ValueError("Level $level does not exist.");
        }
        $deadline = self::now() + $timeout;
        if ($this->uncertain[$level] > 0) {
            throw $this->takeUncertain($level);
        }
        $this->appendBarrier($level, $deadline);
        $this->retryAfterDenial();
        while (true) {
            $this->step();
            if ($this->uncertain[$level] > 0) {
                throw $this->takeUncertain($level);
            }
            if ($this->answer !== null && $this->answer['token'] === $this->token) {
                return $this->settle($this->answer, $level);
            }
            if ($this->isDenied()) {
                $this->removeBarrier();
                throw new FlushError('NO_PERMISSION');
            }
            if (self::now() >= $deadline) {
                $this->removeBarrier();
                throw new FlushError('TIMED_OUT', text: $this->socket === null ? 'NO_CONNECTION' : null);
            }
            if ($this->barrierIsLost()) {
                $this->appendBarrier($level, $deadline);
            }
            $this->pause($deadline);
        }
    }

    /**
     * Return the counts of this process: offered = sent + waiting + the others, without bytes and connections.
     *
     * @return array<string, int>
     */
    public function stats(): array
    {
        $this->resetAfterFork();
        return $this->stats;
    }

    /** Write the buffer for at most this time in seconds, and close. Return the number of dropped messages. */
    public function close(float $timeout = 1): int
    {
        $this->resetAfterFork();
        if ($this->isClosed) {
            return 0;
        }
        $this->write($timeout);
        $this->isClosed = true;
        $lost = $this->stats['waiting'];
        $this->stats['closed'] += $lost;
        $this->stats['waiting'] = 0;
        $this->messages = new \SplQueue();
        if ($this->socket !== null) {
            @socket_shutdown($this->socket, 1);
            @socket_recv($this->socket, $unread, self::WRITE_SIZE, MSG_DONTWAIT); // or TCP would reset the connection
            socket_close($this->socket);
            $this->socket = null;
        }
        return $lost;
    }

    // --- forks -------------------------------------------------------------------------------------------------------

    private function resetAfterFork(): void
    {
        if ($this->pid === getmypid()) {
            return;
        }
        $this->pid = getmypid();
        if ($this->socket !== null) {
            socket_close($this->socket); // only the child's descriptor
            $this->socket = null;
        }
        $this->messages = new \SplQueue();
        $this->bytes = $this->written = $this->denials = $this->breaks = $this->writtenMessages = $this->token = 0;
        $this->unread = '';
        $this->backoff = self::FIRST_BACKOFF_S;
        $this->nextAttempt = 0;
        $this->flushed = new Outcome();
        $this->uncertain = $this->confirmed = Barrier::NO_COUNTS;
        $this->barrierConnection = $this->answer = null;
        $this->isClosed = false;
        $names = ['sent', 'sent_bytes', 'waiting', 'buffer_full', 'too_large', 'refused', 'closed', 'connections'];
        $this->stats = array_fill_keys($names, 0);
    }

    private function checkOpen(): void
    {
        if ($this->isClosed) {
            throw new FlushError('CLOSED');
        }
    }

    private static function now(): float
    {
        return hrtime(true) / 1e9;
    }

    // --- the buffer --------------------------------------------------------------------------------------------------

    private function isFullFor(string $message): bool
    {
        return $this->bytes > 0 && $this->bytes + strlen($message) > $this->buffer;
    }

    private function drop(string $reason): bool
    {
        $this->stats[$reason]++;
        return false;
    }

    private function append(string $message): void
    {
        $this->messages->enqueue($message);
        $this->bytes += strlen($message);
        $this->stats['waiting'] += Barrier::isRequest($message) ? 0 : 1;
    }

    private function removeFirst(): string
    {
        $message = $this->messages->dequeue();
        $this->bytes -= strlen($message);
        $this->stats['waiting'] -= Barrier::isRequest($message) ? 0 : 1;
        return $message;
    }

    private function onWritten(int $size): void
    {
        $this->written += $size;
        while (!$this->messages->isEmpty() && $this->written >= strlen($this->messages->bottom())) {
            $message = $this->removeFirst();
            $this->written -= strlen($message);
            $this->breaks = 0;
            $this->backoff = self::FIRST_BACKOFF_S;
            if (Barrier::isRequest($message)) {
                $this->barrierConnection = $this->stats['connections'];
            } else {
                $this->writtenMessages++;
                $this->stats['sent']++;
                $this->stats['sent_bytes'] += strlen($message);
            }
        }
    }

    // --- the connection ----------------------------------------------------------------------------------------------

    /** Do all input and output that is possible without waiting. */
    private function step(): void
    {
        if (!$this->isConnected()) {
            return;
        }
        try {
            $this->readAnswers();
            $this->writeMessages();
        } catch (ConnectionEnded) {
            $this->onBreak();
        }
    }

    private function isConnected(): bool
    {
        if ($this->socket !== null) {
            return true;
        }
        if (self::now() < $this->nextAttempt) {
            return false;
        }
        $this->nextAttempt = self::now() + $this->backoff * random_int(500, 1000) / 1000;
        $this->backoff = min(2 * $this->backoff, self::MAX_BACKOFF_S);
        $isPath = is_string($this->address);
        $socket = socket_create($isPath ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
        if ($socket === false || !socket_set_nonblock($socket)) {
            return false;
        }
        $isOpen = $isPath ? @socket_connect($socket, $this->address)
            : @socket_connect($socket, '127.0.0.1', $this->address);
        $error = $isOpen ? 0 : socket_last_error($socket);
        if ($error === SOCKET_EINPROGRESS) { // of TCP: on this host, a refusal has arrived
            $error = socket_get_option($socket, SOL_SOCKET, SO_ERROR);
        }
        $this->noteDenial($error);
        if ($error !== 0) {
            socket_close($socket);
            return false;
        }
        if (!$isPath) {
            socket_set_option($socket, SOL_TCP, TCP_NODELAY, 1);
        }
        $this->socket = $socket;
        $this->stats['connections']++;
        return true;
    }

    /** Keep the pause short after a denial, so that each later call fails soon. */
    private function noteDenial(int $error): void
    {
        $this->denials = in_array($error, [SOCKET_EACCES, SOCKET_EPERM], true) ? $this->denials + 1 : 0;
        if ($this->denials > 0) {
            $this->backoff = self::FIRST_BACKOFF_S;
        }
    }

    /** Return true from the second denial in a row: a daemon that starts sets the owner after it creates the socket. */
    private function isDenied(): bool
    {
        return $this->denials > 1;
    }

    /** Let a call that would fail for want of permission connect first: the permission may be there by now. */
    private function retryAfterDenial(): void
    {
        if ($this->isDenied()) {
            $this->nextAttempt = 0;
        }
    }

    private function writeMessages(): void
    {
        while (!$this->messages->isEmpty()) {
            $bytes = $this->nextBytes();
            $size = @socket_send($this->socket, $bytes, strlen($bytes), MSG_DONTWAIT | self::NO_SIGNAL);
            if ($size === false) {
                $this->checkError();
                return;
            }
            $this->onWritten($size);
        }
    }

    /** Return the next 64 KiB, more or less. */
    private function nextBytes(): string
    {
        if ($this->written > 0) {
            return substr($this->messages->bottom(), $this->written);
        }
        $bytes = '';
        foreach ($this->messages as $message) {
            if ($bytes !== '' && strlen($bytes) + strlen($message) > self::WRITE_SIZE) {
                break;
            }
            $bytes .= $message;
        }
        return $bytes;
    }

    private function readAnswers(): void
    {
        while (true) {
            $size = @socket_recv($this->socket, $data, self::WRITE_SIZE, MSG_DONTWAIT);
            if ($size === false) {
                $this->checkError();
                return;
            }
            if ($size === 0) {
                throw new ConnectionEnded();
            }
            $this->unread .= $data;
            while (($answer = Barrier::takeAnswer($this->unread)) !== null) {
                $this->answer = $answer;
            }
        }
    }

    private function checkError(): void
    {
        $error = socket_last_error($this->socket);
        socket_clear_error($this->socket);
        if (!in_array($error, [...self::WOULD_BLOCK, SOCKET_ENOTCONN], true)) {
            throw new ConnectionEnded();
        }
    }

    private function onBreak(): void
    {
        $this->disconnect();
        $this->breaks = $this->written > 0 ? $this->breaks + 1 : 0;
        $this->written = 0;
        if ($this->breaks < self::MAX_BREAKS) {
            return;
        }
        $this->breaks = 0;
        if (!Barrier::isRequest($this->removeFirst())) {
            $this->stats['refused']++;
        }
    }

    /** Drop the connection, and count the messages whose outcome no later one reports. */
    private function disconnect(): void
    {
        socket_close($this->socket);
        $this->socket = null;
        $this->unread = '';
        foreach ($this->confirmed as $level => $count) {
            $this->uncertain[$level] += $this->writtenMessages - $count;
        }
        $this->writtenMessages = 0;
        $this->flushed = new Outcome();
        $this->confirmed = Barrier::NO_COUNTS;
    }

    /** Wait until the connection is ready, the next attempt is due, or the deadline has passed. */
    private function pause(float $deadline): void
    {
        $limit = max(0, $deadline - self::now());
        if ($this->socket === null) {
            $limit = min($limit, max(0, $this->nextAttempt - self::now()));
            usleep((int) ceil($limit * 1e6));
            return;
        }
        $read = [$this->socket];
        $write = $this->messages->isEmpty() ? null : [$this->socket];
        $except = null;
        @socket_select($read, $write, $except, (int) $limit, (int) (fmod($limit, 1) * 1e6));
    }

    // --- flushing ----------------------------------------------------------------------------------------------------

    private function appendBarrier(string $level, float $deadline): void
    {
        $this->barrierConnection = null;
        $this->token++;
        $limitMs = ($deadline - self::now()) * 900; // the rest is for the transfer
        $this->append(Barrier::request($this->token, $level, $limitMs));
    }

    private function barrierIsLost(): bool
    {
        if ($this->barrierConnection === null) {
            return false;
        }
        return $this->socket === null || $this->barrierConnection !== $this->stats['connections'];
    }

    /** Remove the barrier of a flush that gave up, if the daemon has none of it. */
    private function removeBarrier(): void
    {
        if ($this->barrierConnection !== null || $this->messages->isEmpty()) {
            return;
        }
        $last = $this->messages->top();
        $isPartial = count($this->messages) === 1 && $this->written > 0;
        if (!$isPartial && Barrier::isRequest($last) && unpack('J', $last, 10)[1] === $this->token) {
            $this->messages->pop();
            $this->bytes -= strlen($last);
        }
    }

    /** Return the error for the messages that may not have reached the level; others may be left for a stronger one. */
    private function takeUncertain(string $level): FlushError
    {
        $uncertain = $this->uncertain[$level];
        $this->uncertain = array_map(fn (int $count): int => max(0, $count - $uncertain), $this->uncertain);
        return new FlushError('BROKEN', $uncertain);
    }

    /** @param array{token: int, status: int, counts: Outcome} $answer */
    private function settle(array $answer, string $level): Outcome
    {
        if ($answer['status'] !== 0) {
            throw new FlushError([1 => 'TIMED_OUT', 2 => 'SHUTTING_DOWN'][$answer['status']] ?? 'REFUSED');
        }
        $outcome = $answer['counts']->minus($this->flushed);
        $this->flushed = $answer['counts'];
        $reached = $level === 'delivered' ? array_keys($this->confirmed) : ['received', $level];
        $this->confirmed = array_replace($this->confirmed, array_fill_keys($reached, $this->flushed->received));
        return $outcome;
    }
}
