use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::answer::{barrier, Answer, LEVELS};
use crate::{FlushError, InvalidMessage, Level, Message, Outcome, SendError};

/// The longest message that a daemon accepts on a stream by default (`input.max_stream_size` + 4).
pub const MAX_STREAM_MESSAGE: usize = (2 << 20) + 4;

const WRITE_SIZE: usize = 64 << 10;
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(5);
const DROP_TIMEOUT: Duration = Duration::from_secs(1);
/// Consecutive connections that may break within the same message.
const MAX_BREAKS: u32 = 5;
/// Stands for longer durations, such as [`Duration::MAX`], which an [`Instant`] cannot express.
const HUNDRED_YEARS: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Settings of a [`StreamClient`].
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Bytes of messages that may wait for the daemon.
    pub buffer: usize,
    /// The daemon's `input.max_stream_size` + 4; it closes the connection at a longer message.
    pub max_message: usize,
    /// The time to collect messages for one write.
    pub linger: Duration,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { buffer: 1 << 20, max_message: MAX_STREAM_MESSAGE, linger: Duration::ZERO }
    }
}

/// Counts of messages: offered = sent + waiting + the dropped ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// Completely written to a connection; only a flush tells their outcome.
    pub sent: u64,
    /// The bytes of these.
    pub sent_bytes: u64,
    /// In the buffer.
    pub waiting: u64,
    /// Refused by `send`.
    pub buffer_full: u64,
    /// Refused by `send`.
    pub too_large: u64,
    /// Refused by `send`.
    pub invalid: u64,
    /// Dropped, because the daemon closed five connections within the message.
    pub refused: u64,
    /// Opened connections.
    pub connections: u64,
}

#[derive(Clone, Debug)]
enum Address {
    Unix(PathBuf),
    Tcp(u16),
}

#[derive(Debug)]
enum Connection {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Connection {
    fn open(address: &Address) -> io::Result<Self> {
        match address {
            Address::Unix(path) => UnixStream::connect(path).map(Self::Unix),
            Address::Tcp(port) => {
                let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, *port))?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
        }
    }

    fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
        }
    }

    fn shut_down(&self) {
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
        }; // an error means that it is over already
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends messages over a stream connection, which a thread of its own opens, writes, and opens again after a break.
///
/// A client that is dropped writes its buffer for up to a second.  Create it after a fork: its thread exists in one
/// process only.
#[derive(Debug)]
pub struct StreamClient {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    address: Address,
    options: StreamOptions,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Whole messages that the writer does not have yet.
    pending: Vec<u8>,
    waiting_bytes: usize,
    flush: Option<Flush>,
    /// Of ended connections, by level: the messages that may not have reached it.
    lost: [u64; LEVELS],
    /// The lost messages that no error has reported.
    uncertain: [u64; LEVELS],
    is_closing: bool,
    is_aborted: bool,
    link: Option<Link>,
    /// The pause between the start of the last attempt to connect and the next one.
    backoff: Duration,
    stats: StreamStats,
}

/// The flush that waits.
#[derive(Debug)]
struct Flush {
    level: Level,
    deadline: Instant,
    /// The writer has all messages that are older than the flush.
    is_covered: bool,
    /// `None` until the present connection has the barrier.
    token: Option<u64>,
    result: Option<Result<Outcome, FlushError>>,
}

/// The counts of one connection.
#[derive(Debug)]
struct Link {
    connection: Connection,
    has_ended: bool,
    messages: u64,
    flushed: Outcome,
    /// By level.
    confirmed: [u64; LEVELS],
}

impl Flush {
    fn is_due(&self) -> bool {
        self.token.is_none() && self.result.is_none()
    }
}

impl State {
    /// Returns the error for the messages that may not have reached the level; others may be left for a stronger one.
    /// While a flush waits for another one, that one may report the error for both.
    fn take_uncertain(&mut self, level: Level, lost_before: u64) -> Option<FlushError> {
        let unreported = self.uncertain[level as usize];
        self.uncertain = self.uncertain.map(|count| count.saturating_sub(unreported));
        let uncertain = unreported.max(self.lost[level as usize] - lost_before);
        (uncertain > 0).then_some(FlushError::Broken(uncertain))
    }

