'use strict';

const MAX_TOPIC = 32767;
const MAX_HEADERS = 65535;
const ANY_PARTITION = 256;
const PARTITION_KEY = 257;
const ANY_PARTITION_BYTES = 28;
const HEADER_BYTES = 6;
const PLAIN_VERSION = 0;
const HEADERS_VERSION = 1;
const NULLS_VERSION = 2;
const NULL = -1;
const EMPTY = Buffer.alloc(0);

/** The protocol cannot express a message. */
class MessageError extends Error {
  constructor(code, text) {
    super(text);
    this.name = 'MessageError';
    this.code = code;
  }
}

function bytesOf(field, name) {
  if (field === null) return null;
  if (typeof field === 'string') return Buffer.from(field);
  if (field instanceof Uint8Array) return field;
  throw new TypeError(`The ${name} of a message is a string, a Buffer or null, and not ${typeof field}.`);
}

function topicOf(message) {
  const topic = Buffer.from(message.topic);
  if (topic.length === 0) throw new MessageError('TOPIC_EMPTY', 'The topic is empty.');
  if (topic.length > MAX_TOPIC) throw new MessageError('TOPIC_TOO_LARGE', 'The topic has more than 32767 bytes.');
  return topic;
}

/** Check the key, because a wrong one would select partition 0; a hash may be unsigned. */
function partitionKeyOf({ partitionKey = null }) {
  if (partitionKey === null || partitionKey === (partitionKey | 0) || partitionKey === partitionKey >>> 0) return partitionKey;
  throw new TypeError(`The partition key of a message is an integer of 32 bits or null, and not ${partitionKey}.`);
}

function headersOf({ headers = [] }) {
  const pairs = Array.isArray(headers) ? headers : Object.entries(headers);
  const encoded = pairs.map(([name, value]) => ({ name: Buffer.from(name), value: bytesOf(value, 'header') }));
  let size = 0;
  for (const { name, value } of encoded) {
    size += HEADER_BYTES + name.length + (value === null ? 0 : value.length);
    if (name.length > MAX_TOPIC || size > MAX_HEADERS) {
      throw new MessageError('HEADERS_TOO_LARGE', 'The record headers have more than 65535 bytes.');
    }
  }
  return { pairs: encoded, size };
}

/** The lowest version that can express the message, because older daemons refuse later ones. */
function versionOf(message, key, value, headers) {
  const hasEmpty = value === null || value.length === 0 || (key !== null && key.length === 0);
  if (value === null || (message.keepEmpty && hasEmpty)) return NULLS_VERSION;
  return headers.size > 0 ? HEADERS_VERSION : PLAIN_VERSION;
}

/** Writes fields one after the other. */
class Writer {
  constructor(size) {
    this.buffer = Buffer.allocUnsafe(size);
    this.at = 0;
  }

  int16(number) {
    this.at = this.buffer.writeUInt16BE(number, this.at);
  }

  int32(number) {
    this.at = this.buffer.writeInt32BE(number | 0, this.at);
  }

  int64(number) {
    this.at = this.buffer.writeBigInt64BE(number, this.at);
  }

  bytes(bytes) {
    this.buffer.set(bytes, this.at);
    this.at += bytes.length;
  }

  field(bytes) {
    this.int32(bytes === null ? NULL : bytes.length);
    if (bytes !== null) this.bytes(bytes);
  }
}

function timestampOf(message) {
  const timestamp = message.timestamp ?? Date.now();
  return typeof timestamp === 'bigint' ? timestamp : BigInt(Math.trunc(Number(timestamp)));
}

/** Encode a message for the daemon. */
function encode(message) {
  const topic = topicOf(message);
  const key = bytesOf(message.key ?? null, 'key');
  const value = bytesOf(message.value, 'value');
  const headers = headersOf(message);
  const version = versionOf(message, key, value, headers);
  const partitionKey = partitionKeyOf(message);
  const hasPartitionKey = partitionKey !== null;
  const size =
    ANY_PARTITION_BYTES + topic.length + (key ?? EMPTY).length + (value ?? EMPTY).length +
    (hasPartitionKey ? 4 : 0) + (version === PLAIN_VERSION ? 0 : 4 + headers.size);
  const out = new Writer(size);
  out.int32(size);
  out.int16(hasPartitionKey ? PARTITION_KEY : ANY_PARTITION);
  out.int16(version);
  out.int16(0); // Flags
  if (hasPartitionKey) out.int32(partitionKey);
  out.int16(topic.length);
  out.bytes(topic);
  out.int64(timestampOf(message));
  out.field(fieldOfKey(message, key, version));
  out.field(value);
  if (version !== PLAIN_VERSION) writeHeaders(out, headers);
  return out.buffer;
}

function fieldOfKey(message, key, version) {
  if (version !== NULLS_VERSION) return key ?? EMPTY;
  return key !== null && key.length === 0 && !message.keepEmpty ? null : key;
}

function writeHeaders(out, headers) {
  out.int32(headers.size);
  for (const { name, value } of headers.pairs) {
    out.int16(name.length);
    out.bytes(name);
    out.field(value);
  }
}

module.exports = { encode, MessageError };
