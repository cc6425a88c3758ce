"""`bruce replay`: send the messages of discard files and slab exports again, each line once.

A *run* of the command sends the messages in groups. Each group is a *unique attempt*: the daemon delivers all of its
messages or none, and remembers its name. If a run is killed before the daemon has confirmed the last groups, the next
run asks the daemon for the outcomes of these groups, so few groups stay in doubt. A run that retries a group reuses its
name: the daemon may still receive the rest of the earlier attempt, but completes only one attempt of a name.

`PATH` and the files `PATH.MS` that the daemon rotated are one log, and equal lines in a log are different messages.
Equal lines of different logs are one message, because one log may be a backup of the other.

Exit status: 0 if Kafka has all messages of this run, 1 if some were discarded, too large or in a last line without a
newline, if the daemon lost the outcomes of some, or if the daemon failed. A further run continues. It does not send the
discarded messages again: replay their new lines in the daemon's discard file, once the cause is gone.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import Enum, auto, unique
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from bruce_mp.cli.options import command_parser, port_number, seconds_from
from bruce_mp.cli.replay_state import LineKey, ReplayState, UnconfirmedGroup
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
    ReplayCounts,
    in_replay_order,
    line_of,
    log_name,
    message_of,
)
from bruce_mp.telemetry.clock import wall_ms

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Sequence

    from bruce_mp.protocol.client.discard_line import DiscardLine

__all__ = ["main"]

MESSAGES_PER_GROUP: Final = 1000
BYTES_PER_GROUP: Final = 1 << 20
"""A group is complete as soon as it reaches one of these limits."""
LINGER_S: Final = 0.01
"""Time for which the client collects messages for one write."""
MAX_ATTEMPTS: Final = 5
"""Maximum number of attempts for a group; each fails if the daemon discards it unfinished, as during a restart."""
POLL_S: Final = 0.1
"""Pause between two inquiries while messages have no outcome."""
RECEIVE_BYTES: Final = 8192
COUNTS_OF_UNSENT: Final = {
    LineFate.NO_MESSAGE: ReplayCounts(no_message=1),
    LineFate.FILTERED: ReplayCounts(filtered=1),
    LineFate.IN_KAFKA: ReplayCounts(in_kafka=1),
    LineFate.ABANDONED: ReplayCounts(abandoned=1),
}
"""What a line that is not sent adds to the run's counts, by the line's fate."""
CONFIRMING_OUTCOMES: Final = frozenset({AttemptOutcome.SETTLED, AttemptOutcome.UNCOUNTED})
"""Outcomes that confirm a group. UNCOUNTED: the daemon was killed, and has lost its counts of discards."""


class ReplayError(BruceError):
    """The replay stopped; the next run continues."""


@unique
class GroupFate(Enum):
    """The daemon's answer, or the user's decision, about a group."""

    CONFIRMED = auto()
    """The daemon has received all messages of the group, or the user chooses not to send them again."""
    INCOMPLETE = auto()
    """The daemon has not completed an attempt of the group, but may still receive the rest of one."""
    REMOVED = auto()
    """The user chooses to send the lines of the group again, as new ones."""


@dataclass(slots=True)
class IncompleteGroup:
    """A group that a killed run sent in part. `keys` and `messages` belong to the lines that this run has read.

    When this run has read all lines of the group, it sends the group again, under the old name.
    """

    group: UnconfirmedGroup
    unread_line_count: int
    keys: list[LineKey] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)


class ReplayDaemon:
    """The daemon that receives the messages: `target` is a UNIX stream socket, or a TCP port of this host."""

    def __init__(self, target: str | int, timeout_s: float) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self.address = f"127.0.0.1:{target}" if isinstance(target, int) else os.path.realpath(target)
        # A daemon remembers attempts by name. On a UNIX socket, each user has separate names.
        user = "" if isinstance(target, int) else f" for user {os.geteuid()}"
        self.identity = f"{self.address} on {socket.gethostname()}{user}"

    def send(self, name: str, messages: Sequence[bytes], max_message_bytes: int) -> Counter[str]:
        """Send a unique attempt, and wait for its outcome. Return the number of discards by reason. Raise SendError."""
        with self._client(max_message_bytes) as client:
            with client.attempt(name, keep_timestamps=True, unique=True):
                for message in messages:
                    client.send_encoded(message)
            return Counter(client.flush(self._timeout_s).reasons)

    def _client(self, max_message_bytes: int) -> StreamClient | TcpClient:
        if isinstance(self._target, int):
            return TcpClient(self._target, timeout=self._timeout_s, linger=LINGER_S, max_message=max_message_bytes)
        return StreamClient(self._target, timeout=self._timeout_s, linger=LINGER_S, max_message=max_message_bytes)

    def inquire(self, name: str = "") -> InquiryAnswer:
        """Ask the daemon for its limit of the message size, and for the outcome of the attempt `name`, if given.

        Raise ReplayError if no daemon answers, or the daemon is too old for inquiries.
        """
        try:
            with self._connect() as connection:
                connection.sendall(encode_inquiry(os.urandom(TOKEN_BYTES), name.encode()))
                answer = self._read_answer(connection)
        except OSError as error:
            raise ReplayError(f"{self.address}: no daemon answers: {error.strerror or 'it took too long'}.") from error
        if not isinstance(answer, InquiryAnswer):
            raise ReplayError(f"{self.address}: the daemon is too old for a replay. Update it.")
        return answer

    def await_settled(self, name: str) -> InquiryAnswer:
        """Inquire until no message of an attempt is pending, and return the last answer.

        Raise ReplayError after the time limit.
        """
        deadline = time.monotonic() + self._timeout_s
        while (answer := self.inquire(name)).outcome is AttemptOutcome.PENDING:
            if time.monotonic() > deadline:
                text = f"Kafka did not get all messages within {self._timeout_s:g} s. The daemon keeps them: run again."
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
    def _read_answer(connection: socket.socket) -> object:
        """Return the first answer, or None if the daemon closes the connection."""
        reader = AnswerReader()
        while data := connection.recv(RECEIVE_BYTES):
            for answer in reader.feed(data):
                return answer
        return None


class ReplayRun:
    """One run of the command. The public attributes are the counts of messages or lines that it prints.

    `discard_counts` has the number of discards by the daemon's reason. `cut_line_count` counts last lines without a
    newline, and `copy_count` the lines that an earlier file of another log had. `undecided_count` counts messages of
    unconfirmed groups in a dry run, because a dry run does not ask the daemon for their outcomes.
    """

    def __init__(
        self, state: ReplayState, daemon: ReplayDaemon, selection: LineSelection, doubtful: DoubtfulPolicy
    ) -> None:
        self._state = state
        self._daemon = daemon
        self._selection = selection
        self._doubtful = doubtful
        self.counts = ReplayCounts()
        self.discard_counts: Counter[str] = Counter()
        self.too_large_count = 0
        self.cut_line_count = 0
        self.copy_count = 0
        self.lost_outcome_count = 0
        self.undecided_count = 0
        self._undecided_keys: frozenset[LineKey] = frozenset()
        self._read_file_ids: set[tuple[int, int]] = set()
        """The device and inode of each file that this run has read."""
        self._line_counts_by_log: defaultdict[Path, Counter[bytes]] = defaultdict(Counter)
        """For each log, how often this run has read each line in it, by the hash of the line."""
        self._largest_line_counts: Counter[bytes] = Counter()
        """For each line, by its hash, the largest count in any log; a line with a larger count is a new message."""
        self._incomplete_by_key: dict[LineKey, IncompleteGroup] = {}
        """For each unread line of a group that this run is to send again, the group."""
        self._max_message_bytes = sys.maxsize
        """The size of the largest message that the daemon accepts; unlimited in a dry run."""

    def resolve(self) -> None:
        """Decide about the unconfirmed groups of killed runs. Raise ReplayError if the user has to decide."""
        for group in self._state.unconfirmed_groups():
            if self._resolve_group(group) is GroupFate.INCOMPLETE:
                keys = self._state.keys_of(group.name)
                incomplete = IncompleteGroup(group, unread_line_count=len(keys))
                self._incomplete_by_key |= dict.fromkeys(keys, incomplete)

    def leave_undecided(self) -> None:
        """Note the lines of the unconfirmed groups for a dry run, because a dry run asks no daemon about the groups."""
        groups = self._state.unconfirmed_groups()
        self._undecided_keys = frozenset(key for group in groups for key in self._state.keys_of(group.name))

    def finish(self) -> None:
        """Decide about the groups of killed runs if this run has not read all of their lines.

        Raise ReplayError if the user has to decide.
        """
        distinct_groups = {each.group.name: each for each in self._incomplete_by_key.values()}
        for incomplete in distinct_groups.values():
            fate = self._decide(incomplete.group, "this run selects only a part of their lines")
            if fate is GroupFate.REMOVED and incomplete.messages:
                self._send_new(incomplete.keys, incomplete.messages)

    def send_file(self, path: Path, *, dry_run: bool) -> None:
        """Send the selected lines of a file that were not sent before, or only count them if `dry_run` is True.

        Do nothing if this run has read the file already, perhaps under another name. Raise ReplayError.
        """
        try:
            status = path.stat()
            if (status.st_dev, status.st_ino) in self._read_file_ids:
                return
            self._read_file_ids.add((status.st_dev, status.st_ino))
            if not dry_run:
                self._max_message_bytes = self._daemon.inquire().largest_message
            for keys, messages in _groups(self._new_lines(path)):
                if dry_run:
                    self.counts += ReplayCounts(sent=len(messages))
                else:
                    self._send_new(keys, messages)
        except OSError as error:
            raise ReplayError(f"{path}: {error.strerror}.") from error

    def _new_lines(self, path: Path) -> Iterator[tuple[LineKey, bytes]]:
        """Read a file, and yield the key and the message of each line that belongs to a new group.

        Count the lines that are not sent. Add the lines of a killed run's group to that group.
        """
        log_path = Path(log_name(os.path.realpath(path)))
        line_counts = self._line_counts_by_log[log_path]
        with path.open("rb") as file:
            for data in file:
                if not data.endswith(b"\n"):
                    self.cut_line_count += 1
                    continue
                content = data.rstrip(b"\r\n")
                line = line_of(content)
                fate = self._selection.fate_of(line)
                key, is_copy = self._count_line(content, line_counts)
                if line is None or fate in COUNTS_OF_UNSENT:
                    self.counts += COUNTS_OF_UNSENT[fate]
                elif is_copy:
                    self.copy_count += 1
                elif key in self._undecided_keys:
                    self.undecided_count += 1
                elif key not in self._incomplete_by_key and self._state.contains(key):
                    self.counts += ReplayCounts(already=1)
                elif (message := _encoded(line)) is None or len(message) > self._max_message_bytes:
                    self.too_large_count += 1
                elif key in self._incomplete_by_key:
                    self._add_to_incomplete(key, message)
                else:
                    yield key, message

    def _count_line(self, content: bytes, line_counts: Counter[bytes]) -> tuple[LineKey, bool]:
        """Count a line in its log. Return the line's key, and True if the line is a copy of a line in another log."""
        digest = sha256(content).digest()
        line_counts[digest] += 1
        key = LineKey(digest, line_counts[digest])
        is_copy = key.number <= self._largest_line_counts[digest]
        self._largest_line_counts[digest] = max(self._largest_line_counts[digest], key.number)
        return key, is_copy

    def _add_to_incomplete(self, key: LineKey, message: bytes) -> None:
        """Add a line to the group that a killed run sent in part. Send the group once it has all of its lines."""
        incomplete = self._incomplete_by_key.pop(key)
        incomplete.keys.append(key)
        incomplete.messages.append(message)
        incomplete.unread_line_count -= 1
        if not incomplete.unread_line_count:
            self._send(incomplete.group, incomplete.messages)

    def _send_new(self, keys: Sequence[LineKey], messages: Sequence[bytes]) -> None:
        group = UnconfirmedGroup(f"replay-{uuid4().hex}", self._daemon.identity, wall_ms())
        self._state.begin(group, keys)
        self._send(group, messages)

    def _send(self, group: UnconfirmedGroup, messages: Sequence[bytes]) -> None:
        """Send a group. If the daemon discards it unfinished, send it again under the same name. Raise ReplayError."""
        for _ in range(MAX_ATTEMPTS):
            try:
                discarded = self._daemon.send(group.name, messages, self._max_message_bytes)
            except SendError as error:
                failure = error
                fate = self._resolve_group(group)
            else:
                self.discard_counts += discarded
                self._state.confirm(group.name)
                fate = GroupFate.CONFIRMED
            if fate is GroupFate.CONFIRMED:
                self.counts += ReplayCounts(sent=len(messages))
                return
            if fate is GroupFate.REMOVED:
                text = f"run again, because an attempt failed: {failure}"
                raise ReplayError(f"{self._daemon.address}: {text}") from failure
        raise ReplayError(f"{self._daemon.address}: {MAX_ATTEMPTS} attempts failed: {failure}")

    def _resolve_group(self, group: UnconfirmedGroup) -> GroupFate:
        """Ask the daemon for the outcome of an unconfirmed group; if it is unknown, apply the user's choice.

        Return the fate of the group. Raise ReplayError if the user made no choice.
        """
        if group.daemon != self._daemon.identity:
            return self._decide(group, f"they went to {group.daemon}, not to {self._daemon.identity}")
        answer = self._daemon.await_settled(group.name)
        if answer.outcome in CONFIRMING_OUTCOMES:
            if answer.outcome is AttemptOutcome.UNCOUNTED:
                self.lost_outcome_count += len(self._state.keys_of(group.name))
            self.discard_counts += Counter({_reason_name(reason): count for reason, count in answer.reasons.items()})
            self._state.confirm(group.name)
            return GroupFate.CONFIRMED
        # The daemon remembers all attempts since `since_ms`: a later group without an outcome is incomplete.
        if answer.outcome is AttemptOutcome.NONE and answer.since_ms <= group.started_ms:
            return GroupFate.INCOMPLETE
        return self._decide(group, "the daemon does not remember them")

    def _decide(self, group: UnconfirmedGroup, reason: str) -> GroupFate:
        """Apply the user's choice to a group with an unknown outcome; by default raise ReplayError."""
        if self._doubtful is DoubtfulPolicy.REFUSE:
            raise ReplayError(
                f"A killed run sent messages that may be in Kafka or not: {reason}. Check Kafka, then run again with "
                "--doubtful send or --doubtful skip."
            )
        if self._doubtful is DoubtfulPolicy.SKIP:
            self._state.confirm(group.name)
            return GroupFate.CONFIRMED
        self._state.remove(group.name)
        return GroupFate.REMOVED


