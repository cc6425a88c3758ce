"""The watchdog: hung processes, and pauses that do not count."""

from __future__ import annotations

from bruce_mp.supervisor.processes.watchdog import MAX_CHECK_GAP_S, Watchdog

HUNG_S = 60


def look(watch: Watchdog[str], heartbeats: dict[str, int], start: int, end: int) -> list[str]:
    """Check once a second, and return the first hung processes."""
    for now in range(start, end):
        if hung := watch.find_hung(heartbeats, now):
            return hung
    return []


def test_a_process_without_a_heartbeat_is_hung() -> None:
    watch = Watchdog[str](HUNG_S)
    assert look(watch, {"one": 7}, 0, HUNG_S + 1) == []
    assert watch.find_hung({"one": 7, "other": 7}, HUNG_S + 1) == ["one"]


def test_a_heartbeat_restarts_the_timer() -> None:
    watch = Watchdog[str](HUNG_S)
    look(watch, {"one": 7}, 0, HUNG_S)
    look(watch, {"one": 8}, HUNG_S, HUNG_S + 1)
    assert look(watch, {"one": 8}, HUNG_S + 1, 2 * HUNG_S) == []


def test_a_restarted_process_is_timed_separately() -> None:
    watch = Watchdog[str](HUNG_S)
    look(watch, {"first": 7}, 0, HUNG_S)
    assert look(watch, {"second": 7}, HUNG_S, 2 * HUNG_S) == []


def test_no_process_is_hung_after_the_supervisor_was_suspended() -> None:
    watch = Watchdog[str](HUNG_S)
    look(watch, {"one": 7}, 0, HUNG_S)
    back = HUNG_S + int(MAX_CHECK_GAP_S) + 1
    assert look(watch, {"one": 7}, back, back + HUNG_S) == []
