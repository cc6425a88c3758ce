// The conformance program of the Go client, see clients/conformance/README.md.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"bruce"
)

type program struct {
	datagrams *bruce.DatagramClient
	stream    *bruce.StreamClient
}

func main() {
	var p program
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<24)
	for in.Scan() {
		fmt.Println(p.run(strings.Fields(in.Text())))
	}
}

func (p *program) run(f []string) string {
	switch f[0] {
	case "encode":
		return encode(f[1:])
	case "hash":
		return hash(f[1], field(f[2]))
	case "datagram":
		var err error
		p.datagrams, err = bruce.NewDatagramClient(f[1], bruce.DatagramOptions{})
		return result(err)
	case "datagram-send":
		return p.sendDatagrams(f[1], number(f[2]), number(f[3]), number(f[4]), number(f[5]))
	case "datagram-wait":
		return p.waitForRoom(number(f[1]))
	case "datagram-stats":
		return p.datagramStats()
	case "stream":
		network, address := "unix", f[1]
		if !strings.HasPrefix(address, "/") {
			network, address = "tcp", "127.0.0.1:"+address
		}
		linger := time.Duration(number(f[3])) * time.Millisecond
		p.stream = bruce.NewStreamClient(network, address, bruce.StreamOptions{Buffer: number(f[2]), Linger: linger})
		return "ok"
	case "stream-send":
		return p.sendStream(f[1], number(f[2]), number(f[3]), number(f[4]))
	case "stream-flush":
		return p.flush(f[1], number(f[2]))
	case "stream-flush-twice":
		other := make(chan string)
		go func() { other <- p.flush("delivered", 20000) }()
		return p.flush("delivered", 20000) + " " + <-other
	case "stream-stats":
		s := p.stream.Stats()
		return fmt.Sprint("ok ", s.Sent, s.SentBytes, s.Waiting, s.BufferFull, s.TooLarge, s.Refused, s.Closed, s.Connections)
	case "stream-close":
		ctx, cancel := timeout(number(f[1]))
		defer cancel()
		return result(p.stream.Close(ctx))
	}
	return "unsupported"
}

func result(err error) string {
	if err != nil {
		return "error " + errorName(err)
	}
	return "ok"
}

func errorName(err error) string {
	for _, each := range []struct {
		err  error
		name string
	}{
		{bruce.ErrTopicEmpty, "TOPIC_EMPTY"},
		{bruce.ErrTopicTooLarge, "TOPIC_TOO_LARGE"},
		{bruce.ErrHeadersTooLarge, "HEADERS_TOO_LARGE"},
		{context.DeadlineExceeded, "TIMED_OUT"},
		{bruce.ErrShuttingDown, "SHUTTING_DOWN"},
		{bruce.ErrRefused, "REFUSED"},
		{fs.ErrPermission, "NO_PERMISSION"},
	} {
		if errors.Is(err, each.err) {
			return each.name
		}
	}
	return strings.ReplaceAll(err.Error(), " ", "_")
}

func timeout(millis int) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Duration(millis)*time.Millisecond)
}

func number(word string) int {
	n, err := strconv.Atoi(word)
	if err != nil {
		panic(err)
	}
	return n
}

func unhex(digits string) []byte {
	data, err := hex.DecodeString(digits)
	if err != nil {
		panic(err)
	}
	return data
}

func field(word string) []byte {
	if word == "-" {
		return nil
	}
	return unhex(word[1:])
}

func encode(f []string) string {
	m := bruce.Message{Topic: string(field(f[0])), Key: field(f[1]), Value: field(f[2]), KeepEmpty: f[5] == "1"}
	if f[3] != "." {
		millis, _ := strconv.ParseInt(f[3], 10, 64)
		m.Timestamp = time.UnixMilli(millis)
	}
	if f[4] != "." {
		key, _ := strconv.ParseUint(f[4], 10, 32)
		m.PartitionKey = bruce.Partition(uint32(key))
	}
	if f[6] != "-" {
		for _, pair := range strings.Split(f[6], ",") {
			name, value, _ := strings.Cut(pair, ":")
			h := bruce.Header{Name: string(unhex(name))}
			if value != "-" {
				h.Value = unhex(value)
			}
			m.Headers = append(m.Headers, h)
		}
	}
	data, err := m.Append(nil)
	if err != nil {
		return result(err)
	}
	return "ok " + hex.EncodeToString(data)
}

func hash(name string, key []byte) string {
	hashes := map[string]func([]byte) uint32{"murmur2": bruce.Murmur2, "crc32": bruce.CRC32, "fnv1a": bruce.FNV1a}
	return fmt.Sprint("ok ", hashes[name](key))
}

func numbered(topic string, n, size int) *bruce.Message {
	value := fmt.Sprintf("%012d", n)
	return &bruce.Message{Topic: topic, Value: []byte(value + strings.Repeat("x", size-len(value)))}
}

func (p *program) sendDatagrams(topic string, first, count, size, pauseMicros int) string {
	sent := 0
	for n := first; n < first+count; n++ {
		if p.datagrams.Send(numbered(topic, n, size)) == nil {
			sent++
		}
		time.Sleep(time.Duration(pauseMicros) * time.Microsecond)
	}
	return fmt.Sprint("ok ", sent)
}

func (p *program) waitForRoom(millis int) string {
	ctx, cancel := timeout(millis)
	defer cancel()
	err := p.datagrams.Wait(ctx)
	switch {
	case err == nil:
		return "ok 1"
	case errors.Is(err, context.DeadlineExceeded):
		return "ok 0"
	}
	return result(err)
}

func (p *program) datagramStats() string {
	s := p.datagrams.Stats()
	var pairs []string
	total := uint64(0)
	for errno, count := range s.Refused {
		pairs = append(pairs, fmt.Sprintf("%d=%d", int(errno), count))
		total += count
	}
	return fmt.Sprintf("ok %d %d %d %s", s.Sent, s.SentBytes, total, list(pairs))
}

func list(words []string) string {
	sort.Strings(words)
	if len(words) == 0 {
		return "-"
	}
	return strings.Join(words, ",")
}

func (p *program) sendStream(topic string, first, count, size int) string {
	accepted := 0
	for n := first; n < first+count; n++ {
		if p.stream.Send(numbered(topic, n, size)) == nil {
			accepted++
		}
	}
	return fmt.Sprint("ok ", accepted)
}

func (p *program) flush(level string, millis int) string {
	ctx, cancel := timeout(millis)
	defer cancel()
	levels := map[string]bruce.Level{"received": bruce.Received, "delivered": bruce.Delivered, "durable": bruce.Durable}
	o, err := p.stream.Flush(ctx, levels[level])
	var uncertain *bruce.UncertainError
	switch {
	case errors.As(err, &uncertain):
		return fmt.Sprint("error BROKEN ", uncertain.Messages)
	case err != nil:
		return fmt.Sprint("error ", errorName(err), " 0")
	}
	var reasons []string
	for reason, count := range o.Reasons {
		reasons = append(reasons, fmt.Sprintf("%s=%d", reason, count))
	}
	return fmt.Sprintf("ok %d %d %d %s", o.Received, o.Delivered, o.Discarded, list(reasons))
}
