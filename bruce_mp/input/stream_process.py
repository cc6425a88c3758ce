"""A stream worker: admits the data of its connections, hands the runs over to the router, and answers barriers.

A worker never waits for the router.
"""

from __future__ import annotations

import resource
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from bruce_mp.input.barriers import Barriers, BarrierWatch
from bruce_mp.input.fenced_attempts import FencedAttempts
from bruce_mp.input.flush_groups import FlushGroups, OutcomeCounter
from bruce_mp.input.input_shell import InputShell
from bruce_mp.input.receive_coalescing import stream_coalescing_for
from bruce_mp.input.sender_quotas import rules_for_streams
from bruce_mp.input.spill_feed import SpillFeed, SpillPump
from bruce_mp.input.spills import Spills
from bruce_mp.input.stream_admission import StreamAdmission
from bruce_mp.input.stream_connections import StreamConnections
from bruce_mp.input.timestamps import wall_offset_ms, windows_for_streams
from bruce_mp.input.unique_attempts import SettlementTimer, UniqueAttempts
from bruce_mp.ipc.links import JOURNAL_REQUESTS
from bruce_mp.pipeline.pending_batch import SIZE_OVERHEAD
from bruce_mp.pipeline.stream_recovery import recover_stream_input
from bruce_mp.protocol.client.inquiry import is_inquiry
from bruce_mp.slab.handover_tickets import JournalProgress
from bruce_mp.slab.layout import CHUNK_BYTES
from bruce_mp.slab.recovery import sweep_filled
from bruce_mp.slab.spill import SpillDirectory
from bruce_mp.telemetry.clock import steady_ms
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.config.model import Config
    from bruce_mp.input.stream_batch import Portion
    from bruce_mp.input.stream_client import StreamClientState
    from bruce_mp.ipc.control_messages import Control, Drain
    from bruce_mp.ipc.start import Start
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

__all__ = ["main"]

_DRAIN_POLL_S: Final = 0.02
"""Interval at which a worker checks in a drain if barriers are still pending."""
_MAX_DRAIN_S: Final = 1.5
"""Longest wait for pending barriers in a drain; the supervisor allows an input more time than this to end."""


def main(start: Start, slab: Slab, control: Control) -> None:
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    _StreamWorker(start, slab, control).run()


