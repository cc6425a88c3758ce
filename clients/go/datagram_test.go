package bruce_test

import (
	"context"
	"errors"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"bruce"
)

const (
	soon = 100 * time.Millisecond // a wait has begun
	late = 10 * time.Second
)

// fullQueue returns a client and its daemon's socket, which has no room.
func fullQueue(t *testing.T) (*bruce.DatagramClient, int) {
	path := filepath.Join(t.TempDir(), "in.dgram")
	daemon, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(daemon) })
	if err := syscall.Bind(daemon, &syscall.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	client, err := bruce.NewDatagramClient(path, bruce.DatagramOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	for err == nil {
		err = client.Send(&bruce.Message{Topic: "t"})
	}
	if !errors.Is(err, syscall.EAGAIN) {
		t.Fatal(err)
	}
	return client, daemon
}

// waitTwice returns the results of two goroutines that wait.
func waitTwice(client *bruce.DatagramClient, ctx context.Context) <-chan error {
	results := make(chan error, 2)
	for i := 0; i < 2; i++ {
		go func() { results <- client.Wait(ctx) }()
	}
	time.Sleep(soon)
	return results
}

func expectTwice(t *testing.T, results <-chan error, expected error) {
	t.Helper()
	for i := 0; i < 2; i++ {
		select {
		case err := <-results:
			if !errors.Is(err, expected) {
				t.Error(err)
			}
		case <-time.After(late):
			t.Fatal("no end")
		}
	}
}

func TestSendsGoOnDuringAWait(t *testing.T) {
	client, daemon := fullQueue(t)
	results := waitTwice(client, context.Background())
	began := time.Now()
	for i := 0; i < 50; i++ {
		time.Sleep(time.Millisecond) // in which the waits go on
		if err := client.Send(&bruce.Message{Topic: "t"}); !errors.Is(err, syscall.EAGAIN) {
			t.Error(err)
		}
	}
	if took := time.Since(began); took > time.Second || len(results) > 0 {
		t.Error(took, len(results))
	}
	if err := syscall.SetNonblock(daemon, true); err != nil {
		t.Fatal(err)
	}
	for err := error(nil); err == nil; { // a part is not enough where the send buffer is full before the queue
		_, err = syscall.Read(daemon, make([]byte, 100))
	}
	expectTwice(t, results, nil)
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	client, _ := fullQueue(t)
	ctx, cancel := context.WithCancel(context.Background())
	results := waitTwice(client, ctx)
	cancel()
	expectTwice(t, results, context.Canceled)
}

func TestCloseEndsAWait(t *testing.T) {
	client, _ := fullQueue(t)
	results := waitTwice(client, context.Background())
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	if socket, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM, 0); err != nil { // has the descriptor's number
		t.Error(err)
	} else {
		defer syscall.Close(socket)
	}
	expectTwice(t, results, bruce.ErrClosed)
}
