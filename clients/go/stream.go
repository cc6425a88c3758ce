package bruce

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand"
	"net"
	"sync"
	"time"
)

// MaxStreamMessage is the longest message that a daemon accepts on a stream by default (input.max_stream_size + 4).
const MaxStreamMessage = 2<<20 + 4

const (
	defaultBuffer = 1 << 20
	writeSize     = 64 << 10
	firstBackoff  = 50 * time.Millisecond
	maxBackoff    = 5 * time.Second
	dialTimeout   = 5 * time.Second
	maxBreaks     = 5 // consecutive connections that may break within the same message
)

// Errors of a [StreamClient].
var (
	ErrBufferFull   = errors.New("bruce: the client's buffer is full")
	ErrShuttingDown = errors.New("bruce: the daemon is shutting down; it delivers the rest after its restart")
	ErrRefused      = errors.New("bruce: the daemon refused the flush: it keeps no journal, or is too old")
)

// An UncertainError is the error of a flush after a connection broke. The first Messages that no flush of this level confirmed
// were written to that connection; each may be delivered or not, and the client does not send them again. Later messages
// belong to the next flush.
type UncertainError struct {
	Messages int64
}

func (e *UncertainError) Error() string {
	return fmt.Sprintf("bruce: the connection broke; of the %d messages written to it, an unknown number arrived", e.Messages)
}

// StreamOptions are the settings of a [StreamClient]; the zero value has the defaults.
type StreamOptions struct {
	Buffer     int           // bytes of messages that may wait for the daemon; 0: 1 MiB
	MaxMessage int           // 0: MaxStreamMessage
	Linger     time.Duration // time to collect messages for one write
}

// StreamStats counts messages: offered = Sent + Waiting + sum of the others.
type StreamStats struct {
	Sent        uint64 // completely written to a connection
	SentBytes   uint64
	Waiting     uint64 // in the buffer
	BufferFull  uint64 // refused by Send
	TooLarge    uint64 // refused by Send
	Invalid     uint64 // refused by Send
	Refused     uint64 // the daemon closed five connections within this message
	Closed      uint64 // in the buffer when the client was closed
	Connections uint64
}

// A StreamClient sends messages on a stream connection, which a goroutine opens, writes, and opens again after a break.
type StreamClient struct {
	network, address string
	options          StreamOptions

	wake    chan struct{}
	due     chan struct{}   // has a token: the messages wait for no linger
	life    context.Context // over: give up the rest
	abort   context.CancelFunc
	ended   chan struct{} // closed: the writer has returned
	flushes chan struct{} // holds one token; a flush has it

	mu           sync.Mutex
	pending      []byte // whole messages that the writer does not have yet
	waitingBytes int
	requests     []*flushRequest // that the writer does not have yet
	lost         levelCounts     // of ended connections: messages that may not have reached the level
	uncertain    levelCounts     // the lost messages that no error has reported
	closing      bool
	wasDenied    bool          // the last attempt to connect failed for want of permission
	denied       error         // of the last attempt, if the one before it was denied, too
	backoff      time.Duration // before the next attempt to connect, from the start of the last one
	stats        StreamStats

	// The writer's own.
	buf     []byte // whole messages; `written` bytes of the first one are written
	spare   []byte // the memory of buf, for the next pending messages
	written int
	link    *link
	tried   time.Time // the start of the last attempt to connect
	breaks  int
	token   uint64
}

// A link is one connection. The client's mutex guards its counts.
type link struct {
	net.Conn
	hasEnded  bool
	messages  int64 // completely written
	flushed   Outcome
	confirmed levelCounts
	awaiting  map[uint64]*flushRequest
}

// levelCounts are numbers of messages by [Level].
type levelCounts [Durable + 1]int64

// confirm notes that messages have reached a level, and so all weaker ones.
func (c *levelCounts) confirm(level Level, messages int64) {
	c[Received], c[level] = messages, messages
	if level == Delivered {
		c[Durable] = messages
	}
}

type flushRequest struct {
	level      Level
	deadline   time.Time // zero: none
	lostBefore int64     // messages of the level at the call of Flush
	done       chan struct{}
	isOver     bool // `outcome` and `err` are set, or the flush gave up
	outcome    Outcome
	err        error
}

func (r *flushRequest) finish(outcome Outcome, err error) {
	if !r.isOver {
		r.isOver, r.outcome, r.err = true, outcome, err
		close(r.done)
	}
}

