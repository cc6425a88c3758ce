//! Without permission to connect, flush and close end at the second denial in a row, not at their time limit.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::time::{Duration, Instant};
use std::{env, io};

use bruce_client::{FlushError, Level, Message, StreamClient, StreamOptions};

const LONG: Duration = Duration::from_secs(300);
/// The child process of a test that began as root, which needs no permission.
const CHILD: &str = "BRUCE_TEST_CHILD";

/// A directory that the test itself may not enter, until it is opened.
struct Closed(PathBuf);

impl Closed {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("bruce-{name}-{}", process::id()));
        fs::create_dir(&path).expect("a directory");
        let closed = Self(path);
        closed.set_mode(0);
        closed
    }

    fn set_mode(&self, mode: u32) {
        fs::set_permissions(&self.0, Permissions::from_mode(mode)).expect("our directory");
    }

    fn socket(&self) -> PathBuf {
        self.0.join("in.stream")
    }

    fn is_closed(&self) -> bool {
        UnixStream::connect(self.socket()).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.set_mode(0o700);
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a test with a closed directory; as root, in a process of another user.
fn with_closed_directory(name: &str, test: fn(&Closed)) {
    let directory = Closed::new(name);
    if directory.is_closed() {
        test(&directory);
        return;
    }
    assert!(env::var_os(CHILD).is_none(), "the other user may enter the directory");
    let again = Command::new("/proc/self/exe") // its path may lead through a directory that is closed to the other user
        .args(["--exact", name])
        .env(CHILD, "")
        .current_dir("/")
        .gid(40001)
        .uid(40001)
        .output()
        .expect("the test's program");
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stdout));
}

fn client(path: &Path) -> StreamClient {
    StreamClient::unix(path, StreamOptions::default())
}

fn message() -> Message<'static> {
    Message::new("clicks", "hello")
}

#[test]
fn a_flush_without_permission_fails_at_once() {
    with_closed_directory("a_flush_without_permission_fails_at_once", |directory| {
        let client = client(&directory.socket());
        client.send(&message()).expect("room");
        let begin = Instant::now();
        for _ in 0..10 {
            assert_eq!(client.flush(Level::Delivered, LONG), Err(FlushError::NoPermission));
        }
        assert!(FlushError::NoPermission.to_string().contains("input.unix_stream.mode"));
        assert_eq!(client.stats().waiting, 1);
        assert_eq!(client.close(LONG), 1);
        assert!(begin.elapsed() < Duration::from_secs(20), "the pauses grow");
    });
}

#[test]
fn a_flush_without_a_daemon_waits_for_its_time_limit() {
    let client = client(&env::temp_dir().join(format!("bruce-absent-{}", process::id())));
    assert_eq!(client.flush(Level::Delivered, Duration::from_millis(200)), Err(FlushError::TimedOut));
}

#[test]
fn close_connects_once_more_after_a_denial() {
    with_closed_directory("close_connects_once_more_after_a_denial", |directory| {
        let client = client(&directory.socket());
        assert_eq!(client.flush(Level::Delivered, LONG), Err(FlushError::NoPermission));
        directory.set_mode(0o700);
        let _daemon = UnixListener::bind(directory.socket()).expect("a socket");
        client.send(&message()).expect("room");
        assert_eq!(client.close(LONG), 0);
    });
}
