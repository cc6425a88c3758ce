'use strict';

const net = require('node:net');

const { AnswerReader, FlushError, LEVELS, NONE, barrier, errorOf, since } = require('./answer');
const { encode } = require('./message');

const DEFAULT_BUFFER = 1 << 20;
const MAX_STREAM_MESSAGE = (2 << 20) + 4;
const WRITE_SIZE = 64 << 10;
const FIRST_BACKOFF = 50;
const MAX_BACKOFF = 5000;
const MAX_TIMER = 2 ** 31 - 1; // in ms; a longer timer would end after 1 ms
const MAX_BREAKS = 5; // consecutive connections that may break within the same message
const DENIALS = ['EACCES', 'EPERM'];

/** Numbers of messages by level. */
const noCounts = () => ({ received: 0, delivered: 0, durable: 0 });

/**
 * Sends messages over a UNIX stream socket or TCP, and connects again after a break.
 *
 * An idle client does not keep the process alive; call `flush()` or `close()` before the end of the program.
 */
class StreamClient {
  #address;
  #options;

  #waiting = []; // encoded messages; the first `#inFlight` ones are being written
  #inFlight = 0;
  #waitingBytes = 0;
  #scheduled = null; // the timer of the linger

  #link = null;
  #retryTimer = null;
  #backoff = FIRST_BACKOFF;
  #denials = 0; // consecutive attempts to connect that failed for want of permission
  #breaks = 0;

  #flushes = []; // in their order; only the first one is asked for
  #lastToken = 0;
  #uncertain = noCounts(); // of ended connections: messages that may not have reached the level
  #isClosed = false;
  #onDone = null; // ends the wait of close()

  #stats = { sent: 0, sentBytes: 0, bufferFull: 0, tooLarge: 0, refused: 0, closed: 0, connections: 0 };

  constructor({ path, port, buffer = DEFAULT_BUFFER, maxMessage = MAX_STREAM_MESSAGE, linger = 0 }) {
    if ((path === undefined) === (port === undefined)) throw new TypeError('Give either path or port.');
    this.#address = path === undefined ? { host: '127.0.0.1', port, noDelay: true } : { path };
    this.#options = { buffer, maxMessage, linger };
  }

