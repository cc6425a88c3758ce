"""The part of `bruce check-config --connect` that checks this host: free space, and limits of the Linux kernel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.cli.connection_check import CheckLevel, Finding
from bruce_mp.config.sizes import MIB
from bruce_mp.errors import StartError
from bruce_mp.slab.file import Geometry
from bruce_mp.supervisor.sockets.datagram_limits import MIN_QUEUE_LENGTH, check_datagram_size, queue_length

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.config.model import Config

__all__ = ["host_findings"]

_SHM: Final = Path("/dev/shm")  # noqa: S108 - this module creates nothing in it


def host_findings(config: Config) -> Iterator[Finding]:
    """Yield a finding for the space of each large file of the daemon, and for each limit of the Linux kernel."""
    yield from _file_findings(config)
    if config.input.unix_datagram.enable:
        yield _queue_finding()
        yield _datagram_finding(config)


# --- free space ------------------------------------------------------------------------------------------------------


def _file_findings(config: Config) -> Iterator[Finding]:
    slab_path = Path(config.slab_path)
    size = Geometry.for_size(config.slab.size, config.input.max_datagram_size).file_size
    remedy = "lower slab.size, or set slab.path to a larger file system"
    if _SHM in slab_path.parents:
        remedy += ", or enlarge /dev/shm (mount -o remount,size=SIZE /dev/shm; --shm-size of a container)"
    yield _space_finding("slab", slab_path, size, CheckLevel.FAILED, remedy)
    if config.slab.sync != "off":
        remedy = "make room there, or set slab.journal_dir to a larger file system"
        yield _space_finding("journal", Path(config.journal_path), size, CheckLevel.FAILED, remedy)
    if (config.input.unix_stream.enable or config.input.tcp.enable) and config.input.streams.max_spill_size:
        remedy = (
            "large attempts wait while the disk is full: lower input.streams.max_spill_size, or set "
            "input.streams.spill_dir"
        )
        path, size = Path(config.spill_path), config.input.streams.max_spill_size
        yield _space_finding("spill files", path, size, CheckLevel.WARNING, remedy)
    log = config.discard_log
    if log.enable:
        remedy = "the file lacks lines while the disk is full: make room, or lower discard_log.max_archive_size"
        path, size = Path(log.path), log.max_file_size + log.max_archive_size
        yield _space_finding("discard file", path, size, CheckLevel.WARNING, remedy)


def _space_finding(subject: str, path: Path, size: int, level: CheckLevel, remedy: str) -> Finding:
    """Compare the available space with `size`, the maximum size in bytes of all files at `path` together.

    The available space is the free space plus the space that these files already occupy. The finding has `level` if the
    available space is too small, else OK.
    """
    directory = next(parent for parent in path.parents if os.access(parent, os.F_OK))
    file_system = os.statvfs(directory)
    available = file_system.f_bavail * file_system.f_frsize + sum(map(_bytes_on_disk, _files_at(path)))
    text = f"{path}: up to {_mib(size)} MiB, {_mib(available)} MiB available"
    if available >= size:
        return Finding(CheckLevel.OK, subject, text)
    return Finding(level, subject, f"{text}; {remedy}.")


def _files_at(path: Path) -> list[Path]:
    """Return the file or directory `path`, the rotated files beside it, and the content of a directory.

    Return an empty list if they cannot be listed.
    """
    try:
        return [*path.parent.glob(f"{path.name}*"), *(path.iterdir() if path.is_dir() else ())]
    except OSError:
        return []


def _bytes_on_disk(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512  # st_blocks counts units of 512 bytes on every file system
    except OSError:
        return 0


def _mib(size: int) -> str:
    return f"{size // MIB:,}"


# --- the Linux kernel ------------------------------------------------------------------------------------------------


def _queue_finding() -> Finding:
    length, subject = queue_length(), "kernel net.unix.max_dgram_qlen"
    if length is None:
        text = "cannot be read. If senders' bursts are refused, raise it on the host."
        return Finding(CheckLevel.WARNING, subject, text)
    if length < MIN_QUEUE_LENGTH:
        text = (
            f"{length}: a burst of more datagrams blocks its sender, or is refused. Before the daemon starts, run "
            f"sysctl -w net.unix.max_dgram_qlen={MIN_QUEUE_LENGTH}"
        )
        return Finding(CheckLevel.WARNING, subject, text)
    return Finding(CheckLevel.OK, subject, str(length))


def _datagram_finding(config: Config) -> Finding:
    size, subject = config.input.max_datagram_size, "kernel datagram size"
    try:
        check_datagram_size(size, allow_large=False)
    except StartError as error:
        level = CheckLevel.WARNING if config.input.allow_large_datagrams else CheckLevel.FAILED
        return Finding(level, subject, str(error))
    return Finding(CheckLevel.OK, subject, f"clients can send {size:,} bytes")
