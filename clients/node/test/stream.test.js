'use strict';

const assert = require('node:assert');
const { spawn } = require('node:child_process');
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

test('a program ends after close, although the daemon does not read', async () => {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), 'bruce-'));
  const socketPath = path.join(directory, 'in.stream');
  const connections = [];
  const options = { allowHalfOpen: true, pauseOnConnect: true };
  const server = net.createServer(options, (connection) => connections.push(connection)).listen(socketPath);
  const program = `
    const { StreamClient } = require('../lib');
    const client = new StreamClient({ path: ${JSON.stringify(socketPath)}, buffer: 8 << 20 });
    for (let i = 0; i < 200; i++) client.send({ topic: 'clicks', value: Buffer.alloc(10_000) });
    setTimeout(() => client.close({ timeout: 50 }), 100);
  `;
  const child = spawn(process.execPath, ['-e', program], { cwd: __dirname, stdio: 'inherit', timeout: 5000 });
  const code = await new Promise((resolve) => child.on('exit', resolve));
  for (const connection of connections) connection.destroy();
  await new Promise((resolve) => server.close(resolve));
  fs.rmdirSync(directory);
  assert.strictEqual(code, 0);
});