def _encoded(line: DiscardLine) -> bytes | None:
    """Return the message of a line; None if it is larger than the protocol allows."""
    try:
        return encode_message(message_of(line))
    except LocalProtocolError:
        return None


def _reason_name(reason: DiscardReason | int) -> str:
    return reason.name if isinstance(reason, DiscardReason) else f"REASON_{reason}"


def _groups(lines: Iterator[tuple[LineKey, bytes]]) -> Iterator[tuple[list[LineKey], list[bytes]]]:
    """Collect lines in groups of at most MESSAGES_PER_GROUP and about BYTES_PER_GROUP, and yield each group."""
    keys: list[LineKey] = []
    messages: list[bytes] = []
    byte_count = 0
    for key, message in lines:
        keys.append(key)
        messages.append(message)
        byte_count += len(message)
        if len(keys) >= MESSAGES_PER_GROUP or byte_count >= BYTES_PER_GROUP:
            yield keys, messages
            keys, messages, byte_count = [], [], 0
    if keys:
        yield keys, messages


def main(argv: Sequence[str]) -> int:
    args = _create_parser().parse_args(argv)
    selection = LineSelection(args.only_topic, args.info, args.since, args.until, args.include_abandoned)
    daemon = ReplayDaemon(args.port if args.stream_socket_path is None else args.stream_socket_path, args.timeout)
    with ReplayState(args.state) as state:
        run = ReplayRun(state, daemon, selection, DoubtfulPolicy(args.doubtful))
        try:
            if args.dry_run:
                run.leave_undecided()
            else:
                run.resolve()
            files = {os.path.realpath(path): path for path in args.files}
            for name in in_replay_order(files):
                run.send_file(files[name], dry_run=args.dry_run)
            run.finish()
        finally:
            _print_outcome(run, args)
    is_incomplete = run.discard_counts or run.too_large_count or run.cut_line_count or run.lost_outcome_count
    return ExitCode.SETUP if is_incomplete else ExitCode.OK  # SETUP stands for every failure