    /// Drops the connection, and counts the messages whose outcome no later connection reports.
    fn disconnect(&mut self) {
        if let Some(link) = self.link.take() {
            link.connection.shut_down();
            for (level, confirmed) in link.confirmed.into_iter().enumerate() {
                self.lost[level] += link.messages - confirmed;
                self.uncertain[level] += link.messages - confirmed;
            }
        }
        let Some(level) = self.flush.as_ref().filter(|flush| flush.result.is_none()).map(|flush| flush.level) else {
            return;
        };
        let error = self.take_uncertain(level, self.lost[level as usize]);
        if let Some(flush) = &mut self.flush {
            flush.token = None; // the next connection is asked again
            flush.result = error.map(Err);
        }
    }

    fn settle(&mut self, answer: Answer) {
        self.backoff = FIRST_BACKOFF;
        let (Some(flush), Some(link)) = (&mut self.flush, &mut self.link) else { return };
        if flush.token != Some(answer.token) || flush.result.is_some() {
            return;
        }
        flush.result = Some(match answer.error() {
            Some(error) => Err(error),
            None => Ok(answer.counts.since(&link.flushed)),
        });
        if let Some(Ok(_)) = flush.result {
            for level in flush.level.reached() {
                link.confirmed[*level as usize] = answer.counts.received;
            }
            link.flushed = answer.counts;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change of the state, or until the deadline.
    fn wait<'a>(&self, state: MutexGuard<'a, State>, deadline: Instant) -> MutexGuard<'a, State> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
    }

    /// The number of pending bytes that end a linger.
    fn linger_bytes(&self) -> usize {
        WRITE_SIZE.min(self.options.buffer / 2)
    }

    /// Waits for further messages, until they fill a write or half the buffer, the linger is over, or a flush or close begins.
    fn linger<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let deadline = deadline_after(self.options.linger);
        while !state.is_closing
            && !state.flush.as_ref().is_some_and(|flush| !flush.is_covered)
            && state.pending.len() < self.linger_bytes()
            && Instant::now() < deadline
        {
            state = self.wait(state, deadline);
        }
        state
    }

    /// Waits until the deadline; fails if the client is aborted.
    fn pause_until(&self, deadline: Instant) -> io::Result<()> {
        let mut state = self.lock();
        while !state.is_aborted && Instant::now() < deadline {
            state = self.wait(state, deadline);
        }
        if state.is_aborted {
            return Err(io::ErrorKind::Interrupted.into());
        }
        Ok(())
    }
}

pub fn deadline_after(length: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(length).unwrap_or_else(|| now + HUNDRED_YEARS)
}

impl StreamClient {
    /// Creates a client for the daemon's `input.unix_stream.path`.  The first message connects.
    pub fn unix<P: AsRef<Path>>(path: P, options: StreamOptions) -> Self {
        Self::new(Address::Unix(path.as_ref().to_owned()), options)
    }

    /// Creates a client for the daemon's `input.tcp.port` on this host.
    #[must_use]
    pub fn tcp(port: u16, options: StreamOptions) -> Self {
        Self::new(Address::Tcp(port), options)
    }

    fn new(address: Address, options: StreamOptions) -> Self {
        let state = Mutex::default();
        let shared = Arc::new(Shared { address, options, state, changed: Condvar::new() });
        let writer = thread::spawn({
            let shared = Arc::clone(&shared);
            move || Writer::new(&shared).run()
        });
        Self { shared, writer: Some(writer) }
    }

