//! Sends messages to the bruce daemon, which delivers them to Kafka.
//!
//! A [`DatagramClient`] hands each message to the kernel and never blocks.  A [`StreamClient`] buffers messages,
//! reconnects, and learns their outcome with [`StreamClient::flush`].  Threads may share both.
//!
//! ```no_run
//! use bruce_client::{DatagramClient, Message};
//!
//! let client = DatagramClient::new("/run/bruce/in.dgram")?;
//! client.send(&Message::new("clicks", b"hello").key(b"user-7"))?;
//! # Ok::<(), bruce_client::SendError>(())
//! ```

#![deny(unsafe_code)]
#![warn(missing_docs)]

mod answer;
mod datagram;
mod message;
mod partition_key;
mod poll;
mod stream;

pub use answer::{reason_name, FlushError, Level, Outcome};
pub use datagram::{DatagramClient, DatagramStats, MAX_DATAGRAM};
pub use message::{InvalidMessage, Message};
pub use partition_key::{crc32, fnv1a, murmur2};
pub use stream::{StreamClient, StreamOptions, StreamStats, MAX_STREAM_MESSAGE};

use std::{error, fmt, io};

/// The reason for which a message was not sent.
#[derive(Debug)]
pub enum SendError {
    /// The protocol cannot express the message.
    Invalid(InvalidMessage),
    /// The message is longer than the daemon or the kernel accepts.
    TooLarge,
    /// The buffer of a stream client is full.
    BufferFull,
    /// The kernel refused the datagram: `WouldBlock` for a full queue, `NotFound` or `ConnectionRefused` without a daemon.
    Io(io::Error),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(error) => error.fmt(f),
            Self::TooLarge => f.write_str("the message is longer than the daemon accepts"),
            Self::BufferFull => f.write_str("the client's buffer is full"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl error::Error for SendError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Invalid(error) => Some(error),
            Self::Io(error) => Some(error),
            Self::TooLarge | Self::BufferFull => None,
        }
    }
}

impl From<InvalidMessage> for SendError {
    fn from(error: InvalidMessage) -> Self {
        Self::Invalid(error)
    }
}

impl From<io::Error> for SendError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