def _print_outcome(run: ReplayRun, args: Namespace) -> None:
    counts = run.counts
    print(
        f"{counts.sent:,} {'to send' if args.dry_run else 'sent'}, {counts.already:,} replayed before, "
        f"{counts.filtered:,} filtered out, {counts.no_message:,} lines without a discarded message"
    )
    for remark in _remarks(run):
        sys.stderr.write(f"bruce: {remark}\n")


def _remarks(run: ReplayRun) -> Iterator[str]:
    """Yield a sentence about each kind of lines that were not sent, and about messages without a good outcome."""
    if run.counts.in_kafka:
        yield (
            f"{run.counts.in_kafka:,} messages were left out, because Kafka has or may have them: lines with the info "
            f"{', '.join(IN_KAFKA)}. --info selects them."
        )
    if run.counts.abandoned:
        yield (
            f"{run.counts.abandoned:,} messages of incomplete fenced attempts ({ABANDONED}) were left out, because "
            "their client sends them again by itself. --include-abandoned includes them."
        )
    if run.copy_count:
        yield (
            f"{run.copy_count:,} lines are in two files, and count once, because equal lines of two files are copies. "
            "Only equal lines of PATH and of the rotated files PATH.MS beside it are different messages."
        )
    if run.undecided_count:
        yield (
            f"{run.undecided_count:,} messages of a killed run may be in Kafka or not: a run without --dry-run asks "
            "the daemon, and sends the messages that the daemon did not get."
        )
    if run.lost_outcome_count:
        yield (
            f"{run.lost_outcome_count:,} messages have an unknown outcome: the daemon has all of them, but it was "
            "killed and lost their counts. Look for new lines in its discard file."
        )
    if run.cut_line_count:
        yield f"{run.cut_line_count:,} last lines without a newline are incomplete, and were not sent."
    if run.too_large_count:
        yield f"{run.too_large_count:,} messages are too large for the daemon, and were not sent."
    if run.discard_counts:
        reasons = ", ".join(f"{name} {count}" for name, count in sorted(run.discard_counts.items()))
        yield (
            f"the daemon discarded {run.discard_counts.total():,} of the sent messages: {reasons}. Remove the cause, "
            "then replay their new lines in its discard file, if it writes one with whole messages: no run sends the "
            "old lines again."
        )


