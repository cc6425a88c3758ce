package bruce

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"strconv"
)

const (
	barrierKey   = 258
	answerKey    = 259
	barrierBytes = 24
	answerBytes  = 44
	reasonBytes  = 10
)

// A Level is the stage that messages must reach before a flush returns.
type Level uint16

// The levels of a flush.
const (
	Received  Level = 0 // the daemon has the messages, which survive its restart
	Delivered Level = 1 // each one is acknowledged by Kafka, or discarded
	Durable   Level = 2 // as Delivered, or in the daemon's journal on disk
)

// The status of an answer.
const (
	statusDone = iota
	statusTimeLimit
	statusShuttingDown
)

// A Reason is the daemon's reason to discard a message.
type Reason uint16

var reasonNames = [...]string{
	1: "MALFORMED", 2: "UNSUPPORTED_API_KEY", 3: "UNSUPPORTED_VERSION", 4: "NO_MEM", 5: "BAD_TOPIC", 6: "LONG_MSG",
	7: "RATE_LIMIT", 8: "TOPIC_AUTOCREATE_FAIL", 9: "NO_AVAILABLE_PARTITIONS", 10: "KAFKA_ERROR_ACK",
	11: "DELIVERY_ATTEMPT_LIMIT", 12: "SERVER_SHUTDOWN", 13: "UNCLEAN_DISCONNECT", 14: "BUG", 15: "ABANDONED_ATTEMPT",
	16: "SENDER_NOT_ALLOWED", 17: "OVER_QUOTA", 18: "TOPIC_OVER_SHARE", 19: "SPILL_LOST", 20: "POSSIBLY_DELIVERED",
}

func (r Reason) String() string {
	if r > 0 && int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "REASON_" + strconv.Itoa(int(r))
}

// An Outcome counts the messages since the last successful flush, or since the connection was opened.
type Outcome struct {
	Received  int64
	Delivered int64 // acknowledged by Kafka
	Discarded int64
	Reasons   map[Reason]int64 // of the discarded messages
}

// minus returns the outcome since an earlier one of the same connection.
func (o Outcome) minus(before Outcome) Outcome {
	reasons := make(map[Reason]int64)
	for reason, count := range o.Reasons {
		if since := count - before.Reasons[reason]; since != 0 {
			reasons[reason] = since
		}
	}
	return Outcome{o.Received - before.Received, o.Delivered - before.Delivered, o.Discarded - before.Discarded, reasons}
}

type answer struct {
	token  uint64
	status uint16
	counts Outcome // of the connection, from its first message
}

var errForeign = errors.New("bruce: the peer is not the daemon")

func appendBarrier(buf []byte, token uint64, level Level, limitMillis int64) []byte {
	buf = binary.BigEndian.AppendUint32(buf, barrierBytes)
	buf = binary.BigEndian.AppendUint16(buf, barrierKey)
	buf = binary.BigEndian.AppendUint32(buf, 0) // ApiVersion, Flags
	buf = binary.BigEndian.AppendUint64(buf, token)
	buf = binary.BigEndian.AppendUint16(buf, uint16(level))
	return binary.BigEndian.AppendUint32(buf, uint32(max(0, min(limitMillis, math.MaxInt32))))
}

func readAnswer(r *bufio.Reader) (answer, error) {
	var head [answerBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return answer{}, err
	}
	reasons := binary.BigEndian.Uint16(head[42:])
	size := binary.BigEndian.Uint32(head[:])
	if binary.BigEndian.Uint16(head[4:]) != answerKey || size != answerBytes+reasonBytes*uint32(reasons) {
		return answer{}, errForeign
	}
	counts := Outcome{
		Received:  int64(binary.BigEndian.Uint64(head[18:])),
		Delivered: int64(binary.BigEndian.Uint64(head[26:])),
		Discarded: int64(binary.BigEndian.Uint64(head[34:])),
		Reasons:   make(map[Reason]int64, reasons),
	}
	for ; reasons > 0; reasons-- {
		var pair [reasonBytes]byte
		if _, err := io.ReadFull(r, pair[:]); err != nil {
			return answer{}, err
		}
		counts.Reasons[Reason(binary.BigEndian.Uint16(pair[:]))] = int64(binary.BigEndian.Uint64(pair[2:]))
	}
	return answer{binary.BigEndian.Uint64(head[8:]), binary.BigEndian.Uint16(head[16:]), counts}, nil
}