    /// Accepts a message into the buffer; never waits for the daemon.
    ///
    /// # Errors
    ///
    /// The message was dropped, and is counted.
    pub fn send(&self, message: &Message<'_>) -> Result<(), SendError> {
        let size = message.encoded_size();
        let options = &self.shared.options;
        let mut state = self.shared.lock();
        let size = match size {
            Ok(size) if size <= options.max_message => size,
            Ok(_) | Err(InvalidMessage::MessageTooLarge) => {
                state.stats.too_large += 1;
                return Err(SendError::TooLarge);
            }
            Err(error) => {
                state.stats.invalid += 1;
                return Err(error.into());
            }
        };
        if state.waiting_bytes > 0 && state.waiting_bytes + size > options.buffer {
            state.stats.buffer_full += 1;
            return Err(SendError::BufferFull);
        }
        let before = state.pending.len();
        message.encode(&mut state.pending)?;
        let linger_bytes = self.shared.linger_bytes();
        let is_full = before < linger_bytes && state.pending.len() >= linger_bytes;
        state.waiting_bytes += size;
        state.stats.waiting += 1;
        drop(state);
        if before == 0 || is_full {
            self.shared.changed.notify_all(); // a wake-up for each message would cost more than the message
        }
        Ok(())
    }

    /// Waits until all earlier messages have reached the level.
    ///
    /// # Errors
    ///
    /// Some messages have no final outcome; see [`FlushError`].
    pub fn flush(&self, level: Level, timeout: Duration) -> Result<Outcome, FlushError> {
        let deadline = deadline_after(timeout);
        let mut state = self.shared.lock();
        let lost_before = state.lost[level as usize];
        while state.flush.is_some() {
            if Instant::now() >= deadline {
                return Err(FlushError::TimedOut);
            }
            state = self.shared.wait(state, deadline);
        }
        if let Some(error) = state.take_uncertain(level, lost_before) {
            return Err(error);
        }
        state.flush = Some(Flush { level, deadline, is_covered: false, token: None, result: None });
        self.shared.changed.notify_all();
        loop {
            let result = state.flush.as_mut().and_then(|flush| flush.result.take());
            if result.is_some() || Instant::now() >= deadline {
                state.flush = None;
                self.shared.changed.notify_all(); // the flush of another thread may wait for this one
                return result.unwrap_or(Err(FlushError::TimedOut));
            }
            state = self.shared.wait(state, deadline);
        }
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn stats(&self) -> StreamStats {
        self.shared.lock().stats
    }

    /// Writes the buffer for at most this time, and not without permission to connect, and closes the connection.  Returns
    /// the number of dropped messages.
    #[must_use]
    pub fn close(mut self, timeout: Duration) -> u64 {
        self.end(timeout)
    }

    fn end(&mut self, timeout: Duration) -> u64 {
        let Some(writer) = self.writer.take() else { return 0 };
        let deadline = deadline_after(timeout);
        let mut state = self.shared.lock();
        state.is_closing = true;
        self.shared.changed.notify_all();
        while state.stats.waiting > 0 && !state.is_aborted && Instant::now() < deadline {
            state = self.shared.wait(state, deadline);
        }
        state.is_aborted = true;
        if let Some(link) = &state.link {
            link.connection.shut_down(); // ends a write that waits for the daemon
        }
        let is_connected = state.link.is_some();
        drop(state);
        self.shared.changed.notify_all();
        if is_connected {
            let _ = writer.join(); // a panic of the thread has been printed
        } // otherwise it may wait in connect(), which nothing ends, and writes no more
        self.shared.lock().stats.waiting
    }
}

impl Drop for StreamClient {
    fn drop(&mut self) {
        self.end(DROP_TIMEOUT);
    }
}

/// The state of the writer's thread.
struct Writer<'a> {
    shared: &'a Arc<Shared>,
    /// Whole messages from `start`; the connection has the bytes before `written`.
    buffer: Vec<u8>,
    start: usize,
    written: usize,
    connection: Option<Connection>,
    /// The start of the last attempt to connect.
    tried: Instant,
    /// The last attempt to connect failed for want of permission.
    was_denied: bool,
    /// The present attempt began after the start of `close`.
    is_closing: bool,
    breaks: u32,
    last_token: u64,
}

