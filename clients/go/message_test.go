package bruce_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"
	"time"

	"bruce"
)

type vectors struct {
	Messages []struct {
		Name         string
		Topic        json.RawMessage
		Key          json.RawMessage
		Value        json.RawMessage
		PartitionKey *uint32 `json:"partition_key"`
		TimestampMS  int64   `json:"timestamp_ms"`
		Headers      [][2]json.RawMessage
		KeepEmpty    bool `json:"keep_empty"`
		Message      string
		SHA256       string
		Error        string
	}
	Hashes []struct {
		Partitioner  string
		Key          string
		PartitionKey uint32 `json:"partition_key"`
	}
}

func readVectors(t *testing.T) (v vectors) {
	t.Helper()
	data, err := os.ReadFile("../conformance/vectors.json")
	if err == nil {
		err = json.Unmarshal(data, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// field decodes null, digits, or [byte, times].
func field(t *testing.T, raw json.RawMessage) []byte {
	t.Helper()
	var digits *string
	if json.Unmarshal(raw, &digits) == nil {
		if digits == nil {
			return nil
		}
		return unhex(t, *digits)
	}
	var repeated [2]any
	if err := json.Unmarshal(raw, &repeated); err != nil {
		t.Fatal(err)
	}
	return bytes.Repeat(unhex(t, repeated[0].(string)), int(repeated[1].(float64)))
}

func unhex(t *testing.T, digits string) []byte {
	t.Helper()
	data, err := hex.DecodeString(digits)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestMessagesAreEncodedLikeTheVectors(t *testing.T) {
	for _, v := range readVectors(t).Messages {
		t.Run(v.Name, func(t *testing.T) {
			m := bruce.Message{
				Topic:        string(field(t, v.Topic)),
				Key:          field(t, v.Key),
				Value:        field(t, v.Value),
				PartitionKey: v.PartitionKey,
				Timestamp:    time.UnixMilli(v.TimestampMS),
				KeepEmpty:    v.KeepEmpty,
			}
			for _, h := range v.Headers {
				m.Headers = append(m.Headers, bruce.Header{Name: string(field(t, h[0])), Value: field(t, h[1])})
			}
			data, err := m.Append(nil)
			sum := sha256.Sum256(data)
			switch {
			case v.Error != "" && err == nil:
				t.Error("no error")
			case v.Error == "" && err != nil:
				t.Error(err)
			case v.Message != "" && v.Message != hex.EncodeToString(data):
				t.Errorf("%x", data)
			case v.SHA256 != "" && v.SHA256 != hex.EncodeToString(sum[:]):
				t.Errorf("%d other bytes", len(data))
			}
		})
	}
}

func TestKeysAreHashedLikeTheVectors(t *testing.T) {
	hashes := map[string]func([]byte) uint32{"murmur2": bruce.Murmur2, "crc32": bruce.CRC32, "fnv1a": bruce.FNV1a}
	for _, v := range readVectors(t).Hashes {
		if got := hashes[v.Partitioner](unhex(t, v.Key)); got != v.PartitionKey {
			t.Errorf("%s of %s: %d, not %d", v.Partitioner, v.Key, got, v.PartitionKey)
		}
	}
}
