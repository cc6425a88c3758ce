"""`bruce replay`: send the messages of discard files and slab exports again, each line once.

A chunk of messages is one unique attempt: the daemon delivers all of it or nothing, and remembers its name. After a
kill, the next run asks the daemon for the chunks without an answer, so few chunks stay in doubt. All tries of a chunk
have one name, because the daemon may still have to read the end of an earlier try.

The files of one log, `PATH` and the `PATH.MS` that the daemon rotated, count as one: equal lines in them are different
messages. Equal lines of other files are one line, because an archive holds copies.

Exit status: 0 if Kafka has all selected messages, 1 if some were discarded, too large or in a cut line, if the daemon
lost their counts, or if the daemon failed.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from argparse import ArgumentParser
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import Enum, auto, unique
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from bruce_mp.cli.replay_state import LineKey, ReplayState, UnconfirmedChunk
from bruce_mp.client import SendError, StreamClient, TcpClient
from bruce_mp.errors import BruceError, DiscardReason, ExitCode, LocalProtocolError
from bruce_mp.protocol.client.answer_reader import AnswerReader
from bruce_mp.protocol.client.barrier import TOKEN_BYTES
from bruce_mp.protocol.client.inquiry import AttemptOutcome, InquiryAnswer, encode_inquiry
from bruce_mp.protocol.client.messages import encode_message
from bruce_mp.protocol.client.replay_rules import (
    ABANDONED,
    IN_KAFKA,
    DoubtfulPolicy,
    LineFate,
    LineSelection,
    Replayed,
    line_of,
    message_of,
)
from bruce_mp.telemetry.clock import wall_ms

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence

    from bruce_mp.protocol.client.discard_line import DiscardLine

__all__ = ["main"]

CHUNK_MESSAGES: Final = 1000
CHUNK_BYTES: Final = 1 << 20
"""A chunk ends with the message that reaches one of these numbers: a kill leaves at most one chunk in doubt."""
LINGER_S: Final = 0.01
"""Time that the client collects messages for one write."""
TRIES: Final = 5
"""Attempts for a chunk that the daemon discards unfinished, such as during its restarts."""
POLL_S: Final = 0.1
"""Interval of inquiries while messages have no outcome."""
ANSWER_BYTES: Final = 8192
"""The largest part of an answer that one receive returns."""
ROTATED: Final = re.compile(r"\.\d{13}\Z")
"""End of the name of a rotated file: the time in ms since the epoch."""
LEFT_OUT: Final = {
    # The count that a line of each fate raises; lines of other fates are sent.
    LineFate.NO_MESSAGE: Replayed(no_message=1),
    LineFate.FILTERED: Replayed(filtered=1),
    LineFate.IN_KAFKA: Replayed(in_kafka=1),
    LineFate.ABANDONED: Replayed(abandoned=1),
}
COMPLETE: Final = frozenset({AttemptOutcome.SETTLED, AttemptOutcome.UNCOUNTED})


class ReplayError(BruceError):
    """The replay stopped; the next run continues."""


@unique
class ChunkFate(Enum):
    """The daemon's answer, or the user's decision, about a chunk."""

    CONFIRMED = auto()
    """The daemon has all of it, or the user skips it."""
    INCOMPLETE = auto()
    """The daemon has not completed it; it may still read the end of an earlier try."""
    REMOVED = auto()
    """The user has its lines sent as new ones."""


@dataclass(slots=True)
class IncompleteChunk:
    """A chunk of a killed run that is sent again, under its name, when all its lines are read."""

    chunk: UnconfirmedChunk
    missing: int
    messages: list[bytes] = field(default_factory=list)


class ReplayDaemon:
    """The daemon that the messages go to: a UNIX stream socket, or a TCP port of this host."""

    def __init__(self, target: str | int, timeout_s: float) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self.address = f"127.0.0.1:{target}" if isinstance(target, int) else os.fspath(Path(target).resolve())
        # The daemon of each host remembers names, on a UNIX socket for each user separately.
        user = "" if isinstance(target, int) else f" for user {os.geteuid()}"
        self.identity = f"{self.address} on {socket.gethostname()}{user}"

    def send(self, name: str, messages: Sequence[bytes], max_message: int) -> Counter[str]:
        """Deliver a unique attempt. Return the discarded messages by reason. Raise SendError."""
        with self._client(max_message) as client:
            with client.attempt(name, keep_timestamps=True, unique=True):
                for message in messages:
                    client.send_encoded(message)
            return Counter(client.flush(self._timeout_s).reasons)

    def _client(self, max_message: int) -> StreamClient | TcpClient:
        if isinstance(self._target, int):
            return TcpClient(self._target, timeout=self._timeout_s, linger=LINGER_S, max_message=max_message)
        return StreamClient(self._target, timeout=self._timeout_s, linger=LINGER_S, max_message=max_message)

    def inquire(self, name: str = "") -> InquiryAnswer:
        """Ask for the outcome of an attempt, and for the limits of messages.

        Raises:
            ReplayError: no daemon that knows inquiries answers.
        """
        try:
            with self._connect() as connection:
                connection.sendall(encode_inquiry(os.urandom(TOKEN_BYTES), name.encode()))
                answer = self._read(connection)
        except OSError as error:
            raise ReplayError(f"{self.address}: no daemon answers: {error.strerror or 'it took too long'}.") from error
        if not isinstance(answer, InquiryAnswer):
            raise ReplayError(f"{self.address}: the daemon is too old for a replay. Update it.")
        return answer

    def await_settled(self, name: str) -> InquiryAnswer:
        """Wait for the outcome of all messages of an attempt. Raise ReplayError after the time limit."""
        deadline = time.monotonic() + self._timeout_s
        while (answer := self.inquire(name)).outcome is AttemptOutcome.PENDING:
            if time.monotonic() > deadline:
                text = f"Kafka has not all messages within {self._timeout_s:g} s. The daemon keeps them: run again."
                raise ReplayError(f"{self.address}: {text}")
            time.sleep(POLL_S)
        return answer

    def _connect(self) -> socket.socket:
        if isinstance(self._target, int):
            return socket.create_connection(("127.0.0.1", self._target), self._timeout_s)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(self._timeout_s)
            connection.connect(self._target)
        except OSError:
            connection.close()
            raise
        return connection

    @staticmethod
    def _read(connection: socket.socket) -> object:
        reader = AnswerReader()
        while data := connection.recv(ANSWER_BYTES):
            for answer in reader.feed(data):
                return answer
        return None


class ReplayRun:
    """One run of the command.

    `counts`, `discarded`, `too_large` and `cut_lines` have its result; `copies` counts the lines that other files of
    the run have too, and `uncounted` the messages whose outcomes the daemon has lost.
    """

    def __init__(
        self, state: ReplayState, daemon: ReplayDaemon, selection: LineSelection, doubtful: DoubtfulPolicy
    ) -> None:
        self._state = state
        self._daemon = daemon
        self._selection = selection
        self._doubtful = doubtful
        self.counts = Replayed()
        self.discarded: Counter[str] = Counter()
        self.too_large = 0
        self.cut_lines = 0
        self.copies = 0
        self.uncounted = 0
        self._files: set[tuple[int, int]] = set()
        """Device and inode of each file that this run has read."""
        self._equal_lines: defaultdict[Path, Counter[bytes]] = defaultdict(Counter)
        """Number of equal lines in the files of each log, by the hash of the line."""
        self._seen: Counter[bytes] = Counter()
        """The largest of these numbers among all logs. A line whose number is not larger is a copy."""
        self._incomplete: dict[LineKey, IncompleteChunk] = {}
        """The chunks of killed runs that are to be sent again, by each of their unread lines."""

    def resolve(self) -> None:
        """Decide about the chunks of killed runs. Raise ReplayError if the user has to decide."""
        for chunk in self._state.unconfirmed():
            if self._resolve(chunk) is ChunkFate.INCOMPLETE:
                keys = self._state.lines_of(chunk.name)
                self._incomplete |= dict.fromkeys(keys, IncompleteChunk(chunk, len(keys)))

    def finish(self) -> None:
        """Decide about the chunks of killed runs with lines that this run has not read. Raise as `resolve`."""
        for chunk in {incomplete.chunk for incomplete in self._incomplete.values()}:
            self._decide(chunk, "this run selects only a part of their lines")

    def send_file(self, path: Path, *, dry_run: bool) -> None:
        """Send the selected lines of a file that were not sent before. A second name of a file has no effect."""
        status = path.stat()
        if (status.st_dev, status.st_ino) in self._files:
            return
        self._files.add((status.st_dev, status.st_ino))
        limit = self._daemon.inquire().largest_message if not dry_run else None
        for keys, messages in _chunks(self._new_lines(path, limit)):
            if not dry_run:
                self._deliver(keys, messages, limit or 0)
            self.counts += Replayed(sent=len(messages))

    def _new_lines(self, path: Path, limit: int | None) -> Iterator[tuple[LineKey, bytes]]:
        """Yield the lines to send, with their messages; count the others, and continue the chunks of killed runs."""
        resolved = path.resolve()
        equal = self._equal_lines[resolved.with_name(ROTATED.sub("", resolved.name))]
        with path.open("rb") as file:
            for data in file:
                if not data.endswith(b"\n"):
                    self.cut_lines += 1
                    continue
                line = line_of(data.rstrip(b"\r\n"))
                fate = self._selection.fate_of(line)
                digest = sha256(data.rstrip(b"\r\n")).digest()
                equal[digest] += 1
                key = LineKey(digest, equal[digest])
                is_copy = key.number <= self._seen[digest]
                self._seen[digest] = max(self._seen[digest], key.number)
                if line is None or fate in LEFT_OUT:
                    self.counts += LEFT_OUT[fate]
                elif is_copy:
                    self.copies += 1
                elif key not in self._incomplete and self._state.contains(key):
                    self.counts += Replayed(already=1)
                elif (message := _encoded(line)) is None or (limit is not None and len(message) > limit):
                    self.too_large += 1
                elif key in self._incomplete:
                    self._continue(self._incomplete.pop(key), message, limit or 0)
                else:
                    yield key, message

    def _deliver(self, keys: Sequence[LineKey], messages: Sequence[bytes], limit: int) -> None:
        """Send a new chunk."""
        chunk = UnconfirmedChunk(f"replay-{uuid4().hex}", self._daemon.identity, wall_ms())
        self._state.begin(chunk, keys)
        self._send(chunk, messages, limit)

    def _continue(self, incomplete: IncompleteChunk, message: bytes, limit: int) -> None:
        """Add the next message of a killed run's chunk. Send the chunk if it has all."""
        incomplete.messages.append(message)
        incomplete.missing -= 1
        if not incomplete.missing:
            self._send(incomplete.chunk, incomplete.messages, limit)
            self.counts += Replayed(sent=len(incomplete.messages))

    def _send(self, chunk: UnconfirmedChunk, messages: Sequence[bytes], limit: int) -> None:
        """Send a chunk, again under its name if the daemon discarded it unfinished."""
        for _ in range(TRIES):
            try:
                self.discarded += self._daemon.send(chunk.name, messages, limit)
                self._state.confirm(chunk.name)
            except SendError as error:
                failure = error
                fate = self._resolve(chunk)
                if fate is ChunkFate.REMOVED:
                    text = f"run again, because an attempt failed: {error}"
                    raise ReplayError(f"{self._daemon.address}: {text}") from error
                if fate is ChunkFate.INCOMPLETE:
                    continue
            return
        raise ReplayError(f"{self._daemon.address}: {TRIES} attempts failed: {failure}")

    def _resolve(self, chunk: UnconfirmedChunk) -> ChunkFate:
        """Ask for the outcome of a chunk without an answer."""
        if chunk.daemon != self._daemon.identity:
            return self._decide(chunk, f"they went to {chunk.daemon}, not to {self._daemon.identity}")
        answer = self._daemon.await_settled(chunk.name)
        if answer.outcome in COMPLETE:
            if answer.outcome is AttemptOutcome.UNCOUNTED:
                self.uncounted += len(self._state.lines_of(chunk.name))
            self.discarded += Counter({_reason_name(reason): count for reason, count in answer.reasons.items()})
            self._state.confirm(chunk.name)
            return ChunkFate.CONFIRMED
        if answer.outcome is AttemptOutcome.NONE and answer.since_ms <= chunk.started_ms:
            return ChunkFate.INCOMPLETE
        return self._decide(chunk, "the daemon does not remember them")

    def _decide(self, chunk: UnconfirmedChunk, reason: str) -> ChunkFate:
        """Apply the user's choice to a chunk that the daemon cannot answer for. Raise ReplayError without a choice."""
        if self._doubtful is DoubtfulPolicy.REFUSE:
            raise ReplayError(
                f"A killed run sent messages that may be in Kafka or not: {reason}. Check Kafka, then run again with "
                "--doubtful send or --doubtful skip."
            )
        if self._doubtful is DoubtfulPolicy.SKIP:
            self._state.confirm(chunk.name)
            return ChunkFate.CONFIRMED
        self._state.remove(chunk.name)
        return ChunkFate.REMOVED


