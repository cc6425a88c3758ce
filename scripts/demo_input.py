"""Collect the input of scripts/demo: lines of this machine's log files, or of the repository's history.

Only world-readable log files are read, so the terminal shows no secret.
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
"""Bytes at the end of a log file that are read."""
LONGEST_LINE: Final = 16 << 10
"""Longer lines are skipped, because they might not fit into a datagram."""
ENOUGH_LINES: Final = 500
"""With fewer lines of logs, the git history completes the input."""
OWN_TOPICS: Final = 2
"""Number of log files, the longest ones, with a separate topic; the others share one."""
HISTORY: Final = {"git-commits": ("log", "--format=%h %aI %s"), "git-files": ("log", "--format=%h", "--name-status")}


class DemoError(Exception):
    """The demo cannot continue, or found a fault; the text is for the user."""


@dataclass(slots=True)
class Feed:
    """The lines of one topic, and their origins."""

    topic: str
    origins: list[str] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)


def collect(logs: Path, limit: int) -> list[Feed]:
    """Collect at most `limit` lines of the log files below `logs`, completed from the git history.

    Raises DemoError if there are none.
    """
    feeds = _from_logs(logs, limit)
    found = sum(len(feed.lines) for feed in feeds)
    if found < min(ENOUGH_LINES, limit):
        feeds += _from_history(limit - found)
    if not feeds:
        raise DemoError(f"No world-readable log file below {logs}, and no git history: try --logs DIR.")
    return feeds


def _from_logs(directory: Path, limit: int) -> list[Feed]:
    paths = {path for name in LOG_NAMES for path in directory.rglob(name) if _is_public(path)}
    files = sorted(((_lines_of(path), path) for path in paths), key=lambda item: (-len(item[0]), item[1]))
    feeds: dict[str, Feed] = {}
    for rank, (lines, path) in enumerate(files):
        taken = lines[:limit]
        limit -= len(taken)
        if taken:
            topic = _topic_of(path) if rank < OWN_TOPICS else "log-others"
            feed = feeds.setdefault(topic, Feed(topic))
            feed.origins.append(str(path))
            feed.lines += taken
    return list(feeds.values())


def _topic_of(path: Path) -> str:
    return f"log-{re.sub('[^A-Za-z0-9_-]', '-', path.stem)[:100]}"


def _is_public(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and bool(found.st_mode & stat.S_IROTH) and os.access(path, os.R_OK)


def _lines_of(path: Path) -> list[bytes]:
    """Return the last lines of a text file; none if the file is binary or missing."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except OSError:
        return []
    return [] if b"\0" in data else _split(data)


def _split(data: bytes) -> list[bytes]:
    return [line for line in data.split(b"\n") if 0 < len(line) <= LONGEST_LINE]


def _from_history(limit: int) -> list[Feed]:
    feeds = []
    for topic, arguments in HISTORY.items():
        lines = _split(_git(arguments))[:limit]
        limit -= len(lines)
        if lines:
            feeds.append(Feed(topic, [f"git {' '.join(arguments)}"], lines))
    return feeds


def _git(arguments: Sequence[str]) -> bytes:
    # Ignore a repository in a parent directory.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(ROOT.parent)}
    try:
        done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, check=True, env=environment)
    except (OSError, subprocess.CalledProcessError):
        return b""  # a source tree without history, or a machine without git
    return done.stdout
