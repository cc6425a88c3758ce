// Send a message from Go, as a datagram or by a stream.
//
//	go run send.go unixgram /run/bruce/in.dgram clicks user-7 hello
//	go run send.go unix /run/bruce/in.stream clicks user-7 hello
//	go run send.go tcp 127.0.0.1:9000 clicks user-7 hello 12345
//
// Copy Message into your program. Goroutines may share a net.Conn, because each Write is one whole message.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

const maxTopic = 32767

// Message encodes one message. The daemon chooses the partition if partitionKey is nil, else it is the key modulo the
// number of partitions.
func Message(topic string, key, value []byte, partitionKey *uint32) ([]byte, error) {
	if len(topic) == 0 || len(topic) > maxTopic {
		return nil, errors.New("the topic has to have 1 to 32767 bytes")
	}
	apiKey, overhead := uint16(256), 28
	if partitionKey != nil {
		apiKey, overhead = 257, 32
	}
	size := overhead + len(topic) + len(key) + len(value)
	order := binary.BigEndian
	message := make([]byte, 0, size)
	message = order.AppendUint32(message, uint32(size))
	message = order.AppendUint16(message, apiKey)
	message = order.AppendUint16(message, 0) // ApiVersion
	message = order.AppendUint16(message, 0) // Flags
	if partitionKey != nil {
		message = order.AppendUint32(message, *partitionKey)
	}
	message = order.AppendUint16(message, uint16(len(topic)))
	message = append(message, topic...)
	message = order.AppendUint64(message, uint64(time.Now().UnixMilli()))
	message = order.AppendUint32(message, uint32(len(key)))
	message = append(message, key...)
	message = order.AppendUint32(message, uint32(len(value)))
	return append(message, value...), nil
}

func send(network, address string, message []byte) error {
	// A datagram connection ends with the daemon's socket: dial again when Write fails with ECONNREFUSED.
	daemon, err := net.Dial(network, address)
	if err != nil {
		return err
	}
	defer daemon.Close()
	if err := daemon.SetWriteDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	_, err = daemon.Write(message)
	return err
}

func run(arguments []string) error {
	var partitionKey *uint32
	if len(arguments) == 6 {
		number, err := strconv.ParseUint(arguments[5], 10, 32)
		if err != nil {
			return err
		}
		narrow := uint32(number)
		partitionKey = &narrow
	} else if len(arguments) != 5 {
		return errors.New("usage: send unixgram|unix|tcp ADDRESS TOPIC KEY VALUE [PARTITION-KEY]")
	}
	message, err := Message(arguments[2], []byte(arguments[3]), []byte(arguments[4]), partitionKey)
	if err != nil {
		return err
	}
	return send(arguments[0], arguments[1], message)
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "send:", err)
		os.Exit(1)
	}
}
