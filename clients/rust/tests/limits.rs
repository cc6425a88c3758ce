//! Calls keep to their time limits.

use std::env;
use std::io::Read;
use std::os::unix::net::UnixListener;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use bruce_client::{FlushError, Level, StreamClient, StreamOptions};

const BARRIER_BYTES: usize = 24;

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
