"""Collect the input of scripts/demo: lines of this machine's log files; if these are few, also of the git history.

The demo prints some lines. It reads only log files that everyone may read, so it prints no secret.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DemoError", "Feed", "collect"]

ROOT: Final = Path(__file__).resolve().parents[1]
LOG_NAMES: Final = ("*.log", "*.log.1", "syslog", "messages")
TAIL_BYTES: Final = 16 << 20
"""Number of bytes at the end of a log file that are read; the rest is left out."""
MAX_LINE_BYTES: Final = 16 << 10
"""Longer lines are skipped, because they might not fit into a datagram."""
ENOUGH_LINES: Final = 500
"""If the log files have fewer lines, lines of the git history are added."""
OWN_TOPIC_COUNT: Final = 2
"""Number of log files, those with the most lines, that have a topic of their own. The others share one topic."""
HISTORY: Final = {"git-commits": ("log", "--format=%h %aI %s"), "git-files": ("log", "--format=%h", "--name-status")}
"""Arguments of git by topic; the output of each command is the lines of the topic."""


class DemoError(Exception):
    """The demo cannot continue, or lines are missing, doubled or out of order. The text is for the user."""


@dataclass(slots=True)
class Feed:
    """The lines of one topic."""

    topic: str
    origins: list[str] = field(default_factory=list)
    """The files or the git command from which the lines come."""
    lines: list[bytes] = field(default_factory=list)


def collect(logs: Path, limit: int) -> list[Feed]:
    """Collect at most `limit` lines from the log files below `logs`, and from the git history if these are few.

    Raise DemoError if there are no lines.
    """
    feeds = _from_logs(logs, limit)
    line_count = sum(len(feed.lines) for feed in feeds)
    if line_count < min(ENOUGH_LINES, limit):
        feeds += _from_history(limit - line_count)
    if not feeds:
        raise DemoError(f"No world-readable log file below {logs}, and no git history: try --logs DIR.")
    return feeds


def _from_logs(directory: Path, limit: int) -> list[Feed]:
    paths = {path for name in LOG_NAMES for path in directory.rglob(name) if _is_public(path)}
    # The files with the most lines come first.
    files = sorted(((_lines_of(path), path) for path in paths), key=lambda item: (-len(item[0]), item[1]))
    feeds: dict[str, Feed] = {}
    for rank, (lines, path) in enumerate(files):
        taken = lines[:limit]
        limit -= len(taken)
        if taken:
            topic = _topic_of(path) if rank < OWN_TOPIC_COUNT else "log-others"
            feed = feeds.setdefault(topic, Feed(topic))
            feed.origins.append(str(path))
            feed.lines += taken
    return list(feeds.values())


def _topic_of(path: Path) -> str:
    return f"log-{re.sub('[^A-Za-z0-9_-]', '-', path.stem)[:100]}"


def _is_public(path: Path) -> bool:
    """Return True for a regular file that everyone may read."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and bool(found.st_mode & stat.S_IROTH) and os.access(path, os.R_OK)


def _lines_of(path: Path) -> list[bytes]:
    """Return the lines in the last `TAIL_BYTES` of a text file; none if the file is binary or cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except OSError:
        return []
    return [] if b"\0" in data else _split(data)


def _split(data: bytes) -> list[bytes]:
    """Return the lines, without empty and very long ones."""
    return [line for line in data.split(b"\n") if 0 < len(line) <= MAX_LINE_BYTES]


def _from_history(limit: int) -> list[Feed]:
    feeds = []
    for topic, arguments in HISTORY.items():
        lines = _split(_git(arguments))[:limit]
        limit -= len(lines)
        if lines:
            feeds.append(Feed(topic, [f"git {' '.join(arguments)}"], lines))
    return feeds


def _git(arguments: Sequence[str]) -> bytes:
    # If this source tree is no repository itself, ignore a repository around it.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(ROOT.parent)}
    try:
        done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, check=True, env=environment)
    except (OSError, subprocess.CalledProcessError):
        return b""  # a source tree without history, or a machine without git
    return done.stdout
