"""`bruce slab export`: write the messages of a slab as lines of a discard file, in order of arrival.

The info of a line gives the state of its message:

    SLAB            held, never sent
    SLAB_SENT       held, in a record batch that was built, and perhaps sent: Kafka may have it
    SLAB_DELIVERED  (--all) acknowledged
    any other       reason for the discard of a message (--all), or of an invalid datagram in the landing zone

An export locks the slab, because a daemon that starts would deliver the messages that are being exported.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import BruceError, DiscardReason, ExitCode, SlabError
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.protocol.client.discard_line import DiscardLine, LineEvent, format_line, info_of
from bruce_mp.protocol.client.messages import EmptyFields, Message, Rejection, parse_message
from bruce_mp.protocol.client.record_headers import decode_headers
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import lock_shared
from bruce_mp.slab.layout import SETTLED, RunState
from bruce_mp.slab.salvage import Salvage
from bruce_mp.telemetry.books import spilled_total
from bruce_mp.telemetry.clock import wall_ms
from bruce_mp.telemetry.logs import plural
from bruce_mp.telemetry.stages import SPILLED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from bruce_mp.slab.salvage import LandedDatagram, SalvagedRecord

__all__ = ["ExportOptions", "compare_with_books", "export"]

STANDARD_OUTPUT: Final = "-"


class OutputError(BruceError):
    """Failure to write the lines; the text names the output and the reason."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of an export.

    Empty `topics` means all topics. `includes_settled` adds delivered and discarded messages. `ignores_lock` allows the
    export of a slab that a running daemon uses.
    """

    file: Path
    output: str
    topics: frozenset[str]
    includes_settled: bool
    ignores_lock: bool


def export(options: ExportOptions) -> int:
    """Write the lines, and print their number and the damage to standard error. Return the exit status."""
    lock = lock_shared(options.file)
    is_live = lock is None  # a running daemon has locked the slab
    if is_live and not options.ignores_lock:
        raise SlabError(
            f"The slab {options.file} belongs to a daemon that is running and delivers its messages. Messages that you "
            "send again from an export would be in Kafka twice. Stop the daemon, or use --force to export "
            "the messages for inspection only."
        )
    try:
        with closing(Salvage(options.file, is_live=is_live)) as salvage:
            return _write(options, salvage, is_live=is_live)
    finally:
        if lock is not None:
            os.close(lock)


def _write(options: ExportOptions, salvage: Salvage, *, is_live: bool) -> int:
    lines = _Lines(salvage, options, wall_ms())
    salvage.count_chunks()  # only because it adds a sentence for each damaged chunk header to `salvage.damage`
    with _open_output(options.output) as output:
        for line in lines:
            output.write(format_line(line))
    damage = [*salvage.damage, *([] if is_live else compare_with_books(salvage, lines.held_count))]
    omissions = _spilled_warning(salvage)
    for text in (*damage, *omissions):
        sys.stderr.write(f"bruce: {text}\n")
    damage_text = f"; found {plural(len(damage), 'damaged or inconsistent part')} of the slab" if damage else ""
    counts = f"{lines.written_count:,} of {plural(lines.found_count, 'message')}"
    sys.stderr.write(f"bruce: Wrote {counts} to {_output_name(options.output)}{damage_text}.\n")
    return ExitCode.SETUP if damage or omissions else ExitCode.OK


def compare_with_books(salvage: Salvage, held_count: int) -> list[str]:
    """Return a sentence if the number of held records differs from the books. The slab must not be in use."""
    books = count_books(salvage.slab)
    zone = salvage.read_landing_zone()
    # Datagrams that have a record already, but that the books do not count as received yet.
    uncounted_count = zone.landed_count - len(zone.pending)
    settled = books.delivered + sum(books.discarded.values())
    expected_count = books.received + uncounted_count - settled - books.held[SPILLED]  # spilled messages have no record
    if held_count == expected_count:
        return []
    return [f"The books say that {plural(expected_count, 'message')} should be held, but the slab has {held_count:,}."]


def _spilled_warning(salvage: Salvage) -> list[str]:
    """Return a sentence if an export omits messages because they are in spill files."""
    count = spilled_total(salvage.slab)
    text = f"The export omits {plural(count, 'message')} of fenced attempts in spill files (input.streams.spill_dir)."
    return [text] if count else []


class _Lines:
    """The lines of an export, to be iterated once.

    `found_count` is the number of messages of all topics, `written_count` the number of lines for the chosen topics,
    and `held_count` the number of held records.
    """

    def __init__(self, salvage: Salvage, options: ExportOptions, now_ms: int) -> None:
        self._salvage = salvage
        self._topics = frozenset(map(os.fsencode, options.topics))
        self._includes_settled = options.includes_settled
        self._now_ms = now_ms
        self.found_count = self.written_count = self.held_count = 0

    def __iter__(self) -> Iterator[DiscardLine]:
        for line in self._all_lines():
            self.found_count += 1
            if not self._topics or line.topic in self._topics:
                self.written_count += 1
                yield line

    def _all_lines(self) -> Iterator[DiscardLine]:
        """Yield a line for each message of any topic."""
        for record in self._salvage.records(settled=self._includes_settled):
            self.held_count += record.state not in SETTLED
            line = self._line_of_record(record)
            if line is not None:
                yield line
        for datagram in self._salvage.read_landing_zone().pending:
            yield self._line_of_datagram(datagram)

    def _line_of_record(self, record: SalvagedRecord) -> DiscardLine | None:
        body = self._salvage.read_body(record)
        if body is None:
            return None
        headers = decode_headers(body.headers)
        if headers is None:
            self._salvage.damage.append(f"Headers of a record of chunk {record.chunk} are damaged and omitted.")
        empty = EmptyFields(record.options & lay.OPTIONS_OF_EMPTY)
        message = Message(
            record.topic, body.value, body.key, record.timestamp, record.partition_key, headers or (), empty
        )
        return self._create_line(_info_of_record(record), message)

    def _line_of_datagram(self, datagram: LandedDatagram) -> DiscardLine:
        slab = self._salvage.slab
        stored_bytes = min(datagram.length, slab.geometry.landing_slot_size)
        data = bytes(slab.view[datagram.offset : datagram.offset + stored_bytes])
        message = parse_message(data) if datagram.is_whole else Rejection(DiscardReason.MALFORMED)
        if isinstance(message, Rejection):
            return self._create_line(_rejection_info(message), Message(b"", data, b"", self._now_ms, None))
        return self._create_line("SLAB", message)

    def _create_line(self, info: str, message: Message) -> DiscardLine:
        return DiscardLine(
            self._now_ms,
            message.timestamp_ms,
            LineEvent.DISCARD,
            info,
            message.topic,
            message.key,
            message.value,
            message.partition_key,
            message.headers,
            int(message.empty),
        )


def _info_of_record(record: SalvagedRecord) -> str:
    """Return the info of a record's line, as the table at the top of this module defines it."""
    if record.state is RunState.DELIVERED:
        return "SLAB_DELIVERED"
    if record.state is RunState.DISCARDED:
        is_known = record.reason in DiscardReason.__members__.values()  # a damaged record may have any number
        return info_of(DiscardReason(record.reason) if is_known else DiscardReason.BUG)
    return "SLAB_SENT" if record.was_built else "SLAB"


def _rejection_info(rejection: Rejection) -> str:
    is_key_unknown = rejection.reason is DiscardReason.UNSUPPORTED_API_KEY
    number = rejection.api_key if is_key_unknown else rejection.api_version
    return info_of(rejection.reason, number or 0)  # `info_of` ignores the number for other reasons


@contextmanager
def _open_output(name: str) -> Iterator[BinaryIO]:
    """Open standard output, or create a file of mode 0600 that is synced to disk at the end of the `with` block.

    Raise OutputError.
    """
    try:
        if name == STANDARD_OUTPUT:
            with open(sys.stdout.fileno(), "wb", closefd=False) as stream:
                yield stream
            return
        with open(name, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as error:
        raise OutputError(f"{name} exists already; it is not overwritten. Give another --output.") from error
    except OSError as error:
        raise OutputError(f"{_output_name(name)}: {error.strerror}; the export is not complete.") from error


def _output_name(output: str) -> str:
    return "standard output" if output == STANDARD_OUTPUT else output
