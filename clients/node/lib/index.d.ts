/// <reference types="node" />

export type Bytes = string | Uint8Array;

export interface Message {
  topic: string;
  /** null is a tombstone. */
  value: Bytes | null;
  key?: Bytes | null;
  /** Modulo the number of partitions it selects one; see murmur2(). */
  partitionKey?: number | null;
  headers?: Record<string, Bytes | null> | Array<[string, Bytes | null]>;
  /** Milliseconds since 1970-01-01 UTC; the default is the present time. */
  timestamp?: Date | number | bigint | null;
  /** Keeps an empty key or value from becoming null. */
  keepEmpty?: boolean;
}

/** The protocol cannot express a message. */
export class MessageError extends Error {
  readonly code: 'TOPIC_EMPTY' | 'TOPIC_TOO_LARGE' | 'HEADERS_TOO_LARGE';
}

export function encode(message: Message): Buffer;

export function murmur2(key: Bytes): number;
export function crc32(key: Bytes): number;
export function fnv1a(key: Bytes): number;

export type Level = 'received' | 'delivered' | 'durable';

/** Counts of the messages since the last successful flush, or since the connection was opened. */
export interface Outcome {
  received: number;
  delivered: number;
  discarded: number;
  /** The discarded messages by reason, such as BAD_TOPIC. */
  reasons: Record<string, number>;
}

/** Some messages have no final outcome. */
export class FlushError extends Error {
  /**
   * TIMED_OUT, SHUTTING_DOWN: flush again. NO_PERMISSION: the socket's mode denies the connection. BROKEN: `uncertain`
   * messages may be delivered or not.
   */
  readonly code: 'TIMED_OUT' | 'SHUTTING_DOWN' | 'NO_PERMISSION' | 'BROKEN' | 'REFUSED' | 'CLOSED';
  readonly uncertain: number;
}

export interface StreamOptions {
  /** The daemon's input.unix_stream.path. */
  path?: string;
  /** The daemon's input.tcp.port on this host, instead of a path. */
  port?: number;
  /** Bytes of messages that may wait for the daemon; the default is 1 MiB. */
  buffer?: number;
  /** The daemon's input.max_stream_size + 4. */
  maxMessage?: number;
  /** Milliseconds to collect messages for one write; the default is 0. */
  linger?: number;
}

/** Counts of messages: offered = sent + waiting + the others. */
export interface StreamStats {
  sent: number;
  sentBytes: number;
  waiting: number;
  bufferFull: number;
  tooLarge: number;
  refused: number;
  closed: number;
  connections: number;
}

export class StreamClient {
  constructor(options: StreamOptions);
  /** Accept a message into the buffer; false if it was dropped and counted. */
  send(message: Message): boolean;
  /** Wait until all earlier messages have reached the level. */
  flush(options?: { timeout?: number; level?: Level }): Promise<Outcome>;
  /** Write the buffer for at most `timeout` ms, and not without permission; the number of dropped messages. */
  close(options?: { timeout?: number }): Promise<number>;
  readonly stats: StreamStats;
}
