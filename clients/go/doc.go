// Package bruce sends messages to the bruce daemon, which delivers them to Kafka.
//
// A [DatagramClient] hands each message to the kernel and never blocks. A [StreamClient] buffers messages, reconnects, and
// learns their outcome with [StreamClient.Flush]. Both are safe for concurrent use.
package bruce
