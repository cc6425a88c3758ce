'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const test = require('node:test');

const { StreamClient } = require('../lib');

test('a flush without a daemon says that there is no connection', async () => {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), 'bruce-'));
  const client = new StreamClient({ path: path.join(directory, 'in.stream') });
  client.send({ topic: 'clicks', value: 'hello' });
  await assert.rejects(client.flush({ timeout: 50 }), { code: 'TIMED_OUT', message: /without a connection/ });
  assert.strictEqual(await client.close({ timeout: 0 }), 1);
  fs.rmdirSync(directory);
});

for (const timeout of [Infinity, 2 ** 31]) {
  test(`a flush and a close with the timeout ${timeout} wait`, async () => {
    const directory = fs.mkdtempSync(path.join(os.tmpdir(), 'bruce-'));
    const socketPath = path.join(directory, 'in.stream');
    const client = new StreamClient({ path: socketPath });
    client.send({ topic: 'clicks', value: 'hello' });
    const pause = () => new Promise((resolve) => setTimeout(resolve, 50, 'waits'));
    assert.strictEqual(await Promise.race([client.flush({ timeout }).catch((error) => error.code), pause()]), 'waits');
    await client.close({ timeout: 0 });

    const closed = new StreamClient({ path: socketPath });
    closed.send({ topic: 'clicks', value: 'hello' });
    const closing = closed.close({ timeout });
    assert.strictEqual(await Promise.race([closing, pause()]), 'waits');
    const server = net.createServer((connection) => connection.resume()).listen(socketPath);
    assert.strictEqual(await closing, 0);
    await new Promise((resolve) => server.close(resolve));
    fs.rmdirSync(directory);
  });
}