def _encoded(line: DiscardLine) -> bytes | None:
    """Return the message of a line; None if it is larger than the protocol allows."""
    try:
        return encode_message(message_of(line))
    except LocalProtocolError:
        return None


def _reason_name(reason: DiscardReason | int) -> str:
    return reason.name if isinstance(reason, DiscardReason) else f"REASON_{reason}"


def _chunks(lines: Iterator[tuple[LineKey, bytes]]) -> Iterator[tuple[list[LineKey], list[bytes]]]:
    """Yield the lines in chunks of at most CHUNK_MESSAGES and about CHUNK_BYTES."""
    keys: list[LineKey] = []
    messages: list[bytes] = []
    size = 0
    for key, message in lines:
        keys.append(key)
        messages.append(message)
        size += len(message)
        if len(keys) >= CHUNK_MESSAGES or size >= CHUNK_BYTES:
            yield keys, messages
            keys, messages, size = [], [], 0
    if keys:
        yield keys, messages


def main(argv: Sequence[str]) -> int:
    """Replay the files, print the counts, and return the exit status."""
    args = _parser().parse_args(argv)
    selection = LineSelection(args.only_topic, args.info, args.since, args.until, args.include_abandoned)
    daemon = ReplayDaemon(args.port if args.stream_socket_path is None else args.stream_socket_path, args.timeout)
    with ReplayState(args.state) as state:
        run = ReplayRun(state, daemon, selection, DoubtfulPolicy(args.doubtful))
        try:
            if not args.dry_run:
                run.resolve()
            for path in args.files:
                run.send_file(path, dry_run=args.dry_run)
            run.finish()
        except OSError as error:
            raise ReplayError(f"{error.filename}: {error.strerror}.") from error
        finally:
            _print_outcome(run, args)
    is_incomplete = run.discarded or run.too_large or run.cut_lines or run.uncounted
    return ExitCode.SETUP if is_incomplete else ExitCode.OK