// NewStreamClient creates a client for the daemon's input.unix_stream.path (network "unix"), or for its input.tcp.port
// (network "tcp", address "127.0.0.1:9000"). The first message connects.
func NewStreamClient(network, address string, options StreamOptions) *StreamClient {
	if options.Buffer == 0 {
		options.Buffer = defaultBuffer
	}
	if options.MaxMessage == 0 {
		options.MaxMessage = MaxStreamMessage
	}
	life, abort := context.WithCancel(context.Background())
	c := &StreamClient{
		network: network,
		address: address,
		options: options,
		wake:    make(chan struct{}, 1),
		due:     make(chan struct{}, 1),
		life:    life,
		abort:   abort,
		ended:   make(chan struct{}),
		flushes: make(chan struct{}, 1),
	}
	go c.run()
	return c
}

// Send accepts a message into the buffer, and never waits for the daemon.
func (c *StreamClient) Send(m *Message) error {
	size, err := m.Size()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closing:
		c.stats.Closed++
		return ErrClosed
	case errors.Is(err, ErrMessageTooLarge) || size > c.options.MaxMessage:
		c.stats.TooLarge++
		return ErrMessageTooLarge
	case err != nil:
		c.stats.Invalid++
		return err
	case c.waitingBytes > 0 && c.waitingBytes+size > c.options.Buffer:
		c.stats.BufferFull++
		return ErrBufferFull
	}
	c.pending = m.append(c.pending, size)
	c.waitingBytes += size
	c.stats.Waiting++
	if len(c.pending) >= min(writeSize, c.options.Buffer/2) {
		put(c.due)
	}
	c.signal()
	return nil
}

func (c *StreamClient) signal() {
	put(c.wake)
}

func put(tokens chan<- struct{}) {
	select {
	case tokens <- struct{}{}:
	default:
	}
}

// Stats returns the counts so far.
func (c *StreamClient) Stats() StreamStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// Flush waits until all earlier messages have reached the level.
//
// Its error wraps that of ctx, or [context.DeadlineExceeded], if they have not in time: flush again for the outcome.
// [ErrShuttingDown] is similar. After an [UncertainError], the next flush concerns later messages only. Close ends a flush with
// [ErrClosed]. Without permission to connect, which no wait cures, the error wraps [fs.ErrPermission].
func (c *StreamClient) Flush(ctx context.Context, level Level) (Outcome, error) {
	if level > Durable {
		return Outcome{}, ErrRefused
	}
	request := &flushRequest{level: level, lostBefore: c.lostMessages(level), done: make(chan struct{})}
	select {
	case c.flushes <- struct{}{}:
		defer func() { <-c.flushes }()
	case <-ctx.Done():
		return Outcome{}, ctx.Err()
	}
	request.deadline, _ = ctx.Deadline()
	if err := c.register(request); err != nil {
		return Outcome{}, err
	}
	select {
	case <-request.done:
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	request.finish(Outcome{}, c.explain(ctx.Err()))
	return request.outcome, request.err
}

// explain adds to the error of a flush that there is no connection.
func (c *StreamClient) explain(err error) error {
	if err == nil || c.link != nil {
		return err
	}
	return fmt.Errorf("bruce: no connection to %s: %w", c.address, err)
}

func (c *StreamClient) register(request *flushRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return ErrClosed
	}
	if err := c.takeError(request); err != nil {
		return err
	}
	c.requests = append(c.requests, request)
	put(c.due)
	c.signal()
	return nil
}

func (c *StreamClient) lostMessages(level Level) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost[level]
}

// takeError returns the error for the messages that may not have reached the level; others may be left for a stronger one.
// While a flush waits for another one, that one may report the error for both.
func (c *StreamClient) takeError(request *flushRequest) error {
	unreported := c.uncertain[request.level]
	for level := range c.uncertain {
		c.uncertain[level] -= min(c.uncertain[level], unreported)
	}
	if messages := max(unreported, c.lost[request.level]-request.lostBefore); messages > 0 {
		return &UncertainError{messages}
	}
	return nil
}

// Close writes the buffer until ctx is done, and closes the connection. The error tells how many messages were dropped;
// only a Flush before it tells what became of the others. A second call returns [ErrClosed] at once.
func (c *StreamClient) Close(ctx context.Context) error {
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		return ErrClosed
	}
	c.closing = true
	if c.stats.Waiting == 0 && c.link == nil {
		c.abort() // only flushes wait for a connection
	}
	put(c.due)
	c.signal()
	c.mu.Unlock()
	select {
	case <-c.ended:
	case <-ctx.Done():
	}
	c.abort()
	c.hangUp()
	<-c.ended
	c.mu.Lock()
	defer c.mu.Unlock()
	if lost := c.stats.Waiting; lost > 0 {
		c.stats.Waiting = 0
		c.stats.Closed += lost
		return fmt.Errorf("bruce: %d messages were not sent before the client closed: %w", lost, ctx.Err())
	}
	return nil
}

