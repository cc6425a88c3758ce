// An application in Go: the arguments and the conversation are those of application.py.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"bruce"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	linger      = 10 * time.Millisecond
	retry       = 100 * time.Microsecond
	batchLinger = 500 * time.Millisecond
	batchBytes  = 65_536
)

type application struct {
	send  func()
	flush func()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func datagrams(path string, message bruce.Message) application {
	client, err := bruce.NewDatagramClient(path, bruce.DatagramOptions{})
	check(err)
	return application{func() {
		err := client.Send(&message)
		for errors.Is(err, syscall.EAGAIN) {
			check(client.Wait(context.Background()))
			err = client.Send(&message)
		}
		check(err)
	}, func() {}}
}

func stream(path string, message bruce.Message) application {
	client := bruce.NewStreamClient("unix", path, bruce.StreamOptions{Linger: linger})
	return application{func() {
		err := client.Send(&message)
		for errors.Is(err, bruce.ErrBufferFull) {
			time.Sleep(retry)
			err = client.Send(&message)
		}
		check(err)
	}, func() {
		_, err := client.Flush(context.Background(), bruce.Delivered)
		check(err)
	}}
}

func franz(broker string, message bruce.Message) application {
	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.ProducerLinger(batchLinger),
		kgo.ProducerBatchMaxBytes(batchBytes), kgo.ProducerBatchCompression(kgo.NoCompression()))
	check(err)
	return application{func() {
		client.Produce(context.Background(), &kgo.Record{Topic: message.Topic, Value: message.Value},
			func(_ *kgo.Record, err error) { check(err) })
	}, func() { check(client.Flush(context.Background())) }}
}

func main() {
	kind, address, topic := os.Args[1], os.Args[2], os.Args[3]
	size, err := strconv.Atoi(os.Args[4])
	check(err)
	kinds := map[string]func(string, bruce.Message) application{"datagram": datagrams, "stream": stream, "franz-go": franz}
	it := kinds[kind](address, bruce.Message{Topic: topic, Value: []byte(strings.Repeat("x", size))})
	fmt.Println("READY")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); fmt.Println("SENT") {
		var messages, dry int
		var rate float64
		_, err := fmt.Sscan(lines.Text(), &messages, &rate, &dry)
		check(err)
		start := time.Now()
		for number := range messages {
			if rate > 0 {
				time.Sleep(time.Until(start.Add(time.Duration(float64(number) / rate * 1e9))))
			}
			if dry == 0 {
				it.send()
			}
		}
		it.flush()
	}
}
