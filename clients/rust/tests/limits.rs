//! Calls keep to their time limits.

use std::env;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use bruce_client::{DatagramClient, FlushError, Level, Message, SendError, StreamClient, StreamOptions};

const BARRIER_BYTES: usize = 24;
const ANSWER_BYTES: usize = 44;

#[test]
fn a_flush_behind_another_one_keeps_to_its_time_limit() {
    let path = env::temp_dir().join(format!("bruce-limits-{}", process::id()));
    let daemon = UnixListener::bind(&path).expect("a socket");
    let client = StreamClient::unix(&path, StreamOptions::default());
    thread::scope(|scope| {
        let first = scope.spawn(|| client.flush(Level::Delivered, Duration::from_secs(5)));
        let (mut connection, _) = daemon.accept().expect("a connection");
        connection.read_exact(&mut [0; BARRIER_BYTES]).expect("the first flush");
        let begin = Instant::now();
        assert_eq!(client.flush(Level::Delivered, Duration::from_millis(200)), Err(FlushError::TimedOut));
        assert!(begin.elapsed() < Duration::from_secs(3));
        assert_eq!(first.join().expect("no panic"), Err(FlushError::TimedOut));
    });
    std::fs::remove_file(&path).expect("the socket");
}

#[test]
fn calls_take_the_longest_duration_as_their_time_limit() {
    let path = env::temp_dir().join(format!("bruce-no-limits-{}", process::id()));
    let daemon = UnixListener::bind(&path).expect("a socket");
    let barrier = thread::spawn(move || {
        let (mut connection, _) = daemon.accept().expect("a connection");
        let mut barrier = [0; BARRIER_BYTES];
        connection.read_exact(&mut barrier).expect("the flush");
        let mut answer = [0; ANSWER_BYTES];
        answer[3] = ANSWER_BYTES as u8;
        answer[4..6].copy_from_slice(&259_u16.to_be_bytes());
        answer[8..16].copy_from_slice(&barrier[10..18]); // the token
        connection.write_all(&answer).expect("the answer");
        barrier
    });
    let client = StreamClient::unix(&path, StreamOptions::default());
    assert_eq!(client.flush(Level::Delivered, Duration::MAX).expect("an outcome").delivered, 0);
    assert_eq!(barrier.join().expect("no panic")[20..], i32::MAX.to_be_bytes());
    assert_eq!(client.close(Duration::MAX), 0);
    std::fs::remove_file(&path).expect("the socket");
}

fn is_refused(client: &DatagramClient) -> bool {
    match client.send(&Message::new("t", "v")) {
        Ok(()) => false,
        Err(SendError::Io(error)) => error.kind() == ErrorKind::WouldBlock,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_datagram_is_refused_at_once_while_threads_wait_for_room() {
    let path = env::temp_dir().join(format!("bruce-room-{}", process::id()));
    let daemon = UnixDatagram::bind(&path).expect("a socket");
    let client = DatagramClient::new(&path).expect("a client");
    while !is_refused(&client) {}
    thread::scope(|scope| {
        let waits = [(); 2].map(|()| scope.spawn(|| client.wait(Duration::from_secs(10))));
        thread::sleep(Duration::from_millis(100));
        let begin = Instant::now();
        for _ in 0..10 {
            thread::sleep(Duration::from_millis(1)); // in which the waits go on
            assert!(is_refused(&client));
        }
        assert!(begin.elapsed() < Duration::from_secs(3));
        assert!(!waits.iter().any(thread::ScopedJoinHandle::is_finished));
        daemon.set_nonblocking(true).expect("a socket");
        while daemon.recv(&mut [0; 100]).is_ok() {} // a part is not enough where the send buffer is full before the queue
        for wait in waits {
            assert!(wait.join().expect("no panic"));
        }
    });
    assert!(client.wait(Duration::MAX));
    std::fs::remove_file(&path).expect("the socket");
}
