# frozen_string_literal: true

# Sends messages to the bruce daemon, which delivers them to Kafka. Copy this file; it needs only Ruby 3.0 or later.
#
#   require_relative 'bruce'
#
#   client = Bruce::DatagramClient.new('/run/bruce/in.dgram')
#   client.send('clicks', 'hello', key: 'user-7')
#
#   stream = Bruce::StreamClient.new(path: '/run/bruce/in.stream')
#   stream.send('clicks', 'hello')
#   puts stream.flush(timeout: 10).delivered
#
# Threads may share a client. After a fork, the child's copy starts with a new connection, an empty buffer and zero counts.

require 'monitor'
require 'socket'
require 'zlib'

module Bruce
  VERSION = '1.0.0'

  MAX_DATAGRAM = 64 << 10 # the daemon's input.max_datagram_size
  MAX_STREAM_MESSAGE = (2 << 20) + 4 # the daemon's input.max_stream_size + 4

  class Error < StandardError; end

  # The protocol cannot express a message: its topic is empty, or a part is too large.
  class MessageError < Error
    attr_reader :code

    def initialize(code, text)
      super(text)
      @code = code
    end
  end

  # Some messages have no final outcome. The code is :timed_out or :shutting_down (flush again), :no_permission, :broken
  # (#uncertain messages, the first ones that no flush of this level confirmed, may be delivered or not), :refused (no
  # journal) or :closed.
  class FlushError < Error
    TEXTS = {
      timed_out: 'The time limit passed. The daemon still delivers the rest; flush again.',
      no_connection: 'The time limit passed without a connection to the daemon; flush again.',
      no_permission: 'No permission to connect: senders need write permission on the socket ' \
                     '(input.unix_stream.mode, such as "0222") and access to its directory.',
      shutting_down: 'The daemon shuts down. It delivers the rest after its restart.',
      broken: 'The connection broke; an unknown number of the messages written to it arrived.',
      refused: 'The daemon refused the flush: it keeps no journal, or is too old.',
      closed: 'The client is closed.'
    }.freeze

    attr_reader :code, :uncertain

    def initialize(code, uncertain = 0, text: code)
      super(TEXTS.fetch(text))
      @code = code
      @uncertain = uncertain
    end
  end

  # The hashes by which Kafka's producers place a record key; each result is a partition_key.
  module PartitionKey
    MASK = 0xffffffff
    FACTOR = 0x5bd1e995

    module_function

    # The hash of Kafka's Java client.
    def murmur2(key)
      hash = 0x9747b28c ^ key.bytesize
      words = key.bytesize / 4
      key.unpack("V#{words}").each do |word|
        word = word * FACTOR & MASK
        word = (word ^ word >> 24) * FACTOR & MASK
        hash = (hash * FACTOR & MASK) ^ word
      end
      tail = key.byteslice(words * 4, 3).bytes
      unless tail.empty?
        tail.each_with_index { |byte, i| hash ^= byte << (8 * i) }
        hash = hash * FACTOR & MASK
      end
      hash = (hash ^ hash >> 13) * FACTOR & MASK
      (hash ^ hash >> 15) & 0x7fffffff
    end

    # The hash of librdkafka's consistent_random.
    def crc32(key)
      Zlib.crc32(key)
    end

    # The hash of librdkafka's fnv1a_random and of Sarama.
    def fnv1a(key)
      hash = key.each_byte.inject(0x811c9dc5) { |sum, byte| (sum ^ byte) * 0x01000193 & MASK }
      hash > 0x7fffffff ? -hash & MASK : hash
    end
  end

  # The encoding of messages, see docs/protocol.md.
  module Message
    MAX_TOPIC = 32_767
    MAX_HEADERS = 65_535
    ANY_PARTITION = 256
    PARTITION_KEY = 257
    PLAIN_VERSION = 0
    HEADERS_VERSION = 1
    NULLS_VERSION = 2
    NULL = -1

    module_function

    # Encode a message. The value nil is a tombstone, the key nil no key, the timestamp a Time or milliseconds. With
    # keep_empty, an empty key or value does not become null. Headers are a Hash or pairs; a value may be nil.
    def encode(topic, value, key: nil, partition_key: nil, timestamp: nil, headers: {}, keep_empty: false)
      check_topic(topic)
      version, tail = version_and_headers(key, value, headers, keep_empty)
      body = partition_key ? [partition_key].pack('N') : String.new(encoding: Encoding::BINARY)
      body << [topic.bytesize].pack('n') << topic.b << [milliseconds(timestamp)].pack('q>')
      body << field(key_field(key, version, keep_empty)) << field(value) << tail
      [body.bytesize + 10, partition_key ? PARTITION_KEY : ANY_PARTITION, version, 0].pack('Nnnn') << body
    end

    def check_topic(topic)
      raise MessageError.new(:topic_empty, 'The topic is empty.') if topic.empty?
      return if topic.bytesize <= MAX_TOPIC

      raise MessageError.new(:topic_too_large, 'The topic has more than 32767 bytes.')
    end

    # The lowest version that can express the message, because older daemons refuse later ones.
    def version_and_headers(key, value, headers, keep_empty)
      encoded = encode_headers(headers)
      sized = [encoded.bytesize].pack('N') << encoded
      return [NULLS_VERSION, sized] if value.nil? || (keep_empty && (value.empty? || key&.empty?))

      encoded.empty? ? [PLAIN_VERSION, ''] : [HEADERS_VERSION, sized]
    end

    def key_field(key, version, keep_empty)
      return key.to_s unless version == NULLS_VERSION

      key unless key&.empty? && !keep_empty
    end

    def milliseconds(timestamp)
      case timestamp
      when nil then Process.clock_gettime(Process::CLOCK_REALTIME, :millisecond)
      when Numeric then timestamp.floor
      else (timestamp.to_r * 1000).floor
      end
    end

    def field(bytes)
      return [NULL].pack('l>') if bytes.nil?

      [bytes.bytesize].pack('N') << bytes.b
    end

    def encode_headers(headers)
      headers.each_with_object(String.new(encoding: Encoding::BINARY)) do |(name, value), encoded|
        too_large if name.bytesize > MAX_TOPIC
        encoded << [name.bytesize].pack('n') << name.b << field(value)
        too_large if encoded.bytesize > MAX_HEADERS
      end
    end

    def too_large
      raise MessageError.new(:headers_too_large, 'The record headers have more than 65535 bytes.')
    end
  end

  # Sends datagrams without blocking. A restart of the daemon goes unnoticed, because the client connects again when the
  # daemon has closed its socket, and every second, because another socket may have the path.
  class DatagramClient
    RECONNECT_AFTER = 1.0
    CLOSED = [Errno::ECONNREFUSED, Errno::EPIPE, Errno::ENOTCONN, Errno::ECONNRESET].freeze

    # Counts of this process: offered = sent + sum of refused, by errno.
    Stats = Struct.new(:sent, :sent_bytes, :refused, keyword_init: true)

    def initialize(path, max_message: MAX_DATAGRAM, send_buffer: nil)
      @max_message = max_message
      @address = Socket.sockaddr_un(path)
      @lock = Mutex.new
      @socket = Socket.new(:UNIX, :DGRAM)
      @socket.setsockopt(:SOCKET, :SNDBUF, send_buffer) if send_buffer
      @connect_at = 0
      reset
    end

    # Send one message; see Message.encode for the options. Return false if it was refused and counted.
    def send(topic, value, **options)
      send_encoded(Message.encode(topic, value, **options))
    end

    def send_encoded(message)
      @lock.synchronize do
        reset if @pid != Process.pid
        transmit(message)
        @stats.sent += 1
        @stats.sent_bytes += message.bytesize
        true
      rescue SystemCallError => e
        @stats.refused[@last_error = e.errno] += 1
        false
      end
    end

    # The errno of the last refused message, whichever thread sent it.
    attr_reader :last_error

    # Wait until the daemon's queue has room and three quarters of the send buffer are free, or there is no daemon. Return
    # false after `timeout` seconds; a send may succeed nevertheless. Another sender may be faster, so send in a loop while
    # `last_error` is EAGAIN.
    def wait(timeout: 30)
      deadline = now + timeout
      loop do
        @lock.synchronize { connect_if_due }
        return true if @socket.wait_writable((deadline - now).clamp(0, RECONNECT_AFTER))
        return false if now >= deadline
      end
    rescue SystemCallError
      true # without a connection, the kernel knows no queue
    end

    def stats
      @lock.synchronize do
        reset if @pid != Process.pid
        @stats.dup.tap { |copy| copy.refused = @stats.refused.dup }
      end
    end

    def close
      @socket.close
    end

    private

    def reset
      @pid = Process.pid
      @stats = Stats.new(sent: 0, sent_bytes: 0, refused: Hash.new(0))
    end

    def transmit(message)
      raise Errno::EMSGSIZE if message.bytesize > @max_message

      connect_if_due
      begin
        write(message)
      rescue *CLOSED
        connect
        write(message)
      end
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    def connect_if_due
      connect if now >= @connect_at
    end

    def connect
      @connect_at = 0
      @socket.connect(@address)
      @connect_at = now + RECONNECT_AFTER
    end

    def write(message)
      @socket.write_nonblock(message) # send() would wait for the daemon, even with MSG_DONTWAIT
    rescue Errno::EINTR
      retry
    end
  end

  # Counts of the messages since the last successful flush, or since the connection was opened. reasons has the
  # discarded ones by reason, such as "BAD_TOPIC".
  Outcome = Struct.new(:received, :delivered, :discarded, :reasons) do
    def -(other)
      since = reasons.to_h { |reason, count| [reason, count - other.reasons.fetch(reason, 0)] }
      Outcome.new(received - other.received, delivered - other.delivered, discarded - other.discarded,
                  since.reject { |_, count| count.zero? })
    end
  end

  # The frames of a flush: the request, and the daemon's answer.
  module Barrier
    REQUEST = 258
    ANSWER = 259
    REQUEST_BYTES = 24
    ANSWER_BYTES = 44
    REASON_BYTES = 10
    LEVELS = { received: 0, delivered: 1, durable: 2 }.freeze
    CODES = { 1 => :timed_out, 2 => :shutting_down }.freeze
    REASONS = %w[
      - MALFORMED UNSUPPORTED_API_KEY UNSUPPORTED_VERSION NO_MEM BAD_TOPIC LONG_MSG RATE_LIMIT TOPIC_AUTOCREATE_FAIL
      NO_AVAILABLE_PARTITIONS KAFKA_ERROR_ACK DELIVERY_ATTEMPT_LIMIT SERVER_SHUTDOWN UNCLEAN_DISCONNECT BUG
      ABANDONED_ATTEMPT SENDER_NOT_ALLOWED OVER_QUOTA TOPIC_OVER_SHARE SPILL_LOST POSSIBLY_DELIVERED
    ].freeze

    # An answer; its counts are those of the connection, from the first message.
    Answer = Struct.new(:token, :status, :counts)

    module_function

    def request(token, level, limit_ms)
      [REQUEST_BYTES, REQUEST, 0, 0, token, LEVELS.fetch(level), limit_ms.clamp(0, 0x7fffffff)].pack('NnnnQ>nN')
    end

    # Remove a whole answer from the front of the bytes, or return nil.
    def take_answer(unread)
      return if unread.bytesize < ANSWER_BYTES

      size, kind, _, token, status, received, delivered, discarded, count = unread.unpack('NnnQ>nq>q>q>n')
      raise FlushError, :refused if kind != ANSWER || size != ANSWER_BYTES + REASON_BYTES * count
      return if unread.bytesize < size

      pairs = unread.slice!(0, size).byteslice(ANSWER_BYTES..).unpack('nq>' * count).each_slice(2)
      reasons = pairs.to_h { |reason, messages| [REASONS[reason] || "REASON_#{reason}", messages] }
      Answer.new(token, status, Outcome.new(received, delivered, discarded, reasons))
    end
  end

  # Sends messages over a UNIX stream socket, or TCP, with a buffer of limited size, and connects again after a break.
  #
  # The client has no thread: #send writes as much as the connection takes, and the rest waits for the next call. In a
  # program with pauses, call #write from time to time.
  class StreamClient
    FIRST_BACKOFF = 0.05
    MAX_BACKOFF = 5.0
    MAX_WAIT = 0.05 # a thread may close the connection on which another one waits
    MAX_BREAKS = 5 # consecutive connections that may break within the same message
    NOTHING = Outcome.new(0, 0, 0, {}).freeze

    # Counts of this process: offered = sent + waiting + the others.
    Stats = Struct.new(:sent, :sent_bytes, :waiting, :buffer_full, :too_large, :refused, :closed, :connections,
                       keyword_init: true)

    # Give the daemon's input.unix_stream.path, or its input.tcp.port on this host. buffer: bytes that may wait.
    def initialize(path: nil, port: nil, buffer: 1 << 20, max_message: MAX_STREAM_MESSAGE)
      raise ArgumentError, 'Give either path or port.' if path.nil? == port.nil?

      @address = path ? Socket.sockaddr_un(path) : Socket.sockaddr_in(port, '127.0.0.1')
      @family = path ? :UNIX : :INET
      @max_buffer = buffer
      @max_message = max_message
      @socket = nil
      reset
    end

    # Accept a message into the buffer; see Message.encode for the options. Return false if it was dropped and counted.
    def send(topic, value, **options)
      send_encoded(Message.encode(topic, value, **options))
    end

    def send_encoded(message)
      synchronize do
        return drop(:closed) if @is_closed
        return drop(:too_large) if message.bytesize > @max_message

        step if full?(message)
        return drop(:buffer_full) if full?(message)

        append(message)
        step
        true
      end
    end

    # Write the whole buffer, for at most `timeout` seconds, and not without permission to connect. Return false while
    # bytes are left; raises FlushError if the client is closed.
    def write(timeout: 0)
      deadline = now + timeout
      synchronize do
        is_done = write_until(deadline)
        raise FlushError, :closed if @is_closed

        is_done
      end
    end

    # Wait until all earlier messages have reached the level (:received, :delivered or :durable) and return the Outcome;
    # raises FlushError.
    def flush(timeout: 30, level: :delivered)
      deadline = now + timeout
      synchronize do
        lost_before = @lost[level]
        alone(deadline) do
          raise FlushError, :closed if @is_closed

          raise_uncertain(level, lost_before)
          append_barrier(level, deadline)
          await_answer(level, deadline)
        end
      end
    end

    def stats
      synchronize { @stats.dup }
    end

    # Write the buffer for at most `timeout` seconds, and close the connection. Return the number of dropped messages.
    def close(timeout: 1)
      deadline = now + timeout
      synchronize do
        write_until(deadline)
        @is_closed = true
        lost = @stats.waiting
        @stats.closed += lost
        @stats.waiting = 0
        @messages.clear
        hang_up
        lost
      end
    end

    private

    # --- forks -------------------------------------------------------------------------------------------------------

    def reset
      @pid = Process.pid
      @lock = Monitor.new
      @flush_over = @lock.new_cond
      @is_flushing = false
      @socket&.close # only the child's descriptor
      @socket = nil
      @messages = []
      @bytes = 0
      @written = 0
      @unread = String.new(encoding: Encoding::BINARY)
      @backoff = FIRST_BACKOFF
      @next_attempt = 0
      @denials = 0 # consecutive attempts to connect that failed for want of permission
      @breaks = 0
      @lost = Hash.new(0) # of ended connections, by level: messages that may not have reached it
      @uncertain = Hash.new(0) # of the lost messages, those that no error has reported
      @written_messages = 0
      @flushed = NOTHING
      @confirmed = Hash.new(0) # of the written messages, by level
      @token = 0
      @barrier_connection = nil
      @answer = nil
      @is_closed = false
      @stats = Stats.new(**Stats.members.to_h { |name| [name, 0] })
    end

    def synchronize(&block)
      reset if @pid != Process.pid
      @lock.synchronize(&block)
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    # --- the buffer --------------------------------------------------------------------------------------------------

    def full?(message)
      @bytes.positive? && @bytes + message.bytesize > @max_buffer
    end

    def drop(reason)
      @stats[reason] += 1
      false
    end

    def append(message)
      @messages << message
      @bytes += message.bytesize
      @stats.waiting += 1 unless barrier?(message)
    end

    def barrier?(message)
      message.unpack1('@4n') == Barrier::REQUEST
    end

    def remove_first
      message = @messages.shift
      @bytes -= message.bytesize
      @stats.waiting -= 1 unless barrier?(message)
      message
    end

    def on_written(size)
      @written += size
      while !@messages.empty? && @written >= @messages.first.bytesize
        message = remove_first
        @written -= message.bytesize
        @breaks = 0
        @backoff = FIRST_BACKOFF
        barrier?(message) ? @barrier_connection = @stats.connections : count_written(message)
      end
    end

    def count_written(message)
      @written_messages += 1
      @stats.sent += 1
      @stats.sent_bytes += message.bytesize
    end

    # --- the connection ----------------------------------------------------------------------------------------------

    # Do all input and output that is possible without waiting.
    def step
      return unless connected?

      read_answers
      write_messages
    rescue SystemCallError, EOFError
      on_break
    end

    def connected?
      return true if @socket
      return false if now < @next_attempt

      @next_attempt = now + @backoff * rand(0.5..1.0)
      @backoff = [2 * @backoff, MAX_BACKOFF].min
      @socket = connect
      @denials = 0
      @stats.connections += 1
      true
    rescue Errno::EACCES, Errno::EPERM
      @denials += 1
      @backoff = FIRST_BACKOFF # so that each later call fails soon
      false
    rescue SystemCallError
      @denials = 0
      false
    end

    # Return true from the second denial in a row: a daemon that starts sets the owner after it creates the socket.
    def denied?
      @denials > 1
    end

    # Let a call that would fail for want of permission connect first: the permission may be there by now.
    def retry_after_denial
      @next_attempt = 0 if denied?
    end

    def connect
      socket = Socket.new(@family, :STREAM)
      socket.setsockopt(:TCP, :NODELAY, true) if @family == :INET
      socket.connect_nonblock(@address, exception: false) # on this host it succeeds or fails at once, ...
      error = socket.getsockopt(:SOCKET, :ERROR).int # ... but TCP returns before it tells which
      raise SystemCallError.new('connect', error) unless error.zero?

      socket
    rescue SystemCallError
      socket.close
      raise
    end

    def write_messages
      until @messages.empty?
        size = @socket.write_nonblock(next_bytes, exception: false)
        return if size == :wait_writable

        on_written(size)
      end
    end

    # The next 64 KiB, more or less.
    def next_bytes
      first = @messages.first
      return first.byteslice(@written..) if @written.positive? || first.bytesize > 1 << 16

      size = 0
      @messages.take_while { |message| (size += message.bytesize) <= 1 << 16 }.join
    end

    def read_answers
      loop do
        data = @socket.read_nonblock(1 << 16, exception: false)
        return if data == :wait_readable
        raise EOFError if data.nil?

        @unread << data
        while (answer = Barrier.take_answer(@unread))
          @answer = answer
        end
      end
    rescue Errno::ENOTCONN
      nil # a TCP connection is still on its way
    end

    def on_break
      disconnect
      @breaks = @written.positive? ? @breaks + 1 : 0
      @written = 0
      return if @breaks < MAX_BREAKS

      @breaks = 0
      @stats.refused += 1 unless barrier?(remove_first)
    end

    # Drop the connection, and count the messages whose outcome no later one reports.
    def disconnect
      @socket&.close
      @socket = nil
      @unread.clear
      Barrier::LEVELS.each_key do |level|
        count = @written_messages - @confirmed[level]
        @lost[level] += count
        @uncertain[level] += count
      end
      @written_messages = 0
      @flushed = NOTHING
      @confirmed.clear
    end

    def hang_up
      return unless @socket

      @socket.shutdown(:WR)
      @socket.read_nonblock(1 << 16, exception: false) # over TCP, unread answers would reset the connection
      @socket.close
    rescue SystemCallError
      @socket.close
    ensure
      @socket = nil
    end

    def write_until(deadline)
      retry_after_denial
      until @is_closed # another thread may close the client during a pause
        step
        return true if @messages.empty?
        return false if denied? || now >= deadline

        pause(deadline)
      end
    end

    # Give other threads the lock until the connection is ready, the next attempt is due, or the deadline has passed.
    def pause(deadline)
      limit = [deadline - now, 0].max
      limit = [limit, @socket ? MAX_WAIT : [@next_attempt - now, 0].max].min
      socket = @socket
      has_messages = !@messages.empty?
      unlocked { socket ? IO.select([socket], has_messages ? [socket] : nil, nil, limit) : sleep(limit) }
    rescue IOError, Errno::EBADF
      nil # another thread has closed the connection
    end

    def unlocked
      lock = @lock
      lock.exit
      begin
        yield
      ensure
        lock.enter
      end
    end

    # --- flushing ----------------------------------------------------------------------------------------------------

    # Wait for the flush of another thread.
    def alone(deadline)
      @flush_over.wait([deadline - now, 0].max) while @is_flushing && now < deadline
      raise FlushError, :timed_out if @is_flushing

      @is_flushing = true
      begin
        yield
      ensure
        @is_flushing = false
        @flush_over.signal
      end
    end

    def append_barrier(level, deadline)
      @barrier_connection = nil
      @token += 1
      append(Barrier.request(@token, level, ((deadline - now) * 900).to_i)) # the rest is for the transfer
    end

    def await_answer(level, deadline)
      retry_after_denial
      loop do
        raise FlushError, :closed if @is_closed

        step
        raise_uncertain(level, @lost[level])
        return settle(level) if @answer&.token == @token
        break if denied? || now >= deadline

        append_barrier(level, deadline) if @barrier_connection && (!@socket || @barrier_connection != @stats.connections)
        pause(deadline)
      end
      remove_barrier
      raise FlushError, :no_permission if denied?

      raise FlushError.new(:timed_out, text: @socket ? :timed_out : :no_connection)
    rescue FlushError => e
      disconnect if e.code == :refused && @answer&.token != @token
      raise
    end

    # Raise the error for the messages that may not have reached the level; others may be left for a stronger one. While
    # a flush waits for that of another thread, the latter may report the error for both.
    def raise_uncertain(level, lost_before)
      unreported = @uncertain[level]
      @uncertain.transform_values! { |count| [count - unreported, 0].max }
      uncertain = [unreported, @lost[level] - lost_before].max
      raise FlushError.new(:broken, uncertain) if uncertain.positive?
    end

    def settle(level)
      answer = @answer
      raise FlushError, Barrier::CODES.fetch(answer.status, :refused) unless answer.status.zero?

      outcome = answer.counts - @flushed
      @flushed = answer.counts
      reached = level == :delivered ? Barrier::LEVELS.keys : [:received, level]
      reached.each { |each| @confirmed[each] = @flushed.received }
      outcome
    end

    # Remove the barrier of a flush that gave up, if the daemon has none of it.
    def remove_barrier
      return if @barrier_connection || @messages.empty? || (@messages.one? && @written.positive?)

      last = @messages.last
      return unless barrier?(last) && last.unpack1('@10Q>') == @token

      @messages.pop
      @bytes -= last.bytesize
    end
  end
end
