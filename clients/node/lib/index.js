'use strict';

const { encode, MessageError } = require('./message');
const { crc32, fnv1a, murmur2 } = require('./partition-key');
const { FlushError } = require('./answer');
const { StreamClient } = require('./stream');

module.exports = { StreamClient, FlushError, MessageError, encode, crc32, fnv1a, murmur2 };