// hangUp ends a write that waits for the daemon.
func (c *StreamClient) hangUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link != nil {
		_ = c.link.Close()
	}
}

// --- the writer --------------------------------------------------------------------------------------------------------

func (c *StreamClient) run() {
	defer close(c.ended)
	defer c.failRequests()
	for {
		requests, isClosing := c.collect()
		switch {
		case len(c.buf) == 0 && len(requests) == 0 && isClosing:
			c.disconnect()
			return
		case len(c.buf) == 0 && len(requests) == 0:
			<-c.wake
			c.linger()
		case !c.connect() || !c.writeMessages() || !c.writeBarriers(requests):
			c.disconnect()
			c.giveBack(requests)
			if c.isAborted() {
				return
			}
		}
	}
}

// failRequests ends the flushes that wait when the client is closed.
func (c *StreamClient) failRequests() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, request := range c.requests {
		request.finish(Outcome{}, ErrClosed)
	}
	c.requests = nil
}

// collect moves the pending messages to the writer's buffer. The requests concern these and earlier messages.
func (c *StreamClient) collect() (requests []*flushRequest, isClosing bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link != nil && c.link.hasEnded {
		c.disconnectLocked()
	}
	if len(c.buf) == 0 {
		c.buf, c.pending, c.spare = c.pending, c.spare[:0], c.pending
	} else {
		c.buf, c.pending = append(c.buf, c.pending...), c.pending[:0]
	}
	requests, c.requests = c.requests, nil
	select {
	case <-c.due:
	default:
	}
	return requests, c.closing
}

func (c *StreamClient) linger() {
	if c.options.Linger > 0 {
		c.sleep(c.options.Linger, c.due)
	}
}

// sleep ends early if the client is aborted, or with a token.
func (c *StreamClient) sleep(pause time.Duration, end <-chan struct{}) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-end:
	case <-c.life.Done():
	}
}

func (c *StreamClient) isAborted() bool {
	return c.life.Err() != nil
}

// connect opens a connection if there is none and the pause after the last attempt is over.
func (c *StreamClient) connect() bool {
	if c.link != nil {
		return true
	}
	c.pause()
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(c.life, c.network, c.address)
	c.noteDenial(err)
	if err != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isAborted() { // hangUp, which ends the writes to a connection, may have come before
		_ = conn.Close()
		return false
	}
	c.link = &link{Conn: conn, awaiting: make(map[uint64]*flushRequest)}
	c.stats.Connections++
	go c.readAnswers(c.link)
	return true
}

// noteDenial notes a missing permission for flushes at the second denial in a row, because a daemon that starts sets the
// owner after it creates the socket. The pause stays short, so that flushes fail soon.
func (c *StreamClient) noteDenial(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wasDenied := c.wasDenied
	c.denied, c.wasDenied = nil, errors.Is(err, fs.ErrPermission)
	if c.wasDenied {
		c.backoff = firstBackoff
	}
	if c.wasDenied && wasDenied {
		c.denied = fmt.Errorf("bruce: no permission to connect to %s: senders need write permission on the socket "+
			"(input.unix_stream.mode, such as \"0222\") and access to its directory: %w", c.address, err)
	}
}

// pause waits for the next attempt to connect. It counts from the start of the last one, also if that one succeeded: a
// daemon may close each connection at once.
func (c *StreamClient) pause() {
	c.mu.Lock()
	pause := c.backoff/2 + time.Duration(rand.Int63n(int64(c.backoff/2)+1))
	c.backoff = min(max(2*c.backoff, firstBackoff), maxBackoff)
	c.mu.Unlock()
	c.sleep(time.Until(c.tried.Add(pause)), nil)
	c.tried = time.Now()
}

func (c *StreamClient) writeMessages() bool {
	for len(c.buf) > 0 {
		n, err := c.link.Write(c.buf[c.written:min(len(c.buf), c.written+writeSize)])
		c.onWritten(n)
		if err != nil {
			c.onBreak()
			return false
		}
	}
	return true
}

