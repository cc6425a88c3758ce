use std::collections::BTreeMap;
use std::io;
use std::os::unix::io::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::poll::wait_writable;
use crate::stream::deadline_after;
use crate::{InvalidMessage, Message, SendError};

/// The longest datagram that a daemon accepts by default (`input.max_datagram_size`).
pub const MAX_DATAGRAM: usize = 64 << 10;

const EMSGSIZE: i32 = 90;
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

/// Counts of messages: offered = sent + sum of refused + invalid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatagramStats {
    /// Messages that the kernel has.
    pub sent: u64,
    /// The bytes of these.
    pub sent_bytes: u64,
    /// Messages that the kernel refused, by errno; EMSGSIZE also counts those beyond the client's limit.
    pub refused: BTreeMap<i32, u64>,
    /// Messages that the protocol cannot express.
    pub invalid: u64,
}

/// Sends datagrams from a socket without a name.
///
/// A restart of the daemon goes unnoticed, because the client connects again when the daemon has closed its socket, and
/// every second, because another socket may have the path.  After a fork, parent and child may both go on.
#[derive(Debug)]
pub struct DatagramClient {
    path: PathBuf,
    socket: UnixDatagram,
    max_message: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    buffer: Vec<u8>,
    stats: DatagramStats,
    /// The time of the last attempt to connect, if it succeeded.
    connected: Option<Instant>,
}

impl DatagramClient {
    /// Opens a client for the daemon's `input.unix_datagram.path`.  The daemon need not run yet.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub fn new<P: AsRef<Path>>(path: P) -> Result<Self, SendError> {
        Self::with_limit(path, MAX_DATAGRAM)
    }

    /// As [`DatagramClient::new`], with the daemon's `input.max_datagram_size`.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub fn with_limit<P: AsRef<Path>>(path: P, max_message: usize) -> Result<Self, SendError> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self { path: path.as_ref().to_owned(), socket, max_message, state: Mutex::default() })
    }

    /// Sends one message without blocking.
    ///
    /// # Errors
    ///
    /// The message was not sent, and is counted.
    pub fn send(&self, message: &Message<'_>) -> Result<(), SendError> {
        let mut guard = self.lock();
        let State { buffer, stats, connected } = &mut *guard;
        buffer.clear();
        match message.encode(buffer) {
            Ok(()) if buffer.len() <= self.max_message => {}
            Ok(()) | Err(InvalidMessage::MessageTooLarge) => {
                *stats.refused.entry(EMSGSIZE).or_default() += 1;
                return Err(SendError::TooLarge);
            }
            Err(error) => {
                stats.invalid += 1;
                return Err(error.into());
            }
        }
        if let Err(error) = self.transmit(buffer, connected) {
            *stats.refused.entry(error.raw_os_error().unwrap_or_default()).or_default() += 1;
            return Err(error.into());
        }
        stats.sent += 1;
        stats.sent_bytes += buffer.len() as u64;
        Ok(())
    }

    fn transmit(&self, message: &[u8], connected: &mut Option<Instant>) -> io::Result<()> {
        self.connect_if_due(connected)?;
        match self.write(message) {
            Err(error) if is_closed(&error) => {
                self.connect(connected)?;
                self.write(message)
            }
            result => result,
        }
    }

    fn connect_if_due(&self, connected: &mut Option<Instant>) -> io::Result<()> {
        if connected.is_some_and(|at| at.elapsed() < RECONNECT_AFTER) {
            return Ok(());
        }
        self.connect(connected)
    }

    fn connect(&self, connected: &mut Option<Instant>) -> io::Result<()> {
        *connected = None;
        self.socket.connect(&self.path)?;
        *connected = Some(Instant::now());
        Ok(())
    }

    fn write(&self, message: &[u8]) -> io::Result<()> {
        loop {
            match self.socket.send(message) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(drop),
            }
        }
    }

    /// Waits until the daemon's queue has room and three quarters of the send buffer are free, or there is no daemon.
    /// Returns false after the timeout; a send may succeed nevertheless.  Another sender may be faster, so send in a loop.
    pub fn wait(&self, timeout: Duration) -> bool {
        let deadline = deadline_after(timeout);
        loop {
            if self.connect_if_due(&mut self.lock().connected).is_err() {
                return true; // without a connection, the kernel knows no queue
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match wait_writable(self.socket.as_fd(), left.min(RECONNECT_AFTER)) {
                Ok(true) => return true,
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return true, // the next message tells it
                Ok(_) | Err(_) if Instant::now() >= deadline => return false,
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn stats(&self) -> DatagramStats {
        self.lock().stats.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true for the error of a socket whose peer, the daemon, has closed its own.
fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotConnected};
    matches!(error.kind(), ConnectionRefused | BrokenPipe | NotConnected | ConnectionReset)
}
