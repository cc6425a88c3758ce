# frozen_string_literal: true

# The conformance program, see clients/conformance/README.md.

require_relative '../bruce'

class Program
  def run(command, *fields)
    case command
    when 'encode' then encode(*fields)
    when 'hash' then "ok #{Bruce::PartitionKey.public_send(fields[0], bytes(fields[1]))}"
    when 'datagram' then open_datagrams(fields[0])
    when 'datagram-send' then send_datagrams(fields[0], *fields[1..].map(&:to_i))
    when 'datagram-wait' then "ok #{@datagrams.wait(timeout: fields[0].to_i / 1000.0) ? 1 : 0}"
    when 'datagram-stats' then datagram_stats
    when 'stream' then open_stream(*fields)
    when 'stream-send' then send_stream(fields[0], *fields[1..].map(&:to_i))
    when 'stream-flush' then flush(fields[0].to_sym, fields[1].to_i / 1000.0)
    when 'stream-flush-twice' then flush_twice
    when 'stream-stats' then stream_stats
    when 'stream-close' then close(fields[0].to_i / 1000.0)
    when 'fork' then fork_and_send(fields[0], fields[1].to_i, fields[2].to_i)
    else 'unsupported'
    end
  end

  private

  def unhex(digits)
    [digits].pack('H*')
  end

  def bytes(word)
    word == '-' ? nil : unhex(word[1..])
  end

  def headers(word)
    return [] if word == '-'

    word.split(',').map do |pair|
      name, value = pair.split(':', 2)
      [unhex(name), value == '-' ? nil : unhex(value)]
    end
  end

  def encode(topic, key, value, timestamp, partition_key, keep_empty, pairs)
    options = { key: bytes(key), keep_empty: keep_empty == '1', headers: headers(pairs) }
    options[:timestamp] = timestamp.to_i unless timestamp == '.'
    options[:partition_key] = partition_key.to_i unless partition_key == '.'
    "ok #{Bruce::Message.encode(bytes(topic), bytes(value), **options).unpack1('H*')}"
  rescue Bruce::MessageError => e
    "error #{e.code.to_s.upcase}"
  end

  def open_datagrams(path)
    @datagrams = Bruce::DatagramClient.new(path)
    'ok'
  end

  def numbered(number, size)
    format('%012d', number).ljust(size, 'x')
  end

  def send_datagrams(topic, first, count, size, pause_us)
    sent = (first...first + count).count do |number|
      @datagrams.send(topic, numbered(number, size)).tap { sleep(pause_us / 1e6) if pause_us.positive? }
    end
    "ok #{sent}"
  end

  def list(pairs)
    pairs.empty? ? '-' : pairs.map { |name, count| "#{name}=#{count}" }.join(',')
  end

  def datagram_stats
    stats = @datagrams.stats
    "ok #{stats.sent} #{stats.sent_bytes} #{stats.refused.values.sum} #{list(stats.refused)}"
  end

  def open_stream(address, buffer, _linger)
    where = address.start_with?('/') ? { path: address } : { port: address.to_i }
    @stream = Bruce::StreamClient.new(**where, buffer: buffer.to_i)
    'ok'
  end

  def send_stream(topic, first, count, size)
    "ok #{(first...first + count).count { |number| @stream.send(topic, numbered(number, size)) }}"
  end

  def flush(level, timeout)
    outcome = @stream.flush(level: level, timeout: timeout)
    "ok #{outcome.received} #{outcome.delivered} #{outcome.discarded} #{list(outcome.reasons)}"
  rescue Bruce::FlushError => e
    "error #{e.code.to_s.upcase} #{e.uncertain}"
  end

  def flush_twice
    Array.new(2) { Thread.new { flush(:delivered, 20) } }.map(&:value).join(' ')
  end

  def stream_stats
    "ok #{@stream.stats.to_a.join(' ')}"
  end

  def close(timeout)
    @stream.close(timeout: timeout)
    'ok'
  end

  def fork_and_send(topic, first, count)
    child = fork { exit!(child_succeeds?(topic, first, count) ? 0 : 1) }
    _, status = Process.wait2(child)
    status.success? ? 'ok' : "error CHILD #{status.exitstatus}"
  end

  def child_succeeds?(topic, first, count)
    send_datagrams(topic, first, count, 20, 1000)
    send_stream(topic, first + count, count, 20)
    outcome = @stream.flush(timeout: 20)
    [@datagrams.stats.sent, @stream.stats.sent, outcome.delivered] == [count] * 3
  end
end

program = Program.new
$stdout.sync = true
$stdin.each_line(chomp: true) { |line| puts program.run(*line.split) }
