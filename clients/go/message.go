package bruce

import (
	"encoding/binary"
	"errors"
	"math"
	"time"
)

// Limits of the protocol.
const (
	MaxTopic   = math.MaxInt16
	MaxHeaders = math.MaxUint16 // bytes of all record headers of a message
)

// Errors of messages that the protocol cannot express.
var (
	ErrTopicEmpty      = errors.New("bruce: the topic is empty")
	ErrTopicTooLarge   = errors.New("bruce: the topic has more than 32767 bytes")
	ErrHeadersTooLarge = errors.New("bruce: the record headers have more than 65535 bytes")
	ErrMessageTooLarge = errors.New("bruce: the message is longer than the daemon accepts")
)

const (
	anyPartitionKey = 256
	partitionKeyKey = 257

	plainVersion   = 0
	headersVersion = 1
	nullsVersion   = 2

	anyPartitionBytes = 28
	headerBytes       = 6
	null              = math.MaxUint32 // -1
)

// A Header is a Kafka record header. A nil value is null.
type Header struct {
	Name  string
	Value []byte
}

// A Message becomes a Kafka record.
type Message struct {
	Topic string
	Key   []byte // nil: no key
	Value []byte // nil: null, a tombstone

	// PartitionKey, modulo the number of partitions, selects the partition. If it is nil, the daemon chooses, or the
	// topic's partitioner. See [Partition].
	PartitionKey *uint32

	Headers   []Header
	Timestamp time.Time // zero: the present time

	// KeepEmpty keeps an empty Key or Value, which is not nil, from becoming null. Without it, an empty key becomes null,
	// and the daemon's configuration decides about an empty value.
	KeepEmpty bool
}

// Partition returns a pointer to a partition key, for [Message].PartitionKey:
//
//	message.PartitionKey = bruce.Partition(bruce.Murmur2(key))
func Partition(key uint32) *uint32 { return &key }

// version returns the lowest version that can express the message, because older daemons refuse later ones.
func (m *Message) version() int {
	hasEmpty := len(m.Value) == 0 || (m.Key != nil && len(m.Key) == 0)
	switch {
	case m.Value == nil || (m.KeepEmpty && hasEmpty):
		return nullsVersion
	case len(m.Headers) > 0:
		return headersVersion
	default:
		return plainVersion
	}
}

func (m *Message) headersSize() (int, error) {
	size := 0
	for _, h := range m.Headers {
		size += headerBytes + len(h.Name) + len(h.Value)
		if len(h.Name) > MaxTopic || size > MaxHeaders {
			return 0, ErrHeadersTooLarge
		}
	}
	return size, nil
}

// Size returns the number of bytes of the encoded message.
func (m *Message) Size() (int, error) {
	headers, err := m.headersSize()
	switch {
	case err != nil:
		return 0, err
	case m.Topic == "":
		return 0, ErrTopicEmpty
	case len(m.Topic) > MaxTopic:
		return 0, ErrTopicTooLarge
	}
	size := anyPartitionBytes + len(m.Topic) + len(m.Key) + len(m.Value)
	if m.PartitionKey != nil {
		size += 4
	}
	if m.version() != plainVersion {
		size += 4 + headers
	}
	if size > math.MaxInt32 {
		return 0, ErrMessageTooLarge
	}
	return size, nil
}

// Append appends the encoded message to buf.
func (m *Message) Append(buf []byte) ([]byte, error) {
	size, err := m.Size()
	if err != nil {
		return buf, err
	}
	return m.append(buf, size), nil
}

func (m *Message) append(buf []byte, size int) []byte {
	version := m.version()
	buf = binary.BigEndian.AppendUint32(buf, uint32(size))
	buf = m.appendKind(buf, version)
	buf = binary.BigEndian.AppendUint16(buf, uint16(len(m.Topic)))
	buf = append(buf, m.Topic...)
	buf = binary.BigEndian.AppendUint64(buf, uint64(m.timestamp()))
	buf = appendField(buf, m.Key, version == nullsVersion && len(m.Key) == 0 && (m.Key == nil || !m.KeepEmpty))
	buf = appendField(buf, m.Value, m.Value == nil)
	if version == plainVersion {
		return buf
	}
	return m.appendHeaders(buf)
}

func (m *Message) appendKind(buf []byte, version int) []byte {
	key := uint16(anyPartitionKey)
	if m.PartitionKey != nil {
		key = partitionKeyKey
	}
	buf = binary.BigEndian.AppendUint16(buf, key)
	buf = binary.BigEndian.AppendUint16(buf, uint16(version))
	buf = binary.BigEndian.AppendUint16(buf, 0) // Flags
	if m.PartitionKey != nil {
		buf = binary.BigEndian.AppendUint32(buf, *m.PartitionKey)
	}
	return buf
}

func (m *Message) timestamp() int64 {
	if m.Timestamp.IsZero() {
		return time.Now().UnixMilli()
	}
	return m.Timestamp.UnixMilli()
}

func (m *Message) appendHeaders(buf []byte) []byte {
	size, _ := m.headersSize()
	buf = binary.BigEndian.AppendUint32(buf, uint32(size))
	for _, h := range m.Headers {
		buf = binary.BigEndian.AppendUint16(buf, uint16(len(h.Name)))
		buf = append(buf, h.Name...)
		buf = appendField(buf, h.Value, h.Value == nil)
	}
	return buf
}

func appendField(buf, field []byte, isNull bool) []byte {
	if isNull {
		return binary.BigEndian.AppendUint32(buf, null)
	}
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(field)))
	return append(buf, field...)
}