  get stats() {
    return { ...this.#stats, waiting: this.#waiting.length };
  }

  /** Accept a message into the buffer; return false if it was dropped and counted. */
  send(message) {
    const encoded = encode(message);
    if (this.#isClosed) return this.#drop('closed');
    if (encoded.length > this.#options.maxMessage) return this.#drop('tooLarge');
    if (this.#waiting.length > 0 && this.#waitingBytes + encoded.length > this.#options.buffer) {
      return this.#drop('bufferFull');
    }
    this.#waiting.push(encoded);
    this.#waitingBytes += encoded.length;
    const { linger, buffer } = this.#options;
    if (linger > 0 && this.#waitingBytes >= Math.min(WRITE_SIZE, buffer / 2)) this.#pump();
    else this.#schedule();
    return true;
  }

  #drop(reason) {
    this.#stats[reason]++;
    return false;
  }

  /** Collect the messages of this turn of the event loop, or of `linger` ms, for one write. */
  #schedule() {
    if (this.#scheduled !== null) return;
    const pump = () => {
      this.#scheduled = null;
      this.#pump();
    };
    this.#scheduled = this.#options.linger > 0 ? setTimeout(pump, this.#options.linger) : setImmediate(pump);
  }

  // --- flushing ------------------------------------------------------------------------------------------------------

  /** Wait until all earlier messages have reached the level; rejects with a FlushError. */
  flush({ timeout = 30_000, level = 'delivered' } = {}) {
    if (!(level in LEVELS)) throw new TypeError(`Level ${level} does not exist.`);
    if (this.#isClosed) return Promise.reject(new FlushError('CLOSED'));
    if (this.#uncertain[level] > 0) return Promise.reject(this.#takeUncertain(level));
    return new Promise((resolve, reject) => {
      const flush = { level, resolve, reject, deadline: Date.now() + timeout, after: this.#waiting.length, token: null };
      flush.timer = setTimeout(() => this.#endFlush(flush, this.#timedOut()), Math.min(timeout, MAX_TIMER));
      this.#flushes.push(flush);
      this.#pump();
    });
  }

  #timedOut() {
    return new FlushError('TIMED_OUT', 0, this.#link?.isOpen ? 'TIMED_OUT' : 'NO_CONNECTION');
  }

  /** Return the error for the messages that may not have reached the level; others may be left for a stronger one. */
  #takeUncertain(level) {
    const count = this.#uncertain[level];
    for (const each in LEVELS) this.#uncertain[each] = Math.max(0, this.#uncertain[each] - count);
    return new FlushError('BROKEN', count);
  }

  #endFlush(flush, error, outcome) {
    const at = this.#flushes.indexOf(flush);
    if (at < 0) return;
    this.#flushes.splice(at, 1);
    clearTimeout(flush.timer);
    if (error) flush.reject(error);
    else flush.resolve(outcome);
    this.#pump();
  }

  /** Ask for the outcome once the connection has all messages that are older than the flush. */
  #askForOutcome() {
    const [flush] = this.#flushes;
    if (!flush || flush.token !== null || flush.after > 0) return;
    flush.token = ++this.#lastToken;
    this.#link.socket.write(barrier(flush.token, flush.level, (flush.deadline - Date.now()) * 0.9));
  }

  #onAnswer(link, { token, status, counts }) {
    const flush = this.#flushes.find((each) => each.token === token);
    if (!flush) return;
    const error = errorOf(status);
    const outcome = since(link.flushed, counts);
    if (!error) {
      link.flushed = counts;
      const reached = flush.level === 'delivered' ? Object.keys(LEVELS) : ['received', flush.level];
      for (const level of reached) link.confirmed[level] = counts.received;
    }
    this.#endFlush(flush, error, outcome);
  }

  // --- writing -------------------------------------------------------------------------------------------------------

  /** Do the next step: connect, write, or ask for an outcome. */
  #pump() {
    const isIdle = this.#waiting.length === 0 && this.#flushes.length === 0;
    if (isIdle) {
      this.#link?.socket.unref();
      this.#onDone?.();
      return;
    }
    if (this.#link === null) {
      this.#connect();
      return;
    }
    this.#link.socket.ref();
    if (!this.#link.isOpen || this.#inFlight > 0) return;
    this.#askForOutcome();
    if (this.#waiting.length > 0) this.#writeBatch(this.#link);
  }

  /** Write some whole messages; only the end of the write tells that the connection has them. */
  #writeBatch(link) {
    let size = 0;
    let count = 0;
    for (const message of this.#waiting) {
      if (count > 0 && size + message.length > WRITE_SIZE) break;
      size += message.length;
      count++;
    }
    this.#inFlight = count;
    const bytes = count === 1 ? this.#waiting[0] : Buffer.concat(this.#waiting.slice(0, count), size);
    link.socket.write(bytes, (error) => {
      if (!error && link === this.#link) this.#onWritten(link);
    });
  }

  #onWritten(link) {
    const count = this.#inFlight;
    link.messages += count;
    this.#breaks = 0;
    this.#backoff = FIRST_BACKOFF;
    this.#stats.sent += count;
    this.#stats.sentBytes += this.#removeFirst(count);
    this.#inFlight = 0;
    this.#pump();
  }

  #removeFirst(count) {
    const size = this.#waiting.splice(0, count).reduce((sum, message) => sum + message.length, 0);
    this.#waitingBytes -= size;
    for (const flush of this.#flushes) flush.after = Math.max(0, flush.after - count);
    return size;
  }

  // --- the connection ------------------------------------------------------------------------------------------------

  #connect() {
    if (this.#retryTimer !== null) return;
    const socket = net.connect(this.#address);
    const counts = { messages: 0, flushed: NONE, confirmed: noCounts() };
    const link = { socket, isOpen: false, isDenied: false, ...counts, reader: new AnswerReader() };
    this.#link = link;
    socket.on('connect', () => {
      link.isOpen = true;
      this.#stats.connections++;
      this.#pump();
    });
    socket.on('data', (data) => this.#onData(link, data));
    socket.on('error', (error) => { // 'close' follows
      link.isDenied = this.#address.path !== undefined && !link.isOpen && DENIALS.includes(error.code);
    });
    socket.on('end', () => this.#onEnd(link));
    socket.on('close', () => this.#onEnd(link));
  }

  #onData(link, data) {
    try {
      for (const answer of link.reader.feed(data)) this.#onAnswer(link, answer);
    } catch (error) {
      if (this.#flushes.length > 0) this.#endFlush(this.#flushes[0], error);
      link.socket.destroy();
    }
  }

  /**
   * Count the messages whose outcome no later connection reports.
   *
   * Node.js does not tell how much of a write succeeded. A single message that was being written is written again, because
   * the daemon ignores a part of it; several ones may have arrived, and so are uncertain.
   */
  #onEnd(link) {
    if (link !== this.#link) return;
    this.#link = null;
    link.socket.destroy();
    if (this.#inFlight > 1) this.#giveUpBatch(link);
    else if (this.#inFlight === 1) this.#countBreak();
    this.#inFlight = 0;
    for (const level in LEVELS) this.#uncertain[level] += link.messages - link.confirmed[level];
    for (const flush of this.#flushes) flush.token = null;
    this.#denials = link.isDenied ? this.#denials + 1 : 0;
    this.#retryLater();
    if (this.#denials > 1) this.#onDenied();
    const uncertain = { ...this.#uncertain }; // each waiting flush reports them
    for (const flush of [...this.#flushes]) {
      const count = uncertain[flush.level];
      if (count === 0) continue;
      this.#takeUncertain(flush.level);
      this.#endFlush(flush, new FlushError('BROKEN', count));
    }
  }

  #giveUpBatch(link) {
    link.messages += this.#inFlight;
    this.#stats.sent += this.#inFlight;
    this.#stats.sentBytes += this.#removeFirst(this.#inFlight);
  }

  #countBreak() {
    if (++this.#breaks < MAX_BREAKS) return;
    this.#breaks = 0;
    this.#stats.refused++;
    this.#removeFirst(1);
  }

  /** End the flushes from the second denial in a row: a daemon that starts sets the owner after it creates the socket. */
  #onDenied() {
    for (const flush of [...this.#flushes]) this.#endFlush(flush, new FlushError('NO_PERMISSION'));
    this.#onDone?.();
  }

  #retryLater() {
    if (this.#denials > 0) this.#backoff = FIRST_BACKOFF; // so that each later call fails soon
    const pause = this.#backoff * (0.5 + Math.random() / 2);
    this.#backoff = Math.min(2 * this.#backoff, MAX_BACKOFF);
    this.#retryTimer = setTimeout(() => {
      this.#retryTimer = null;
      this.#pump();
    }, pause);
    if (this.#flushes.length === 0 && this.#onDone === null) this.#retryTimer.unref();
  }

  // --- closing -------------------------------------------------------------------------------------------------------

  /**
   * Write the buffer for at most `timeout` ms, and not without permission to connect, and close the connection. Resolves to
   * the number of dropped messages.
   */
  async close({ timeout = 1000 } = {}) {
    this.#isClosed = true;
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, Math.min(timeout, MAX_TIMER));
      this.#onDone = () => {
        clearTimeout(timer);
        resolve();
      };
      this.#pump();
    });
    this.#onDone = null;
    const lost = this.#waiting.length;
    this.#stats.closed += lost;
    this.#waiting = [];
    this.#waitingBytes = 0;
    clearTimeout(this.#retryTimer);
    clearTimeout(this.#scheduled);
    for (const flush of [...this.#flushes]) this.#endFlush(flush, new FlushError('CLOSED'));
    const link = this.#link;
    this.#link = null;
    if (link?.isOpen && lost === 0) link.socket.end(); // otherwise it would wait for the daemon to read
    else link?.socket.destroy();
    return lost;
  }
}

module.exports = { StreamClient };
