package bruce

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// MaxDatagram is the longest datagram that a daemon accepts by default (input.max_datagram_size).
const MaxDatagram = 64 << 10

const (
	reconnectAfter = time.Second
	noticeAfter    = 50 * time.Millisecond // until Wait sees that its context is done, or that the client is closed
	pollOut        = 4
)

// ErrClosed is the error of a client that was closed.
var ErrClosed = errors.New("bruce: the client is closed")

// DatagramOptions are the settings of a [DatagramClient]; the zero value has the defaults.
type DatagramOptions struct {
	MaxMessage int // 0: MaxDatagram
	SendBuffer int // SO_SNDBUF in bytes, for messages beyond net.core.wmem_default
}

// DatagramStats counts messages: offered = Sent + sum of Refused + Invalid.
type DatagramStats struct {
	Sent      uint64
	SentBytes uint64
	Refused   map[syscall.Errno]uint64 // by the kernel; EMSGSIZE also counts messages longer than MaxMessage
	Invalid   uint64                   // messages that the protocol cannot express
}

// A DatagramClient sends datagrams from a socket without a name. A restart of the daemon goes unnoticed, because the client
// connects again when the daemon has closed its socket, and every second, because another socket may have the path.
type DatagramClient struct {
	max     int
	buffers sync.Pool
	created time.Time

	closing sync.RWMutex // a closed descriptor may become another file
	fd      int
	waits   chan struct{} // has room for one Wait, because each takes a thread

	connectAt                atomic.Int64 // a duration since created; 0: the last attempt failed
	sent, sentBytes, invalid atomic.Uint64

	mu      sync.Mutex
	daemon  *syscall.SockaddrUnix // which a system call writes to
	refused map[syscall.Errno]uint64
}

// NewDatagramClient opens a client for the daemon's input.unix_datagram.path. The daemon need not run yet.
func NewDatagramClient(path string, options DatagramOptions) (*DatagramClient, error) {
	if n := len(path); n == 0 || n > 107 {
		return nil, &os.PathError{Op: "bruce", Path: path, Err: syscall.ENAMETOOLONG}
	}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if options.SendBuffer > 0 {
		if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, options.SendBuffer); err != nil {
			_ = syscall.Close(fd)
			return nil, os.NewSyscallError("setsockopt", err)
		}
	}
	c := &DatagramClient{
		max:     options.MaxMessage,
		created: time.Now(),
		fd:      fd,
		waits:   make(chan struct{}, 1),
		daemon:  &syscall.SockaddrUnix{Name: path},
		refused: make(map[syscall.Errno]uint64),
	}
	if c.max == 0 {
		c.max = MaxDatagram
	}
	c.buffers.New = func() any { return new([]byte) }
	return c, nil
}

// Send sends one message without blocking. The error wraps a [syscall.Errno] if the kernel refuses it: EAGAIN for a full
// queue of the daemon, ENOENT or ECONNREFUSED without a daemon.
func (c *DatagramClient) Send(m *Message) error {
	size, err := m.Size()
	switch {
	case errors.Is(err, ErrMessageTooLarge) || size > c.max:
		c.countRefused(syscall.EMSGSIZE)
		return ErrMessageTooLarge
	case err != nil:
		c.invalid.Add(1)
		return err
	}
	buf := c.buffers.Get().(*[]byte)
	defer c.buffers.Put(buf)
	*buf = m.append((*buf)[:0], size)
	return c.send(*buf)
}

func (c *DatagramClient) send(message []byte) error {
	c.closing.RLock()
	defer c.closing.RUnlock()
	if c.fd < 0 {
		return ErrClosed
	}
	if call, err := c.transmit(message); err != 0 {
		c.countRefused(err)
		return os.NewSyscallError(call, err)
	}
	c.sent.Add(1)
	c.sentBytes.Add(uint64(len(message)))
	return nil
}

