'use strict';

/** The frames of a flush: the request, and the daemon's answer. */

const BARRIER = 258;
const ANSWER = 259;
const BARRIER_BYTES = 24;
const ANSWER_BYTES = 44;
const REASON_BYTES = 10;
const MAX_LIMIT = 2 ** 31 - 1;

const LEVELS = { received: 0, delivered: 1, durable: 2 };
const REASONS = [
  undefined, 'MALFORMED', 'UNSUPPORTED_API_KEY', 'UNSUPPORTED_VERSION', 'NO_MEM', 'BAD_TOPIC', 'LONG_MSG', 'RATE_LIMIT',
  'TOPIC_AUTOCREATE_FAIL', 'NO_AVAILABLE_PARTITIONS', 'KAFKA_ERROR_ACK', 'DELIVERY_ATTEMPT_LIMIT', 'SERVER_SHUTDOWN',
  'UNCLEAN_DISCONNECT', 'BUG', 'ABANDONED_ATTEMPT', 'SENDER_NOT_ALLOWED', 'OVER_QUOTA', 'TOPIC_OVER_SHARE', 'SPILL_LOST',
  'POSSIBLY_DELIVERED',
];

const TEXTS = {
  TIMED_OUT: 'The time limit passed. The daemon still delivers the rest; flush again.',
  NO_CONNECTION: 'The time limit passed without a connection to the daemon; flush again.',
  NO_PERMISSION:
    'No permission to connect: senders need write permission on the socket (input.unix_stream.mode, such as "0222") and ' +
    'access to its directory.',
  SHUTTING_DOWN: 'The daemon shuts down. It delivers the rest after its restart.',
  BROKEN: 'The connection broke; an unknown number of the messages written to it arrived.',
  REFUSED: 'The daemon refused the flush: it keeps no journal, or is too old.',
  CLOSED: 'The client is closed.',
};

/** Some messages have no final outcome; `code` says why. */
class FlushError extends Error {
  constructor(code, uncertain = 0, text = code) {
    super(TEXTS[text]);
    this.name = 'FlushError';
    this.code = code;
    this.uncertain = uncertain;
  }
}

const STATUS_CODES = [undefined, 'TIMED_OUT', 'SHUTTING_DOWN'];

/** The error that a status means, or null. */
function errorOf(status) {
  return status === 0 ? null : new FlushError(STATUS_CODES[status] ?? 'REFUSED');
}

function barrier(token, level, limit) {
  const frame = Buffer.alloc(BARRIER_BYTES);
  frame.writeInt32BE(BARRIER_BYTES, 0);
  frame.writeInt16BE(BARRIER, 4); // then ApiVersion and Flags, which are 0
  frame.writeBigInt64BE(BigInt(token), 10);
  frame.writeInt16BE(LEVELS[level], 18);
  frame.writeInt32BE(Math.max(0, Math.min(Math.trunc(limit), MAX_LIMIT)), 20);
  return frame;
}

/** Splits received bytes into answers. */
class AnswerReader {
  #unread = Buffer.alloc(0);

  /** Return the answers that `data` completes; throws for bytes of a foreign protocol. */
  feed(data) {
    this.#unread = Buffer.concat([this.#unread, data]);
    const answers = [];
    while (this.#unread.length >= ANSWER_BYTES) {
      const size = this.#unread.readInt32BE(0);
      const reasons = this.#unread.readInt16BE(42);
      if (this.#unread.readInt16BE(4) !== ANSWER || size !== ANSWER_BYTES + REASON_BYTES * reasons) {
        throw new FlushError('REFUSED');
      }
      if (this.#unread.length < size) break;
      answers.push(decode(this.#unread.subarray(0, size), reasons));
      this.#unread = this.#unread.subarray(size);
    }
    return answers;
  }
}

function decode(frame, count) {
  const reasons = {};
  for (let at = ANSWER_BYTES; count > 0; count--, at += REASON_BYTES) {
    const reason = frame.readInt16BE(at);
    reasons[REASONS[reason] ?? `REASON_${reason}`] = Number(frame.readBigInt64BE(at + 2));
  }
  return {
    token: Number(frame.readBigInt64BE(8)),
    status: frame.readInt16BE(16),
    counts: {
      received: Number(frame.readBigInt64BE(18)),
      delivered: Number(frame.readBigInt64BE(26)),
      discarded: Number(frame.readBigInt64BE(34)),
      reasons,
    },
  };
}

const NONE = Object.freeze({ received: 0, delivered: 0, discarded: 0, reasons: {} });

/** The outcome since an earlier answer of the same connection. */
function since(before, now) {
  const reasons = {};
  for (const [reason, count] of Object.entries(now.reasons)) {
    const more = count - (before.reasons[reason] ?? 0);
    if (more > 0) reasons[reason] = more;
  }
  return {
    received: now.received - before.received,
    delivered: now.delivered - before.delivered,
    discarded: now.discarded - before.discarded,
    reasons,
  };
}

module.exports = { AnswerReader, FlushError, LEVELS, NONE, barrier, errorOf, since };
