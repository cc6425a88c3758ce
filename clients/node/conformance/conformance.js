'use strict';

/** The conformance program, see clients/conformance/README.md. */

const readline = require('node:readline');

const { StreamClient, FlushError, crc32, encode, fnv1a, murmur2 } = require('../lib');

let stream;

function field(word) {
  return word === '-' ? null : Buffer.from(word.slice(1), 'hex');
}

function headers(word) {
  if (word === '-') return [];
  return word.split(',').map((pair) => {
    const [name, value] = pair.split(':');
    return [Buffer.from(name, 'hex').toString(), value === '-' ? null : Buffer.from(value, 'hex')];
  });
}

function encodeFields([topic, key, value, timestamp, partitionKey, keepEmpty, pairs]) {
  const message = { topic: field(topic).toString(), key: field(key), value: field(value), keepEmpty: keepEmpty === '1' };
  if (timestamp !== '.') message.timestamp = BigInt(timestamp);
  if (partitionKey !== '.') message.partitionKey = Number(partitionKey);
  message.headers = headers(pairs);
  try {
    return `ok ${encode(message).toString('hex')}`;
  } catch (error) {
    return `error ${error.code}`;
  }
}

function send(topic, first, count, size) {
  let accepted = 0;
  for (let number = first; number < first + count; number++) {
    accepted += stream.send({ topic, value: String(number).padStart(12, '0').padEnd(size, 'x') });
  }
  return `ok ${accepted}`;
}

async function flush(level, timeout) {
  try {
    const outcome = await stream.flush({ level, timeout });
    const reasons = Object.entries(outcome.reasons).map(([reason, count]) => `${reason}=${count}`);
    return `ok ${outcome.received} ${outcome.delivered} ${outcome.discarded} ${reasons.join(',') || '-'}`;
  } catch (error) {
    if (!(error instanceof FlushError)) throw error;
    return `error ${error.code} ${error.uncertain}`;
  }
}

function stats() {
  const s = stream.stats;
  return `ok ${s.sent} ${s.sentBytes} ${s.waiting} ${s.bufferFull} ${s.tooLarge} ${s.refused} ${s.closed} ${s.connections}`;
}

async function run([command, ...f]) {
  switch (command) {
    case 'encode':
      return encodeFields(f);
    case 'hash':
      return `ok ${{ murmur2, crc32, fnv1a }[f[0]](field(f[1]))}`;
    case 'stream':
      stream = new StreamClient({
        buffer: Number(f[1]),
        linger: Number(f[2]),
        ...(f[0].startsWith('/') ? { path: f[0] } : { port: Number(f[0]) }),
      });
      return 'ok';
    case 'stream-send':
      return send(f[0], Number(f[1]), Number(f[2]), Number(f[3]));
    case 'stream-flush':
      return flush(f[0], Number(f[1]));
    case 'stream-flush-twice':
      return (await Promise.all([flush('delivered', 20000), flush('delivered', 20000)])).join(' ');
    case 'stream-stats':
      return stats();
    case 'stream-close':
      await stream.close({ timeout: Number(f[0]) });
      return 'ok';
    default:
      return 'unsupported';
  }
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    process.stdout.write(`${await run(line.split(' '))}\n`);
  }
}

main();