// transmit returns the failed system call with its error.
func (c *DatagramClient) transmit(message []byte) (string, syscall.Errno) {
	if err := c.connectIfDue(); err != 0 {
		return "connect", err
	}
	err := c.write(message)
	switch err {
	case syscall.ECONNREFUSED, syscall.EPIPE, syscall.ENOTCONN, syscall.ECONNRESET: // the daemon has closed its socket
		if err := c.connect(); err != 0 {
			return "connect", err
		}
		err = c.write(message)
	}
	return "send", err
}

func (c *DatagramClient) connectIfDue() syscall.Errno {
	if int64(time.Since(c.created)) < c.connectAt.Load() {
		return 0
	}
	return c.connect()
}

func (c *DatagramClient) connect() syscall.Errno {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connectAt.Store(0)
	if err, _ := syscall.Connect(c.fd, c.daemon).(syscall.Errno); err != 0 {
		return err
	}
	c.connectAt.Store(int64(time.Since(c.created) + reconnectAfter))
	return 0
}

func (c *DatagramClient) write(message []byte) syscall.Errno {
	err := syscall.EINTR
	for err == syscall.EINTR {
		err, _ = syscall.Sendto(c.fd, message, syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, nil).(syscall.Errno)
	}
	return err
}

// Wait waits until the daemon's queue has room and three quarters of the send buffer are free, or there is no daemon. Its
// error wraps that of ctx, or [context.DeadlineExceeded]; a send may succeed nevertheless. Another sender may be faster, so
// send in a loop. Close ends a wait with [ErrClosed].
func (c *DatagramClient) Wait(ctx context.Context) error {
	select {
	case c.waits <- struct{}{}:
	default: // only now, because Wait looks at the queue even if ctx is done
		select {
		case c.waits <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer func() { <-c.waits }()
	for {
		limit := noticeAfter
		if deadline, ok := ctx.Deadline(); ok {
			limit = max(0, min(limit, time.Until(deadline)))
		}
		if hasRoom, err := c.poll(limit); hasRoom || err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if limit == 0 {
			return context.DeadlineExceeded
		}
	}
}

// poll is one step of Wait.
func (c *DatagramClient) poll(limit time.Duration) (bool, error) {
	c.closing.RLock()
	fd, err := c.fd, syscall.Errno(0)
	if fd >= 0 {
		err = c.connectIfDue() // without a connection, the kernel knows no queue
	}
	c.closing.RUnlock()
	switch {
	case fd < 0:
		return false, ErrClosed
	case err != 0:
		return true, nil
	}
	room := struct {
		fd              int32
		events, revents int16
	}{fd: int32(fd), events: pollOut}
	timeout := syscall.NsecToTimespec(int64(limit))
	ready, _, err := syscall.Syscall6(syscall.SYS_PPOLL,
		uintptr(unsafe.Pointer(&room)), 1, uintptr(unsafe.Pointer(&timeout)), 0, 0, 0)
	if err != 0 && err != syscall.EINTR {
		return false, os.NewSyscallError("ppoll", err)
	}
	return err == 0 && ready > 0, nil
}

func (c *DatagramClient) countRefused(err syscall.Errno) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused[err]++
}

// Stats returns the counts so far.
func (c *DatagramClient) Stats() DatagramStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	refused := make(map[syscall.Errno]uint64, len(c.refused))
	for err, count := range c.refused {
		refused[err] = count
	}
	return DatagramStats{c.sent.Load(), c.sentBytes.Load(), refused, c.invalid.Load()}
}

// Close closes the socket. Sent messages stay sent.
func (c *DatagramClient) Close() error {
	c.closing.Lock()
	fd := c.fd
	c.fd = -1
	c.closing.Unlock()
	if fd < 0 {
		return ErrClosed
	}
	c.waits <- struct{}{} // no Wait uses the descriptor
	defer func() { <-c.waits }()
	return os.NewSyscallError("close", syscall.Close(fd))
}
