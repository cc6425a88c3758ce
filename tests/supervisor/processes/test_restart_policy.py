from bruce_mp.supervisor.processes.restart_policy import MAX_FAILED_BOOTS, RestartPolicy


def live(restarts: RestartPolicy, start: float, length: float, *, becomes_ready: bool = True) -> float | None:
    restarts.on_started(start)
    if becomes_ready:
        restarts.on_ready()
    return restarts.on_died(start + length)


def test_the_first_restart_is_immediate_and_then_the_delay_doubles_to_five_seconds() -> None:
    restarts = RestartPolicy()
    delays = [live(restarts, 100 * attempt, 1) for attempt in range(9)]
    assert delays == [0, 0.25, 0.5, 1, 2, 4, 5, 5, 5]


def test_a_long_run_resets_the_delay() -> None:
    restarts = RestartPolicy()
    assert [live(restarts, 0, 1), live(restarts, 2, 9.9), live(restarts, 20, 10)] == [0, 0.25, 0]
    assert live(restarts, 40, 1) == 0.25


def test_five_consecutive_failed_boots_end_the_restarts() -> None:
    restarts = RestartPolicy()
    delays = [live(restarts, 10 * attempt, 0.1, becomes_ready=False) for attempt in range(MAX_FAILED_BOOTS)]
    assert delays == [0, 0.25, 0.5, 1, None]


def test_a_successful_boot_resets_the_count() -> None:
    restarts = RestartPolicy()
    for attempt in range(MAX_FAILED_BOOTS - 1):
        live(restarts, attempt, 0.1, becomes_ready=False)
    assert live(restarts, 50, 0.1) is not None
    assert restarts.failed_boot_count == 0
    assert live(restarts, 60, 0.1, becomes_ready=False) is not None


def test_a_slow_failed_boot_counts() -> None:
    restarts = RestartPolicy()
    delays = [live(restarts, 100 * attempt, 60, becomes_ready=False) for attempt in range(MAX_FAILED_BOOTS)]
    assert delays == [0, 0, 0, 0, None]
