//! An application in Rust: the arguments and the conversation are those of application.py.

use bruce_client::{DatagramClient, Level, Message, SendError, StreamClient, StreamOptions};
use std::io::{stdin, BufRead, ErrorKind};
use std::thread::sleep;
use std::time::{Duration, Instant};

const LINGER: Duration = Duration::from_millis(10);
const RETRY: Duration = Duration::from_micros(100);
const FLUSH: Duration = Duration::from_secs(60);

enum Sender {
    Datagram(DatagramClient),
    Stream(StreamClient),
}

impl Sender {
    fn send(&self, topic: &str, value: &[u8]) {
        let message = Message::new(topic, value);
        loop {
            let sent = match self {
                Sender::Datagram(client) => client.send(&message),
                Sender::Stream(client) => client.send(&message),
            };
            match (sent, self) {
                (Ok(()), _) => return,
                (Err(SendError::BufferFull), _) => sleep(RETRY),
                (Err(SendError::Io(error)), Sender::Datagram(client)) if error.kind() == ErrorKind::WouldBlock => {
                    client.wait(Duration::MAX);
                }
                (Err(error), _) => panic!("{error:?}"),
            }
        }
    }

    fn flush(&self) {
        if let Sender::Stream(client) = self {
            client.flush(Level::Delivered, FLUSH).expect("flush");
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (kind, address, topic) = (&arguments[1], &arguments[2], &arguments[3]);
    let value = vec![b'x'; arguments[4].parse().expect("a size")];
    let sender = match kind.as_str() {
        "datagram" => Sender::Datagram(DatagramClient::new(address).expect("datagram")),
        _ => Sender::Stream(StreamClient::unix(address, StreamOptions { linger: LINGER, ..Default::default() })),
    };
    println!("READY");
    for line in stdin().lock().lines() {
        let numbers: Vec<f64> = line.expect("a line").split(' ').map(|word| word.parse().expect("a number")).collect();
        let (messages, rate, is_dry) = (numbers[0] as u64, numbers[1], numbers[2] > 0.0);
        let start = Instant::now();
        for number in 0..messages {
            if rate > 0.0 {
                let due = start + Duration::from_secs_f64(number as f64 / rate);
                sleep(due.saturating_duration_since(Instant::now()));
            }
            if !is_dry {
                sender.send(topic, &value);
            }
        }
        sender.flush();
        println!("SENT");
    }
}
