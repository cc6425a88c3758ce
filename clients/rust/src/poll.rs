//! `poll()`, the only system call that this crate needs and the standard library lacks.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_short, c_ulong};
use std::io;
use std::os::unix::io::{AsRawFd, BorrowedFd};
use std::time::Duration;

const POLLOUT: c_short = 4;

#[repr(C)]
struct PollFd {
    fd: c_int,
    events: c_short,
    revents: c_short,
}

extern "C" {
    fn poll(fds: *mut PollFd, count: c_ulong, timeout_ms: c_int) -> c_int;
}

/// Waits until a descriptor is writable; returns false after the time limit.
pub fn wait_writable(descriptor: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    let mut entry = PollFd { fd: descriptor.as_raw_fd(), events: POLLOUT, revents: 0 };
    let timeout_ms = c_int::try_from((timeout.as_micros() + 999) / 1000).unwrap_or(c_int::MAX);
    // SAFETY: the pointer is to one entry, which poll() fills, and the descriptor is open while it is borrowed.
    match unsafe { poll(&mut entry, 1, timeout_ms) } {
        -1 => Err(io::Error::last_os_error()),
        ready => Ok(ready > 0),
    }
}
