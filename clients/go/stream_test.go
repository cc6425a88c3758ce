package bruce_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"bruce"
)

const barrierBytes = 24

func TestAFlushWithoutADaemonSaysThatThereIsNoConnection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in.stream")
	client := bruce.NewStreamClient("unix", path, bruce.StreamOptions{})
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := client.Flush(ctx, bruce.Delivered)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no connection to "+path) {
		t.Error(err)
	}
	if err := client.Close(ctx); err != nil {
		t.Error(err)
	}
}

func TestAFlushWithoutPermissionFailsAtOnce(t *testing.T) {
	directory := t.TempDir()
	if err := os.Chmod(directory, 0); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(directory, 0o700)
	if os.Geteuid() == 0 { // root needs no permission
		if err := syscall.Seteuid(40001); err != nil {
			t.Fatal(err)
		}
		defer syscall.Seteuid(0)
	}
	client := bruce.NewStreamClient("unix", filepath.Join(directory, "in.stream"), bruce.StreamOptions{})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err := client.Flush(ctx, bruce.Delivered)
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "input.unix_stream.mode") {
		t.Error(err)
	}
	if err := client.Close(ctx); err != nil {
		t.Error(err)
	}
}

func TestCloseEndsAFlushWithoutADeadline(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in.stream")
	daemon, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer daemon.Close()
	client := bruce.NewStreamClient("unix", path, bruce.StreamOptions{})
	flushed := make(chan error)
	go func() {
		_, err := client.Flush(context.Background(), bruce.Delivered)
		flushed <- err
	}()
	connection, err := daemon.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	if _, err := io.ReadFull(connection, make([]byte, barrierBytes)); err != nil {
		t.Fatal(err)
	}
	if err := client.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := <-flushed; !errors.Is(err, bruce.ErrClosed) {
		t.Fatal(err)
	}
}