class _StreamWorker(InputShell):
    def __init__(self, start: Start, slab: Slab, control: Control) -> None:
        self._flush_groups = FlushGroups()
        self._outcome_counter = OutcomeCounter(slab, self._flush_groups)
        super().__init__(
            start,
            slab,
            control,
            windows_for=windows_for_streams,
            rules_for=rules_for_streams,
            watcher=self._outcome_counter,
        )
        config = start.config
        self._slab = slab
        self._barriers = Barriers(
            self._outcome_counter,
            self._flush_groups,
            self._answer,
            None if config.slab.sync == "off" else JournalProgress(slab, start.row),
        )
        self._spill_directory = SpillDirectory.for_slab(slab, config.spill_path)
        self._spills = Spills(slab, self._row, start.row, self._spill_directory, config.input.streams.max_spill_size)
        self._spill_pump = self._create_spill_pump()
        self._unique = UniqueAttempts(
            self._slab,
            start.row,
            self._spill_directory,
            self._outcome_counter,
            self._flush_groups,
            limits=_limits_for_inquiries(config),
        )
        self._settlement = SettlementTimer(self._loop, self._unique)
        self._attempts = self._create_attempts(config)
        self._admission = StreamAdmission(
            self._row,
            self._lanes,
            self._pool,
            self._reporter,
            self._on_barrier,
            attempts=self._attempts,
            on_completed=self._on_completed,
            max_size=_max_message_size(config),
            senders_wait=_senders_wait(config),
            quotas=self._quotas,
        )
        self._connections = StreamConnections(
            (start.unix_stream, start.tcp),
            self._loop,
            self._row,
            self._pool,
            admission=self._admission,
            admit=self._admit,
            on_admitted=self._watch_new_barriers,
            barriers=self._barriers,
            flush_groups=self._flush_groups,
            quotas=self._quotas,
            lanes=self._lanes,
            config=config.input,
        )
        self._connections.apply_limits(
            stream_coalescing_for(config), _max_message_size(config), senders_wait=_senders_wait(config)
        )
        self._barrier_watch = BarrierWatch(
            self._loop,
            self._barriers,
            self._outcome_counter,
            self._publisher,
            after_poll=self._connections.close_finished,
            wake_journal=self._journal_waker(config),
        )
        self._drain_end_s = 0.0

    def _create_spill_pump(self) -> SpillPump:
        feed = SpillFeed(
            self._row,
            self._lanes,
            self._pool,
            reporter=self._reporter,
            spills=self._spills,
            flush_groups=self._flush_groups,
        )
        return SpillPump(self._loop, feed, self._publisher.publish_closed)

    def _create_attempts(self, config: Config) -> FencedAttempts:
        streams = config.input.streams
        return FencedAttempts(
            self._slab,
            self._pool,
            self._topics,
            thresholds=self._thresholds,
            row=self._row,
            reporter=self._reporter,
            spills=self._spills,
            unique=self._unique,
            max_chunks=streams.max_attempt_size // CHUNK_BYTES,
            max_total_chunks=max(1, self._slab.geometry.chunks // 2 // streams.worker_count),  # of half the slab
        )

    def _journal_waker(self, config: Config) -> Callable[[], object]:
        """Return a function that asks the journal to store all runs on disk if slab.sync is "each flush"."""
        if config.slab.sync != "each flush":
            return lambda: None
        return partial(self._links.sender(JOURNAL_REQUESTS).send_bytes, b"\0")  # the journal ignores the content

    def recover(self) -> None:
        self._unique.has_resolved = recover_stream_input(self._slab, self._row, self._pool.owner, self._spill_directory)
        self._spills.adopt()
        self._pool.allow_reclaim()  # `recover_stream_input` has counted the predecessor's records
        self._publisher.publish([found.segment for found in sweep_filled(self._slab)])

    def start(self) -> None:
        self._connections.start()
        super().start()
        self._start_timers()

    def apply_config(self, config: Config, before: Config) -> None:
        super().apply_config(config, before)
        streams = config.input.streams
        self._unique.apply_limits(_limits_for_inquiries(config))
        self._attempts.apply_limits(streams.max_attempt_size // CHUNK_BYTES)
        self._spills.max_bytes = streams.max_spill_size
        self._admission.apply_limits(_max_message_size(config), senders_wait=_senders_wait(config))
        self._connections.apply_limits(
            stream_coalescing_for(config), _max_message_size(config), senders_wait=_senders_wait(config)
        )
        self._connections.apply_config(config.input)

    def drain(self, _: Drain) -> None:
        """Stop reading, and wait up to `_MAX_DRAIN_S` for the outcomes of pending barriers; then finish."""
        self._connections.serve()  # admit the data that arrived before the drain
        self._connections.abandon_attempts()
        self._publisher.publish_all()
        self._connections.stop_reading()
        if len(self._barriers):
            self._drain_end_s = time.monotonic() + _MAX_DRAIN_S
            self._loop.call_later(_DRAIN_POLL_S, self._poll_drain)
        else:
            self._finish()

    def on_supervisor_exit(self) -> None:
        self._connections.serve()  # admit the data that arrived before the control link closed
        super().on_supervisor_exit()

    def _poll_drain(self) -> None:
        if len(self._barriers) and time.monotonic() < self._drain_end_s:
            self._loop.call_later(_DRAIN_POLL_S, self._poll_drain)
        else:
            self._finish()

    def _on_completed(self, runs: list[Segment]) -> None:
        """Publish the runs of a completed attempt, and start feeding its spill file."""
        self._publisher.publish_closed()  # the earlier messages of the connection come first
        self._publisher.publish(runs)
        self._start_timers()

    def _start_timers(self) -> None:
        """Start to feed the spill files of completed attempts, and to poll for the outcomes of unique attempts."""
        self._spill_pump.start()
        self._settlement.start()

    def _finish(self) -> None:
        """End all attempts, answer all barriers, publish all runs and stop the loop."""
        self._connections.abandon_attempts()
        self._barriers.answer_all()
        self._unique.settle_finished()
        super()._finish()

    def _on_barrier(self, client: StreamClientState, data: bytes) -> None:
        """Handle a barrier, or an inquiry, which is a barrier frame of another version.

        A malformed inquiry is handled as a barrier, and gets the answer that it is malformed or unsupported.
        """
        answer = self._unique.answer(client, data) if is_inquiry(data) else None
        if answer is not None:
            self._answer(client, answer)
            return
        self._row.add(Counter.StreamBarriers)
        self._barriers.on_barrier(client, data, steady_ms())

    def _answer(self, client: StreamClientState, data: bytes) -> None:
        self._connections.answer(client, data)

    def _admit(self, buffer: memoryview, portions: list[Portion]) -> None:
        self._lanes.wall_offset_ms = wall_offset_ms()
        now_ms = steady_ms()
        self._admission.admit(buffer, portions, now_ms)
        self._publisher.publish_ready(now_ms)

    def _watch_new_barriers(self) -> None:
        if self._barriers.has_new_barrier:
            self._barrier_watch.start()


def _senders_wait(config: Config) -> bool:
    """Return True if clients wait while the slab has no room."""
    return config.input.streams.when_full == "block"


def _limits_for_inquiries(config: Config) -> tuple[int, int]:
    """Return `largest_message` and `largest_payload` for the answers to inquiries (see `InquiryAnswer`)."""
    return _max_message_size(config), config.batching.message_max_bytes - SIZE_OVERHEAD


def _max_message_size(config: Config) -> int:
    """Return the largest size of a message, including the 4 bytes of its size field."""
    return config.input.max_stream_size + 4
