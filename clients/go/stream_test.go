package bruce_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bruce"
)

const barrierBytes = 24

func TestCloseEndsWithItsContextWhileItConnects(t *testing.T) {
	client := bruce.NewStreamClient("tcp", fullListener(t), bruce.StreamOptions{})
	for i := 0; i < 2; i++ {
		if err := client.Send(&bruce.Message{Topic: "t", Value: []byte("v")}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	closed := make(chan error)
	go func() { closed <- client.Close(ctx) }()
	for !errors.Is(client.Send(&bruce.Message{Topic: "t"}), bruce.ErrClosed) {
		time.Sleep(time.Millisecond)
	}
	if err := client.Close(ctx); err != bruce.ErrClosed {
		t.Error(err)
	}
	err := <-closed
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "messages were not sent") {
		t.Error(err)
	}
	if waited := time.Since(began); waited > 3*time.Second {
		t.Error(waited)
	}
}

// fullListener returns the address of a listener that answers no further attempt to connect.
func fullListener(t *testing.T) string {
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(socket) })
	if err := errors.Join(syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(socket, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(socket)
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(name.(*syscall.SockaddrInet4).Port))
	for {
		connection, err := net.DialTimeout("tcp", address, 200*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { _ = connection.Close() })
	}
}

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
