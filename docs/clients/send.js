// Send a message from Node.js, by UNIX stream or TCP. Node.js lacks UNIX datagrams.
//
//     node send.js /run/bruce/in.stream clicks user-7 hello
//     node send.js 9000 clicks user-7 hello 12345
//
// Copy message() into your program.

'use strict';

const net = require('node:net');

const MAX_TOPIC = 32767;

// Encode one message; key and value are strings or Buffers. The daemon chooses the partition if partitionKey is
// undefined, else it is the key modulo the number of partitions.
function message(topic, key, value, partitionKey) {
  const [name, keyBytes, valueBytes] = [topic, key, value].map((part) => Buffer.from(part)); // bytes, not characters
  if (name.length === 0 || name.length > MAX_TOPIC) {
    throw new RangeError('the topic has to have 1 to 32767 bytes');
  }
  const keyed = partitionKey !== undefined;
  const size = (keyed ? 32 : 28) + name.length + keyBytes.length + valueBytes.length;
  const bytes = Buffer.alloc(size);
  let at = bytes.writeInt32BE(size, 0);
  at = bytes.writeInt16BE(keyed ? 257 : 256, at); // ApiKey
  at = bytes.writeInt16BE(0, at); // ApiVersion
  at = bytes.writeInt16BE(0, at); // Flags
  if (keyed) {
    at = bytes.writeUInt32BE(partitionKey, at);
  }
  at = bytes.writeInt16BE(name.length, at);
  at += name.copy(bytes, at);
  at = bytes.writeBigInt64BE(BigInt(Date.now()), at);
  at = bytes.writeInt32BE(keyBytes.length, at);
  at += keyBytes.copy(bytes, at);
  at = bytes.writeInt32BE(valueBytes.length, at);
  valueBytes.copy(bytes, at);
  return bytes;
}

function main([address, topic, key, value, partitionKey]) {
  if (value === undefined) {
    console.error('usage: send.js SOCKET|PORT TOPIC KEY VALUE [PARTITION-KEY]');
    process.exit(2);
  }
  const where = /^\d+$/.test(address) ? { host: '127.0.0.1', port: Number(address) } : { path: address };
  const daemon = net.createConnection(where);
  daemon.on('error', (error) => {
    console.error(`send: ${error.message}`);
    process.exitCode = 1;
  });
  // If write() returns false, the daemon is behind: wait for the event 'drain' before the next message.
  daemon.end(message(topic, key, value, partitionKey === undefined ? undefined : Number(partitionKey)));
}

main(process.argv.slice(2));