// onWritten removes the messages that n more bytes complete.
func (c *StreamClient) onWritten(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written += n
	done := 0
	for len(c.buf) > done {
		size := int(binary.BigEndian.Uint32(c.buf[done:]))
		if c.written < done+size {
			break
		}
		done += size
		c.link.messages++
		c.removeFirst(size)
		c.stats.Sent++
		c.stats.SentBytes += uint64(size)
	}
	if done > 0 {
		c.breaks = 0
		c.backoff = firstBackoff
		c.written -= done
		c.buf = c.buf[done:]
	}
}

func (c *StreamClient) removeFirst(size int) {
	c.waitingBytes -= size
	c.stats.Waiting--
}

// onBreak goes back to the start of a partly written message, and drops it if it is the cause.
func (c *StreamClient) onBreak() {
	if c.written == 0 {
		c.breaks = 0
		return
	}
	c.written = 0
	if c.breaks++; c.breaks < maxBreaks {
		return
	}
	c.breaks = 0
	c.mu.Lock()
	defer c.mu.Unlock()
	size := int(binary.BigEndian.Uint32(c.buf))
	c.buf = c.buf[size:]
	c.removeFirst(size)
	c.stats.Refused++
}

func (c *StreamClient) writeBarriers(requests []*flushRequest) bool {
	for _, request := range requests {
		limit := int64(math.MaxInt32)
		if !request.deadline.IsZero() {
			limit = time.Until(request.deadline).Milliseconds() / 10 * 9 // the rest is for the transfer
		}
		if !c.expectAnswer(request) {
			continue
		}
		if _, err := c.link.Write(appendBarrier(nil, c.token, request.level, limit)); err != nil {
			return false
		}
	}
	return true
}

func (c *StreamClient) expectAnswer(request *flushRequest) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token++
	if !request.isOver {
		c.link.awaiting[c.token] = request
	}
	return !request.isOver
}

// --- the end of a connection -------------------------------------------------------------------------------------------

func (c *StreamClient) disconnect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disconnectLocked()
}

// disconnectLocked counts the messages whose outcome no later connection reports. Flushes that wait for them fail; others
// are asked again on the next connection.
func (c *StreamClient) disconnectLocked() {
	if c.link == nil {
		return
	}
	ended := c.link
	c.link = nil
	_ = ended.Close()
	for level, confirmed := range ended.confirmed {
		c.lost[level] += ended.messages - confirmed
		c.uncertain[level] += ended.messages - confirmed
	}
	unanswered := c.requests
	c.requests = nil
	for _, request := range ended.awaiting {
		unanswered = append(unanswered, request)
	}
	for _, request := range unanswered {
		c.retry(request)
	}
}

// giveBack keeps requests whose barriers were not written.
func (c *StreamClient) giveBack(requests []*flushRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := make(map[*flushRequest]bool)
	for _, request := range c.requests {
		known[request] = true
	}
	for _, request := range requests {
		if !known[request] {
			c.retry(request)
		}
	}
}

func (c *StreamClient) retry(request *flushRequest) {
	if request.isOver {
		return
	}
	if err := c.takeError(request); err != nil {
		request.finish(Outcome{}, err)
	} else if c.denied != nil {
		request.finish(Outcome{}, c.denied)
	} else {
		c.requests = append(c.requests, request)
	}
}

// --- the reader of a connection ----------------------------------------------------------------------------------------

func (c *StreamClient) readAnswers(from *link) {
	r := bufio.NewReader(from)
	for {
		a, err := readAnswer(r)
		c.mu.Lock()
		if err != nil {
			c.onReadError(from, err)
			c.mu.Unlock()
			return
		}
		c.settle(from, a)
		c.mu.Unlock()
	}
}

// onReadError leaves the rest to the writer, which alone knows the number of written messages.
func (c *StreamClient) onReadError(from *link, err error) {
	if errors.Is(err, errForeign) {
		for _, request := range from.awaiting {
			request.finish(Outcome{}, errForeign)
		}
	}
	from.hasEnded = true
	_ = from.Close()
	c.signal()
}

func (c *StreamClient) settle(from *link, a answer) {
	c.backoff = firstBackoff
	request := from.awaiting[a.token]
	delete(from.awaiting, a.token)
	if request == nil || request.isOver {
		return
	}
	outcome := a.counts.minus(from.flushed)
	switch a.status {
	case statusDone:
		from.flushed = a.counts
		from.confirmed.confirm(request.level, a.counts.Received)
		request.finish(outcome, nil)
	case statusTimeLimit:
		request.finish(outcome, context.DeadlineExceeded)
	case statusShuttingDown:
		request.finish(outcome, ErrShuttingDown)
	default:
		request.finish(outcome, ErrRefused)
	}
}