def _create_parser() -> ArgumentParser:
    parser = command_parser(
        "replay", "Send the messages of discard files and slab exports again, each line once.", __doc__
    )
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="discard file, or output of `bruce slab export`")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--stream-socket-path", metavar="PATH", help="the daemon's UNIX stream socket")
    target.add_argument("--port", type=port_number, metavar="N", help="the daemon's TCP port on 127.0.0.1")
    add("--state", type=Path, metavar="FILE", required=True, help="record of the sent lines; keep it for later runs")
    help_of_topic = "send only messages of this topic; repeatable"
    add("--only-topic", metavar="TOPIC", action="append", default=[], help=help_of_topic)
    add("--info", action="append", default=[], help="send only lines with this reason, such as NO_MEM; repeatable")
    help_of_abandoned = f"also send {ABANDONED} messages, although their client has sent them again"
    add("--include-abandoned", action="store_true", help=help_of_abandoned)
    add("--since", metavar="MS", type=int, help="send only messages with a timestamp from MS, in ms since the epoch")
    add("--until", metavar="MS", type=int, help="send only messages with a timestamp before MS, in ms since the epoch")
    add(
        "--doubtful",
        choices=[*DoubtfulPolicy],
        default="refuse",
        help="messages that a killed run may have sent: end the replay (default), send them again, or skip them",
    )
    help_of_timeout = "longest wait for an answer, in seconds (default 60)"
    add("--timeout", metavar="S", type=seconds_from(0.1), default=60.0, help=help_of_timeout)
    add("--dry-run", action="store_true", help="only read and count the lines")
    return parser