impl<'a> Writer<'a> {
    fn new(shared: &'a Arc<Shared>) -> Self {
        Self {
            shared,
            buffer: Vec::new(),
            start: 0,
            written: 0,
            connection: None,
            tried: Instant::now(),
            was_denied: false,
            is_closing: false,
            breaks: 0,
            last_token: 0,
        }
    }

    fn run(mut self) {
        while self.collect() {
            let done = self.connect().and_then(|()| self.write_messages()).and_then(|()| self.write_barrier());
            if done.is_err() {
                self.disconnect();
            }
        }
        self.disconnect();
    }

    /// Waits for something to write, and takes the pending messages.  Returns false at the end of the client.
    fn collect(&mut self) -> bool {
        let mut has_waited = false;
        let mut state = self.shared.lock();
        loop {
            if state.link.as_ref().is_some_and(|link| link.has_ended) {
                state.disconnect();
                self.connection = None;
                self.shared.changed.notify_all();
            }
            let is_idle = self.buffer.is_empty() && state.pending.is_empty();
            if state.is_aborted || (is_idle && state.is_closing) {
                return false;
            }
            if !is_idle || state.flush.as_ref().is_some_and(Flush::is_due) {
                break;
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            has_waited = true;
        }
        if has_waited {
            state = self.shared.linger(state);
        }
        self.is_closing = state.is_closing;
        if let Some(flush) = &mut state.flush {
            flush.is_covered = true;
        }
        if self.buffer.is_empty() {
            std::mem::swap(&mut self.buffer, &mut state.pending);
        } else {
            self.buffer.append(&mut state.pending);
        }
        true
    }

    /// Opens a connection if there is none and the pause after the last attempt is over.
    fn connect(&mut self) -> io::Result<()> {
        if self.connection.is_some() {
            return Ok(());
        }
        self.pause()?;
        let opened = Connection::open(&self.shared.address)
            .and_then(|connection| Ok((connection.try_clone()?, connection.try_clone()?, connection)));
        match opened {
            Ok((for_state, for_reader, connection)) => {
                let mut state = self.shared.lock();
                if state.is_aborted {
                    return Err(io::ErrorKind::Interrupted.into()); // nothing would end a write to this connection
                }
                state.stats.connections += 1;
                let number = state.stats.connections;
                state.link = Some(Link {
                    connection: for_state,
                    has_ended: false,
                    messages: 0,
                    flushed: Outcome::default(),
                    confirmed: [0; LEVELS],
                });
                let shared = Arc::clone(self.shared);
                thread::spawn(move || read_answers(&shared, number, for_reader));
                self.connection = Some(connection);
                self.was_denied = false;
                Ok(())
            }
            Err(error) => {
                let is_path = matches!(self.shared.address, Address::Unix(_));
                self.note_denial(is_path && error.kind() == io::ErrorKind::PermissionDenied);
                Err(error)
            }
        }
    }

    /// Ends a flush, or the client that closes, at the second denial in a row, because a daemon that starts sets the owner
    /// after it creates the socket.  The pause stays short, so that each later call fails soon.
    fn note_denial(&mut self, is_denied: bool) {
        let was_denied = std::mem::replace(&mut self.was_denied, is_denied);
        if !is_denied {
            return;
        }
        let mut state = self.shared.lock();
        state.backoff = FIRST_BACKOFF;
        if !was_denied {
            return;
        }
        if let Some(flush) = state.flush.as_mut().filter(|flush| flush.is_covered) {
            flush.result.get_or_insert(Err(FlushError::NoPermission));
        }
        state.is_aborted |= self.is_closing;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Waits for the next attempt to connect.  The pause counts from the start of the last one, also if that one succeeded: a
    /// daemon may close each connection at once.
    fn pause(&mut self) -> io::Result<()> {
        let mut state = self.shared.lock();
        let backoff = state.backoff;
        state.backoff = (backoff * 2).clamp(FIRST_BACKOFF, MAX_BACKOFF);
        drop(state);
        let random = RandomState::new().build_hasher().finish() % 1000; // the standard library has no other
        self.shared.pause_until(self.tried + backoff / 2 + backoff * random as u32 / 2000)?;
        self.tried = Instant::now();
        Ok(())
    }

    fn write_messages(&mut self) -> io::Result<()> {
        while self.written < self.buffer.len() {
            let Some(connection) = &mut self.connection else { return Err(io::ErrorKind::NotConnected.into()) };
            let end = self.buffer.len().min(self.written + WRITE_SIZE);
            match connection.write(&self.buffer[self.written..end]) {
                Ok(0) => return self.on_break(io::ErrorKind::WriteZero.into()),
                Ok(size) => self.on_written(size),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.on_break(error),
            }
        }
        Ok(())
    }

    fn first_size(&self) -> usize {
        let at = self.start;
        u32::from_be_bytes([self.buffer[at], self.buffer[at + 1], self.buffer[at + 2], self.buffer[at + 3]]) as usize
    }

    /// Counts the messages that these bytes complete.
    fn on_written(&mut self, size: usize) {
        self.written += size;
        let before = self.start;
        let mut messages = 0;
        while self.start < self.buffer.len() && self.start + self.first_size() <= self.written {
            self.start += self.first_size();
            messages += 1;
        }
        if messages == 0 {
            return;
        }
        self.breaks = 0;
        let mut state = self.shared.lock();
        state.backoff = FIRST_BACKOFF;
        let bytes = self.start - before;
        state.waiting_bytes -= bytes;
        state.stats.waiting -= messages;
        state.stats.sent += messages;
        state.stats.sent_bytes += bytes as u64;
        if let Some(link) = &mut state.link {
            link.messages += messages;
        }
        drop(state);
        self.shared.changed.notify_all();
        self.discard_written();
    }

    fn discard_written(&mut self) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
            self.written = 0;
        }
    }