def _print_outcome(run: ReplayRun, args: Namespace) -> None:
    counts = run.counts
    print(
        f"{counts.sent:,} {'to send' if args.dry_run else 'sent'}, {counts.already:,} replayed before, "
        f"{counts.filtered:,} filtered out, {counts.no_message:,} lines without a discarded message"
    )
    if counts.in_kafka:
        sys.stderr.write(
            f"bruce: {counts.in_kafka:,} messages were left out, because Kafka has or may have them: lines with the "
            f"info {', '.join(IN_KAFKA)}. --info selects them.\n"
        )
    if counts.abandoned:
        sys.stderr.write(
            f"bruce: {counts.abandoned:,} messages of refused tries ({ABANDONED}) were left out, because their client "
            "sends them again by itself. --include-abandoned includes them.\n"
        )
    if run.copies:
        sys.stderr.write(
            f"bruce: {run.copies:,} lines are in two files, and count once, as copies. Only PATH and the rotated "
            "PATH.MS beside it may have equal lines of different messages.\n"
        )
    if run.uncounted:
        sys.stderr.write(
            f"bruce: {run.uncounted:,} messages have an unknown outcome: the daemon has all of them, but it was killed "
            "and lost their counts. Look for new lines in its discard file.\n"
        )
    if run.cut_lines:
        sys.stderr.write(f"bruce: {run.cut_lines:,} last lines without a newline are incomplete, and were not sent.\n")
    if run.too_large:
        sys.stderr.write(f"bruce: {run.too_large:,} messages are too large for the daemon, and were not sent.\n")
    if run.discarded:
        reasons = ", ".join(f"{name} {count}" for name, count in sorted(run.discarded.items()))
        sys.stderr.write(f"bruce: the daemon discarded {run.discarded.total():,} of them again: {reasons}.\n")


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="bruce replay",
        description="Send the messages of discard files and slab exports again, each line once.",
        epilog="Exit status: 0 if Kafka has all selected messages, 1 otherwise; a further run continues.",
    )
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="discard files, and exports of `bruce slab export`")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--stream-socket-path", metavar="PATH", help="the daemon's UNIX stream socket")
    target.add_argument("--port", type=int, metavar="N", help="the daemon's TCP port on 127.0.0.1")
    add("--state", type=Path, metavar="FILE", required=True, help="record of the lines that were sent; kept by you")
    add("--only-topic", metavar="TOPIC", action="append", default=[], help="only this topic; repeatable")
    add("--info", action="append", default=[], help="only this reason, spelled as in the lines; repeatable")
    add("--include-abandoned", action="store_true", help=f"also {ABANDONED}: messages that their client sent again")
    add("--since", metavar="MS", type=int, help="only timestamps from this one, ms since the epoch")
    add("--until", metavar="MS", type=int, help="only timestamps before this, ms since the epoch")
    add("--doubtful", choices=[*DoubtfulPolicy], default="refuse", help="messages that a killed run may have sent")
    add("--timeout", metavar="S", type=float, default=60.0, help="longest wait for an answer (default 60)")
    add("--dry-run", action="store_true", help="read and count, send nothing")
    return parser
