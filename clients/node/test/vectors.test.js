'use strict';

const assert = require('node:assert');
const crypto = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');
const test = require('node:test');

const client = require('../lib');

const vectors = JSON.parse(fs.readFileSync(path.join(__dirname, '../../conformance/vectors.json'), 'utf8'));

function bytes(field) {
  if (field === null) return null;
  if (Array.isArray(field)) return Buffer.alloc(field[1], Buffer.from(field[0], 'hex'));
  return Buffer.from(field, 'hex');
}

for (const vector of vectors.messages) {
  test(vector.name, () => {
    const message = {
      topic: bytes(vector.topic).toString(),
      key: bytes(vector.key),
      value: bytes(vector.value),
      partitionKey: vector.partition_key ?? undefined,
      timestamp: vector.timestamp_ms > Number.MAX_SAFE_INTEGER ? 2n ** 63n - 1n : vector.timestamp_ms,
      headers: vector.headers.map(([name, value]) => [bytes(name).toString(), bytes(value)]),
      keepEmpty: vector.keep_empty,
    };
    if (vector.error) {
      assert.throws(() => client.encode(message), { code: vector.error });
      return;
    }
    const encoded = client.encode(message);
    if (vector.message) assert.strictEqual(encoded.toString('hex'), vector.message);
    else assert.strictEqual(crypto.createHash('sha256').update(encoded).digest('hex'), vector.sha256);
  });
}

test('keys are hashed like the vectors', () => {
  for (const { partitioner, key, partition_key: expected } of vectors.hashes) {
    assert.strictEqual(client[partitioner](Buffer.from(key, 'hex')), expected);
  }
});

test('null is no partition key, and the present time', () => {
  const message = { topic: 'clicks', value: 'hello', partitionKey: null, timestamp: null };
  const now = Date.now();
  const encoded = client.encode(message);
  assert.strictEqual(encoded.readInt16BE(4), 256); // ApiKey of a message without a partition key
  assert(Number(encoded.readBigInt64BE(12 + message.topic.length)) >= now);
});

test('a partition key is an integer of 32 bits', () => {
  const encoded = (partitionKey) => client.encode({ topic: 'clicks', value: 'hello', partitionKey });
  for (const wrong of ['user-7', '7', NaN, 1.9, {}, 2 ** 32, -(2 ** 31) - 1]) {
    assert.throws(() => encoded(wrong), { name: 'TypeError', message: /partition key/ });
  }
  for (const right of [0, -1, -(2 ** 31), 2 ** 32 - 1]) assert.strictEqual(encoded(right).readInt32BE(10), right | 0);
});
