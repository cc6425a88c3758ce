//! The conformance program, see clients/conformance/README.md.

use std::fmt::Write as _;
use std::io::{self, BufRead, Write as _};
use std::thread;
use std::time::Duration;

use bruce_client::{
    crc32, fnv1a, murmur2, reason_name, DatagramClient, FlushError, InvalidMessage, Level, Message, StreamClient,
    StreamOptions,
};

#[derive(Default)]
struct Program {
    datagrams: Option<DatagramClient>,
    stream: Option<StreamClient>,
}

fn main() {
    let mut program = Program::default();
    for line in io::stdin().lock().lines() {
        let line = line.expect("a line");
        let fields: Vec<&str> = line.split(' ').collect();
        println!("{}", program.run(&fields));
        io::stdout().flush().expect("an open pipe");
    }
}

fn number(field: &str) -> u64 {
    field.parse().expect("a number")
}

fn unhex(digits: &str) -> Vec<u8> {
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits")).collect()
}

fn bytes(field: &str) -> Option<Vec<u8>> {
    field.strip_prefix('=').map(unhex)
}

fn hex(data: &[u8]) -> String {
    data.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn list(pairs: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = pairs.collect();
    if words.is_empty() {
        "-".to_owned()
    } else {
        words.join(",")
    }
}

fn encode(f: &[&str]) -> String {
    let topic = bytes(f[1]).unwrap_or_default();
    let (key, value) = (bytes(f[2]), bytes(f[3]));
    let headers: Vec<(Vec<u8>, Option<Vec<u8>>)> = f[7]
        .split(',')
        .filter_map(|pair| pair.split_once(':'))
        .map(|(name, value)| (unhex(name), (value != "-").then(|| unhex(value))))
        .collect();
    let mut message = match &value {
        Some(value) => Message::new(&topic, value),
        None => Message::tombstone(&topic),
    };
    if let Some(key) = &key {
        message = message.key(key);
    }
    if f[4] != "." {
        message = message.timestamp_ms(f[4].parse().expect("a number"));
    }
    if f[5] != "." {
        message = message.partition_key(f[5].parse().expect("a number"));
    }
    if f[6] == "1" {
        message = message.keep_empty();
    }
    for (name, value) in &headers {
        message = message.header(name, value.as_deref());
    }
    let mut encoded = Vec::new();
    match message.encode(&mut encoded) {
        Ok(()) => format!("ok {}", hex(&encoded)),
        Err(InvalidMessage::TopicEmpty) => "error TOPIC_EMPTY".to_owned(),
        Err(InvalidMessage::TopicTooLarge) => "error TOPIC_TOO_LARGE".to_owned(),
        Err(InvalidMessage::HeadersTooLarge) => "error HEADERS_TOO_LARGE".to_owned(),
        Err(InvalidMessage::MessageTooLarge) => "error MESSAGE_TOO_LARGE".to_owned(),
    }
}

fn value(number: u64, size: u64) -> String {
    format!("{number:012}{}", "x".repeat(size as usize - 12))
}

impl Program {
    fn run(&mut self, f: &[&str]) -> String {
        match f[0] {
            "encode" => encode(f),
            "hash" => {
                let hash = [("murmur2", murmur2 as fn(&[u8]) -> u32), ("crc32", crc32), ("fnv1a", fnv1a)]
                    .into_iter()
                    .find(|(name, _)| *name == f[1]);
                format!("ok {}", hash.expect("a hash").1(&bytes(f[2]).unwrap_or_default()))
            }
            "datagram" => {
                self.datagrams = DatagramClient::new(f[1]).ok();
                "ok".to_owned()
            }
            "datagram-send" => self.send_datagrams(f),
            "datagram-wait" => self.wait_for_room(f),
            "datagram-stats" => self.datagram_stats(),
            "stream" => {
                let linger = Duration::from_millis(number(f[3]));
                let options = StreamOptions { buffer: number(f[2]) as usize, linger, ..StreamOptions::default() };
                self.stream = Some(match f[1].parse() {
                    Ok(port) => StreamClient::tcp(port, options),
                    Err(_) => StreamClient::unix(f[1], options),
                });
                "ok".to_owned()
            }
            "stream-send" => self.send_stream(f),
            "stream-flush" => self.flush(f),
            "stream-flush-twice" => self.flush_twice(),
            "stream-stats" => self.stream_stats(),
            "stream-close" => {
                let _ = self.stream.take().expect("a client").close(Duration::from_millis(number(f[1])));
                "ok".to_owned()
            }
            _ => "unsupported".to_owned(),
        }
    }

    fn send_datagrams(&self, f: &[&str]) -> String {
        let client = self.datagrams.as_ref().expect("a client");
        let mut sent = 0;
        for each in number(f[2])..number(f[2]) + number(f[3]) {
            sent += u64::from(client.send(&Message::new(f[1], &value(each, number(f[4])))).is_ok());
            thread::sleep(Duration::from_micros(number(f[5])));
        }
        format!("ok {sent}")
    }

    fn wait_for_room(&self, f: &[&str]) -> String {
        let has_room = self.datagrams.as_ref().expect("a client").wait(Duration::from_millis(number(f[1])));
        format!("ok {}", u8::from(has_room))
    }

    fn datagram_stats(&self) -> String {
        let stats = self.datagrams.as_ref().expect("a client").stats();
        let refused: u64 = stats.refused.values().sum();
        let by = list(stats.refused.iter().map(|(errno, count)| format!("{errno}={count}")));
        format!("ok {} {} {refused} {by}", stats.sent, stats.sent_bytes)
    }

    fn send_stream(&self, f: &[&str]) -> String {
        let client = self.stream.as_ref().expect("a client");
        let numbers = number(f[2])..number(f[2]) + number(f[3]);
        let accepted = numbers.filter(|each| client.send(&Message::new(f[1], &value(*each, number(f[4])))).is_ok());
        format!("ok {}", accepted.count())
    }

    fn flush(&self, f: &[&str]) -> String {
        let level = match f[1] {
            "received" => Level::Received,
            "delivered" => Level::Delivered,
            _ => Level::Durable,
        };
        match self.stream.as_ref().expect("a client").flush(level, Duration::from_millis(number(f[2]))) {
            Ok(outcome) => {
                let reasons =
                    list(outcome.reasons.iter().map(|(reason, count)| format!("{}={count}", reason_name(*reason))));
                format!("ok {} {} {} {reasons}", outcome.received, outcome.delivered, outcome.discarded)
            }
            Err(FlushError::Broken(messages)) => format!("error BROKEN {messages}"),
            Err(FlushError::TimedOut) => "error TIMED_OUT 0".to_owned(),
            Err(FlushError::NoPermission) => "error NO_PERMISSION 0".to_owned(),
            Err(FlushError::ShuttingDown) => "error SHUTTING_DOWN 0".to_owned(),
            Err(FlushError::Refused) => "error REFUSED 0".to_owned(),
        }
    }

    fn flush_twice(&self) -> String {
        let flush = || self.flush(&["stream-flush", "delivered", "20000"]);
        thread::scope(|scope| {
            let other = scope.spawn(flush);
            format!("{} {}", flush(), other.join().expect("a result"))
        })
    }

    fn stream_stats(&self) -> String {
        let s = self.stream.as_ref().expect("a client").stats();
        format!(
            "ok {} {} {} {} {} {} 0 {}",
            s.sent, s.sent_bytes, s.waiting, s.buffer_full, s.too_large, s.refused, s.connections
        )
    }
}
