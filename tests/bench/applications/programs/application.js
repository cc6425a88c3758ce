// An application in Node.js: the arguments and the conversation are those of application.py. Pauses are of 1 ms at least,
// so it sends what is due after each.
'use strict';

const readline = require('node:readline');
const { setTimeout: pause } = require('node:timers/promises');
const { StreamClient } = require('../../../../clients/node');

async function run(send, messages, rate) {
  const start = performance.now();
  for (let number = 0; number < messages; number++) {
    while (rate && start + (number / rate) * 1000 > performance.now()) await pause(1);
    while (!send()) await pause(1);
  }
}

async function main() {
  const [, path, topic, size] = process.argv.slice(2);
  const value = Buffer.alloc(Number(size), 'x');
  const client = new StreamClient({ path, linger: 10 });
  console.log('READY');
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [messages, rate, dry] = line.split(' ').map(Number);
    await run(dry ? () => true : () => client.send({ topic, value }), messages, rate);
    if (!dry) await client.flush({ timeout: 60_000 });
    console.log('SENT');
  }
  await client.close();
}

main();
