//! The frames of a flush: the request, and the daemon's answer.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::{error, fmt};

const BARRIER: u16 = 258;
const ANSWER: u16 = 259;
const BARRIER_BYTES: u32 = 24;
const ANSWER_BYTES: usize = 44;
const REASON_BYTES: usize = 10;

/// The stage that messages must reach before a flush returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The daemon has the messages, which survive its restart.
    Received = 0,
    /// Each message is acknowledged by Kafka, or discarded.
    Delivered = 1,
    /// As `Delivered`, or in the daemon's journal on disk.
    Durable = 2,
}

/// The number of levels.
pub(crate) const LEVELS: usize = 3;

impl Level {
    /// Returns the levels that each message has reached after a flush of this one.
    pub(crate) const fn reached(self) -> &'static [Self] {
        match self {
            Self::Received => &[Self::Received],
            Self::Durable => &[Self::Received, Self::Durable],
            Self::Delivered => &[Self::Received, Self::Durable, Self::Delivered],
        }
    }
}

/// Counts of the messages since the last successful flush, or since the connection was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Messages that reached the daemon.
    pub received: u64,
    /// Messages that Kafka acknowledged.
    pub delivered: u64,
    /// Messages that the daemon discarded.
    pub discarded: u64,
    /// The discarded messages by the number of the reason, see [`reason_name`].
    pub reasons: BTreeMap<u16, u64>,
}

impl Outcome {
    pub(crate) fn since(&self, before: &Self) -> Self {
        let count = |reason, now: u64| now - before.reasons.get(reason).copied().unwrap_or_default();
        Self {
            received: self.received - before.received,
            delivered: self.delivered - before.delivered,
            discarded: self.discarded - before.discarded,
            reasons: self
                .reasons
                .iter()
                .map(|(reason, now)| (*reason, count(reason, *now)))
                .filter(|(_, since)| *since > 0)
                .collect(),
        }
    }
}

/// Some messages have no final outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlushError {
    /// The daemon still delivers the messages: flush again for the outcome.
    TimedOut,
    /// The daemon stops, and delivers the rest after its restart.
    ShuttingDown,
    /// The socket's mode, or that of its directory, denies the connection.  The messages stay in the buffer.
    NoPermission,
    /// A connection broke.  This number of messages, the first ones that no flush of this level confirmed, were
    /// written to it; each may be delivered or not, and the client does not send them again.  The next flush concerns later
    /// messages only.
    Broken(u64),
    /// The daemon keeps no journal, or is too old; or the peer is not the daemon.
    Refused,
}

impl fmt::Display for FlushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => f.write_str("the time limit passed; the daemon still delivers the rest"),
            Self::ShuttingDown => f.write_str("the daemon shuts down; it delivers the rest after its restart"),
            Self::NoPermission => f.write_str(
                "no permission to connect: senders need write permission on the socket (input.unix_stream.mode, such as \
                 \"0222\") and access to its directory",
            ),
            Self::Broken(messages) => {
                write!(f, "the connection broke; of the {messages} messages written to it, an unknown number arrived")
            }
            Self::Refused => f.write_str("the daemon refused the flush: it keeps no journal, or is too old"),
        }
    }
}

impl error::Error for FlushError {}

/// Returns the name of a reason to discard a message, such as `BAD_TOPIC`.
#[must_use]
pub fn reason_name(reason: u16) -> &'static str {
    match reason {
        1 => "MALFORMED",
        2 => "UNSUPPORTED_API_KEY",
        3 => "UNSUPPORTED_VERSION",
        4 => "NO_MEM",
        5 => "BAD_TOPIC",
        6 => "LONG_MSG",
        7 => "RATE_LIMIT",
        8 => "TOPIC_AUTOCREATE_FAIL",
        9 => "NO_AVAILABLE_PARTITIONS",
        10 => "KAFKA_ERROR_ACK",
        11 => "DELIVERY_ATTEMPT_LIMIT",
        12 => "SERVER_SHUTDOWN",
        13 => "UNCLEAN_DISCONNECT",
        14 => "BUG",
        15 => "ABANDONED_ATTEMPT",
        16 => "SENDER_NOT_ALLOWED",
        17 => "OVER_QUOTA",
        18 => "TOPIC_OVER_SHARE",
        19 => "SPILL_LOST",
        20 => "POSSIBLY_DELIVERED",
        _ => "UNKNOWN",
    }
}

/// An answer; its counts are those of the connection, from the first message.
pub(crate) struct Answer {
    pub token: u64,
    pub counts: Outcome,
    status: u64,
}

impl Answer {
    pub fn error(&self) -> Option<FlushError> {
        match self.status {
            0 => None,
            1 => Some(FlushError::TimedOut),
            2 => Some(FlushError::ShuttingDown),
            _ => Some(FlushError::Refused),
        }
    }

    /// Reads one answer; an error of the kind `InvalidData` means that the peer is not the daemon.
    pub fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; ANSWER_BYTES];
        from.read_exact(&mut head)?;
        let reasons = number(&head[42..44]) as usize;
        let is_answer = number(&head[4..6]) == u64::from(ANSWER);
        if !is_answer || number(&head[..4]) as usize != ANSWER_BYTES + REASON_BYTES * reasons {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut counts = Outcome {
            received: number(&head[18..26]),
            delivered: number(&head[26..34]),
            discarded: number(&head[34..42]),
            reasons: BTreeMap::new(),
        };
        for _ in 0..reasons {
            let mut pair = [0; REASON_BYTES];
            from.read_exact(&mut pair)?;
            counts.reasons.insert(number(&pair[..2]) as u16, number(&pair[2..]));
        }
        Ok(Self { token: number(&head[8..16]), counts, status: number(&head[16..18]) })
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

pub(crate) fn barrier(token: u64, level: Level, limit_ms: u128) -> Vec<u8> {
    let limit = limit_ms.min(i32::MAX as u128) as u32;
    let mut frame = Vec::with_capacity(BARRIER_BYTES as usize);
    frame.extend_from_slice(&BARRIER_BYTES.to_be_bytes());
    frame.extend_from_slice(&BARRIER.to_be_bytes());
    frame.extend_from_slice(&[0; 4]); // ApiVersion, Flags
    frame.extend_from_slice(&token.to_be_bytes());
    frame.extend_from_slice(&(level as u16).to_be_bytes());
    frame.extend_from_slice(&limit.to_be_bytes());
    frame
}
