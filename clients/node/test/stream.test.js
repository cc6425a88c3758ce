'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
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
