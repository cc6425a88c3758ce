'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const test = require('node:test');

const { StreamClient } = require('../lib');

const LONG = 300_000;
const message = { topic: 'clicks', value: 'hello' };

/** Run a test with a directory that its own user may not enter; root, which needs no permission, becomes another user. */
async function withClosedDirectory(run) {
  const isRoot = process.geteuid() === 0;
  if (isRoot) process.seteuid(40001);
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), 'bruce-'));
  fs.chmodSync(directory, 0);
  try {
    await run(directory);
  } finally {
    fs.chmodSync(directory, 0o700);
    fs.rmSync(directory, { recursive: true });
    if (isRoot) process.seteuid(0);
  }
}

test('without permission, flush and close end long before their time limit', () =>
  withClosedDirectory(async (directory) => {
    const client = new StreamClient({ path: path.join(directory, 'in.stream') });
    client.send(message);
    const begin = Date.now();
    for (let flushes = 0; flushes < 10; flushes++) {
      const flushed = client.flush({ timeout: LONG });
      await assert.rejects(flushed, { code: 'NO_PERMISSION', message: /input\.unix_stream\.mode/ });
    }
    assert.strictEqual(client.stats.waiting, 1);
    assert.strictEqual(await client.close({ timeout: LONG }), 1);
    assert(Date.now() - begin < 20_000, 'the pauses grow');
  }));

test('close connects once more after a denial', () =>
  withClosedDirectory(async (directory) => {
    const client = new StreamClient({ path: path.join(directory, 'in.stream') });
    await assert.rejects(client.flush({ timeout: LONG }), { code: 'NO_PERMISSION' });
    fs.chmodSync(directory, 0o700);
    const daemon = net.createServer((socket) => socket.resume());
    await new Promise((resolve) => daemon.listen(path.join(directory, 'in.stream'), resolve));
    client.send(message);
    assert.strictEqual(await client.close({ timeout: LONG }), 0);
    await new Promise((resolve) => daemon.close(resolve));
  }));