    /// Goes back to the start of a partly written message, and drops it if it is the cause.
    fn on_break(&mut self, error: io::Error) -> io::Result<()> {
        if self.written == self.start {
            self.breaks = 0;
            return Err(error);
        }
        self.written = self.start;
        self.breaks += 1;
        if self.breaks >= MAX_BREAKS {
            self.breaks = 0;
            let size = self.first_size();
            self.start += size;
            self.written = self.start;
            let mut state = self.shared.lock();
            state.waiting_bytes -= size;
            state.stats.waiting -= 1;
            state.stats.refused += 1;
            drop(state);
            self.discard_written();
        }
        Err(error)
    }

    /// Asks for the outcome of all messages on the connection, if a flush waits for it.
    fn write_barrier(&mut self) -> io::Result<()> {
        let mut state = self.shared.lock();
        let Some(flush) = state.flush.as_mut().filter(|flush| flush.is_due() && flush.is_covered) else {
            return Ok(());
        };
        self.last_token += 1;
        flush.token = Some(self.last_token);
        let left = flush.deadline.saturating_duration_since(Instant::now());
        let frame = barrier(self.last_token, flush.level, left.as_millis() / 10 * 9); // the rest is for the transfer
        drop(state);
        match &mut self.connection {
            Some(connection) => connection.write_all(&frame),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn disconnect(&mut self) {
        self.connection = None;
        self.shared.lock().disconnect();
        self.shared.changed.notify_all();
    }
}

/// Settles flushes; leaves the rest to the writer, which alone knows the number of written messages.
fn read_answers(shared: &Shared, number: u64, connection: Connection) {
    let mut reader = BufReader::new(connection);
    loop {
        let answer = Answer::read(&mut reader);
        let mut state = shared.lock();
        if state.stats.connections != number {
            return;
        }
        match answer {
            Ok(answer) => state.settle(answer),
            Err(error) => {
                let is_foreign = error.kind() == io::ErrorKind::InvalidData;
                if let (true, Some(flush)) = (is_foreign, &mut state.flush) {
                    flush.result.get_or_insert(Err(FlushError::Refused));
                }
                if let Some(link) = &mut state.link {
                    link.has_ended = true;
                    link.connection.shut_down();
                }
                shared.changed.notify_all();
                return;
            }
        }
        shared.changed.notify_all();
    }
}
