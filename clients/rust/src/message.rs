use std::time::{SystemTime, UNIX_EPOCH};
use std::{error, fmt};

const MAX_TOPIC: usize = i16::MAX as usize;
const MAX_HEADERS: usize = u16::MAX as usize;

const ANY_PARTITION: u16 = 256;
const PARTITION_KEY: u16 = 257;
const ANY_PARTITION_BYTES: usize = 28;
const HEADER_BYTES: usize = 6;
const NULL: u32 = u32::MAX; // -1

/// A message, which borrows its parts and becomes a Kafka record.
#[derive(Clone, Debug)]
pub struct Message<'a> {
    topic: &'a [u8],
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
    partition_key: Option<u32>,
    timestamp_ms: Option<i64>,
    headers: Vec<(&'a [u8], Option<&'a [u8]>)>,
    keep_empty: bool,
}

/// The protocol cannot express a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidMessage {
    /// The topic is empty.
    TopicEmpty,
    /// The topic has more than 32,767 bytes.
    TopicTooLarge,
    /// The record headers have more than 65,535 bytes.
    HeadersTooLarge,
    /// The message has more than 2 GiB.
    MessageTooLarge,
}

impl fmt::Display for InvalidMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TopicEmpty => "the topic is empty",
            Self::TopicTooLarge => "the topic has more than 32767 bytes",
            Self::HeadersTooLarge => "the record headers have more than 65535 bytes",
            Self::MessageTooLarge => "the message has more than 2 GiB",
        })
    }
}

impl error::Error for InvalidMessage {}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Plain = 0,
    Headers = 1,
    Nulls = 2,
}

impl<'a> Message<'a> {
    /// Creates a message; it has the present time, no key, and a partition of the daemon's choice.
    pub fn new<T, V>(topic: &'a T, value: &'a V) -> Self
    where
        T: AsRef<[u8]> + ?Sized,
        V: AsRef<[u8]> + ?Sized,
    {
        Self { value: Some(value.as_ref()), ..Self::tombstone(topic) }
    }

    /// Creates a message with a null value, which deletes its key from a compacted topic.
    pub fn tombstone<T: AsRef<[u8]> + ?Sized>(topic: &'a T) -> Self {
        Self {
            topic: topic.as_ref(),
            key: None,
            value: None,
            partition_key: None,
            timestamp_ms: None,
            headers: Vec::new(),
            keep_empty: false,
        }
    }

    /// Sets the key of the record.
    #[must_use]
    pub fn key<K: AsRef<[u8]> + ?Sized>(mut self, key: &'a K) -> Self {
        self.key = Some(key.as_ref());
        self
    }

    /// Chooses the partition: this number modulo the number of partitions. See [`murmur2`](crate::murmur2).
    #[must_use]
    pub fn partition_key(mut self, partition_key: u32) -> Self {
        self.partition_key = Some(partition_key);
        self
    }

    /// Sets the time of the record in milliseconds since 1970-01-01 UTC.
    #[must_use]
    pub fn timestamp_ms(mut self, timestamp_ms: i64) -> Self {
        self.timestamp_ms = Some(timestamp_ms);
        self
    }

    /// Adds a record header; the value may be null.
    #[must_use]
    pub fn header<N: AsRef<[u8]> + ?Sized>(mut self, name: &'a N, value: Option<&'a [u8]>) -> Self {
        self.headers.push((name.as_ref(), value));
        self
    }

    /// Keeps an empty key or value empty.  Otherwise an empty key becomes null, and the daemon's configuration decides
    /// about an empty value.
    #[must_use]
    pub fn keep_empty(mut self) -> Self {
        self.keep_empty = true;
        self
    }

    /// The lowest version that can express the message, because older daemons refuse later ones.
    fn version(&self) -> Version {
        let has_empty = self.value.map_or(true, <[u8]>::is_empty) || self.key.is_some_and(<[u8]>::is_empty);
        if self.value.is_none() || (self.keep_empty && has_empty) {
            Version::Nulls
        } else if self.headers.is_empty() {
            Version::Plain
        } else {
            Version::Headers
        }
    }

    fn headers_size(&self) -> Result<usize, InvalidMessage> {
        let mut size = 0;
        for (name, value) in &self.headers {
            size += HEADER_BYTES + name.len() + value.map_or(0, <[u8]>::len);
            if name.len() > MAX_TOPIC || size > MAX_HEADERS {
                return Err(InvalidMessage::HeadersTooLarge);
            }
        }
        Ok(size)
    }

    /// Returns the number of bytes of the encoded message.
    ///
    /// # Errors
    ///
    /// The protocol cannot express the message.
    pub fn encoded_size(&self) -> Result<usize, InvalidMessage> {
        let headers = self.headers_size()?;
        if self.topic.is_empty() {
            return Err(InvalidMessage::TopicEmpty);
        }
        if self.topic.len() > MAX_TOPIC {
            return Err(InvalidMessage::TopicTooLarge);
        }
        let mut size = ANY_PARTITION_BYTES + self.topic.len();
        size += self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len);
        size += if self.partition_key.is_some() { 4 } else { 0 };
        size += if self.version() == Version::Plain { 0 } else { 4 + headers };
        if size > i32::MAX as usize {
            return Err(InvalidMessage::MessageTooLarge);
        }
        Ok(size)
    }

    /// Appends the encoded message to a buffer.
    ///
    /// # Errors
    ///
    /// The protocol cannot express the message; the buffer is then unchanged.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), InvalidMessage> {
        let size = self.encoded_size()?;
        let version = self.version();
        out.reserve(size);
        out.extend_from_slice(&(size as u32).to_be_bytes());
        self.encode_kind(out, version);
        out.extend_from_slice(&(self.topic.len() as u16).to_be_bytes());
        out.extend_from_slice(self.topic);
        out.extend_from_slice(&self.timestamp_ms.unwrap_or_else(now_ms).to_be_bytes());
        let keeps_key = version != Version::Nulls || self.keep_empty;
        let key_is_null = !keeps_key && self.key.map_or(true, <[u8]>::is_empty);
        let has_no_key = version == Version::Nulls && self.key.is_none();
        put(out, if key_is_null || has_no_key { None } else { Some(self.key.unwrap_or_default()) });
        put(out, self.value);
        if version != Version::Plain {
            self.encode_headers(out)?;
        }
        Ok(())
    }

    fn encode_kind(&self, out: &mut Vec<u8>, version: Version) {
        let kind = if self.partition_key.is_some() { PARTITION_KEY } else { ANY_PARTITION };
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&(version as u16).to_be_bytes());
        out.extend_from_slice(&[0, 0]); // Flags
        if let Some(key) = self.partition_key {
            out.extend_from_slice(&key.to_be_bytes());
        }
    }

    fn encode_headers(&self, out: &mut Vec<u8>) -> Result<(), InvalidMessage> {
        out.extend_from_slice(&(self.headers_size()? as u32).to_be_bytes());
        for (name, value) in &self.headers {
            out.extend_from_slice(&(name.len() as u16).to_be_bytes());
            out.extend_from_slice(name);
            put(out, *value);
        }
        Ok(())
    }
}

fn put(out: &mut Vec<u8>, field: Option<&[u8]>) {
    let size = field.map_or(NULL, |bytes| bytes.len() as u32);
    out.extend_from_slice(&size.to_be_bytes());
    out.extend_from_slice(field.unwrap_or_default());
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}
